#include "constrain/hostname.h"

#include <algorithm>
#include <string_view>

#ifdef AISP_HAVE_IDN2
#include <idn2.h>
#endif

namespace aisp {
namespace {

constexpr int32_t kMaxName = 253, kMaxLabel = 63;
constexpr std::string_view kPrefix = "xn--";

#ifdef AISP_HAVE_IDN2
constexpr std::string_view kBasic = "abcdefghijklmnopqrstuvwxyz0123456789-";

// "" when it is not a valid label.
std::string AsLabel(const std::string& unicode, const char* wanted) {
  uint8_t* out = nullptr;
  const auto* text = reinterpret_cast<const uint8_t*>(unicode.c_str());
  const auto* label = reinterpret_cast<const uint8_t*>(wanted);
  if (idn2_register_u8(text, label, &out, IDN2_NFC_INPUT) != IDN2_OK) return "";
  std::string name(reinterpret_cast<const char*>(out));
  idn2_free(out);
  return name;
}

bool IsLabel(const std::string& label) {
  char* out = nullptr;
  if (idn2_to_unicode_8z8z(label.c_str(), &out, 0) != IDN2_OK) return false;
  const std::string unicode(out);
  idn2_free(out);
  return unicode != label && AsLabel(unicode, label.c_str()) == label;
}

// Whether some label of at most `room` further bytes begins with this.
bool CanBegin(const std::string& label, int32_t room) {
  constexpr int32_t kRoomForLetter = 8;  // room for a hyphen and the encoding of one letter
  const std::string_view own = std::string_view(label).substr(kPrefix.size());
  // ASCII so far may be the whole label, if a letter follows.
  const bool odd = own.starts_with('-') || (own.size() > 3 && own.substr(2, 2) == "--");
  if (room >= kRoomForLetter && !odd) return true;
  if (IsLabel(label)) return true;
  for (const char* before : {"", "\u00fc", "\u00fc\u00fc"}) {
    const std::string unicode = before + std::string(own) + (own.ends_with('-') ? "\u00fc" : "");
    const std::string other = AsLabel(unicode, nullptr);
    if (other.size() <= label.size() + static_cast<size_t>(room) && other.starts_with(label))
      return true;
  }
  if (room == 0) return false;
  return std::any_of(kBasic.begin(), kBasic.end(), [&](char c) { return IsLabel(label + c); });
}
#else
bool IsLabel(const std::string&) { return false; }
bool CanBegin(const std::string&, int32_t) { return false; }
#endif

}  // namespace

bool KnowsHostnames() {
#ifdef AISP_HAVE_IDN2
  return true;
#else
  return false;
#endif
}

std::string HostnamePlace::Key() const {
  return std::to_string(total) + (hyphen ? "-" : ".") + std::to_string(in_label) + ":" + label;
}

std::optional<HostnamePlace> NextOfHostname(const HostnamePlace& at, uint32_t c) {
  HostnamePlace next = at;
  ++next.total;
  if (c == '.') {
    if (!IsWholeHostname(at) || next.total >= kMaxName) return std::nullopt;
    next.in_label = 0;
    next.label.clear();
    return next;
  }
  const bool upper = c >= 'A' && c <= 'Z';
  const bool letter = upper || (c >= 'a' && c <= 'z');
  next.hyphen = c == '-';
  if (!letter && !next.hyphen && (c < '0' || c > '9')) return std::nullopt;
  if (next.hyphen && at.in_label == 0) return std::nullopt;
  ++next.in_label;
  const int32_t room = std::min(kMaxLabel - next.in_label, kMaxName - next.total);
  if (room < (next.hyphen ? 1 : 0)) return std::nullopt;
  const bool international = at.label.starts_with(kPrefix);
  const char lower = static_cast<char>(upper ? c + 32 : c);
  if (international) {
    next.label.push_back(lower);
  } else if (next.in_label <= 4) {
    const bool plain = !next.hyphen && lower != 'x' && lower != 'n';
    next.label.push_back(plain ? 'a' : lower);
  } else {
    next.label.clear();
  }
  if (next.label.size() < kPrefix.size() || !next.label.substr(2).starts_with("--")) return next;
  // Two hyphens in these positions announce an encoding; xn-- is the only one.
  if (!next.label.starts_with(kPrefix) || !CanBegin(next.label, room)) return std::nullopt;
  return next;
}

bool IsWholeHostname(const HostnamePlace& at) {
  if (at.in_label == 0 || at.hyphen) return false;
  return !at.label.starts_with(kPrefix) || IsLabel(at.label);
}

}  // namespace aisp
