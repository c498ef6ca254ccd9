#include "tracing/trace_context.h"

#include <algorithm>
#include <span>

namespace aisp {
namespace {

constexpr size_t kMaxTracestateBytes = 512;
// version, trace id, parent id, flags, and the dashes between them
constexpr size_t kTraceparentBytes = 2 + 1 + 32 + 1 + 16 + 1 + 2;

// -1 if `c` is not a lower-case hexadecimal digit.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool ReadHex(std::string_view text, std::span<uint8_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

std::string WriteHex(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

bool AllZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

template <typename Id>
Id Draw(SplitMix64* random) {
  Id id{};
  for (size_t i = 0; i < id.size(); i += 8) {
    // Never 0, which is an invalid id.
    uint64_t word = random->Next() | 1;
    for (size_t j = 0; j < 8; ++j, word >>= 8) id[i + j] = static_cast<uint8_t>(word);
  }
  return id;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  if (header.size() < kTraceparentBytes) return std::nullopt;
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  std::array<uint8_t, 1> version{}, flags{};
  TraceContext out;
  const bool read = ReadHex(header, version) && ReadHex(header.substr(3), out.trace_id) &&
                    ReadHex(header.substr(36), out.span_id) && ReadHex(header.substr(53), flags);
  if (!read || version[0] == 0xFF) return std::nullopt;
  if (AllZero(out.trace_id) || AllZero(out.span_id)) return std::nullopt;
  // Version 00 ends here; later versions may continue after a dash.
  const bool more = header.size() > kTraceparentBytes;
  if (more && (version[0] == 0 || header[kTraceparentBytes] != '-')) return std::nullopt;
  out.sampled = (flags[0] & 1) != 0;
  return out;
}

std::string FormatTraceparent(const TraceId& trace, const SpanId& span, bool sampled) {
  return "00-" + ToHex(trace) + "-" + ToHex(span) + (sampled ? "-01" : "-00");
}

std::string UsableTracestate(std::string_view header) {
  const bool printable =
      std::all_of(header.begin(), header.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  return printable && header.size() <= kMaxTracestateBytes ? std::string(header) : "";
}

TraceId NewTraceId(SplitMix64* random) { return Draw<TraceId>(random); }
SpanId NewSpanId(SplitMix64* random) { return Draw<SpanId>(random); }

std::string ToHex(const TraceId& id) { return WriteHex(id); }
std::string ToHex(const SpanId& id) { return WriteHex(id); }

}  // namespace aisp
