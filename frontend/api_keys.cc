#include "frontend/api_keys.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <ctime>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr std::string_view kUnnamed = "key-";
constexpr std::string_view kHashed = "sha256:";
constexpr size_t kDigestDigits = 16;
constexpr size_t kMaxNameBytes = 64;
constexpr int64_t kMostWeight = 1000;
constexpr int64_t kMostOfARate = int64_t{1} << 40;
constexpr int64_t kMostSloMs = 86'400'000;  // as in the headers

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}
bool IsKeyChar(char c) { return c > 0x20 && c < 0x7F; }

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::optional<KeyDigest> ParseDigest(std::string_view hex) {
  KeyDigest digest{};
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = HexValue(hex[2 * i]), low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<unsigned char>(high << 4 | low);
  }
  return digest;
}

std::string Hex(const KeyDigest& digest, size_t digits) {
  std::string out;
  for (size_t i = 0; out.size() < digits; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

// 2027-01-31 (until the end of that day) or 2027-01-31T12:00:00Z.
std::optional<int64_t> ParseDate(const std::string& text) {
  std::tm t{};
  const char* end = strptime(text.c_str(), "%Y-%m-%d", &t);
  if (end == nullptr) return std::nullopt;
  if (*end == '\0') return timegm(&t) + 86'400;
  end = strptime(end, "T%H:%M:%SZ", &t);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return timegm(&t);
}

// Parses one `name=value` after the key.
Status ParseOption(std::string_view option, const std::string& where, ApiKey* key) {
  const size_t equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  const std::string value(equals == std::string_view::npos ? "" : option.substr(equals + 1));
  if (name == "expires") {
    const auto date = ParseDate(value);
    if (!date)
      return InvalidArgument(where +
                             ": expires wants a date as 2027-01-31 or 2027-01-31T12:00:00Z");
    key->expires_unix_s = *date;
    key->expires = value;
  } else if (name == "requests" || name == "tokens") {
    const auto rate = ParseRate(value);
    if (!rate)
      return InvalidArgument(fmt::format("{}: {} wants {}", where, name, rate.error().message));
    (name == "requests" ? key->limits.requests : key->limits.tokens) = *rate;
  } else if (name == "inflight") {
    const auto count = ParseIntInRange(value, 1, 1 << 20);
    if (!count) return InvalidArgument(where + ": inflight wants a number from 1 to 1048576");
    key->limits.inflight = *count;
  } else if (name == "weight") {
    const auto weight = ParseIntInRange(value, 1, kMostWeight);
    if (!weight) {
      return InvalidArgument(
          fmt::format("{}: weight wants a number from 1 to {}", where, kMostWeight));
    }
    key->limits.weight = *weight;
  } else if (name == "priority") {
    if (value != "own" && value != "all")
      return InvalidArgument(where + ": priority wants own (its requests among themselves) or all");
    key->limits.ranks = value == "all";
  } else if (name == "class") {
    const auto service_class = ServiceClassNamed(value);
    if (!service_class)
      return InvalidArgument(where + ": class wants interactive, batch or best-effort");
    key->limits.service_class = *service_class;
  } else if (name == "slo-ttft-ms" || name == "slo-tpot-ms") {
    const auto ms = ParseDouble(value);
    if (!ms || *ms <= 0 || *ms > kMostSloMs) {
      return InvalidArgument(fmt::format("{}: {} wants milliseconds, above 0 and at most {}", where,
                                         name, kMostSloMs));
    }
    (name == "slo-ttft-ms" ? key->limits.slo_ttft_ms : key->limits.slo_tpot_ms) = *ms;
  } else {
    return InvalidArgument(
        where +
        ": behind the key only expires=, requests=, tokens=, inflight=, weight=, priority=, "
        "class=, slo-ttft-ms= and slo-tpot-ms= may stand, with spaces between them");
  }
  return {};
}

}  // namespace

KeyDigest DigestOfKey(std::string_view key) {
  KeyDigest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

Result<Rate> ParseRate(std::string_view text) {
  constexpr std::pair<std::string_view, Duration> kPeriods[] = {{"s", std::chrono::seconds(1)},
                                                                {"m", std::chrono::minutes(1)},
                                                                {"h", std::chrono::hours(1)},
                                                                {"d", std::chrono::hours(24)}};
  const size_t slash = text.find('/');
  const auto count = ParseIntInRange(text.substr(0, slash), 1, kMostOfARate);
  if (slash != std::string_view::npos && count) {
    for (const auto& [name, period] : kPeriods)
      if (text.substr(slash + 1) == name) return Rate{*count, period};
  }
  return InvalidArgument("a number and a time, as 60/m (s, m, h or d)");
}

Result<ApiKey> ParseApiKey(std::string_view line, const std::string& where,
                           const TenantLimits& defaults) {
  const std::vector<std::string_view> words = Split(line, ' ');
  const std::string_view entry = words.front();
  const size_t colon = entry.starts_with(kHashed) ? std::string_view::npos : entry.find(':');
  const bool named = colon != std::string_view::npos;
  const std::string_view name = named ? entry.substr(0, colon) : "";
  const std::string_view secret = named ? entry.substr(colon + 1) : entry;
  if (named && (name.empty() || name.size() > kMaxNameBytes || name.starts_with(kUnnamed) ||
                !std::all_of(name.begin(), name.end(), IsNameChar))) {
    return InvalidArgument(fmt::format(
        "{}: the name before the ':' wants 1 to {} letters, digits, '.', '_' or '-', and "
        "not '{}' at its start",
        where, kMaxNameBytes, kUnnamed));
  }
  if (secret.empty() || !std::all_of(secret.begin(), secret.end(), IsKeyChar))
    return InvalidArgument(where + ": a key is one or more visible ASCII characters");
  ApiKey key;
  key.limits = defaults;
  if (secret.starts_with(kHashed)) {
    const auto digest = ParseDigest(secret.substr(kHashed.size()));
    if (!digest) return InvalidArgument(where + ": sha256: wants 64 hexadecimal digits");
    key.digest = *digest;
  } else {
    key.digest = DigestOfKey(secret);
  }
  key.tenant = named ? std::string(name) : std::string(kUnnamed) + Hex(key.digest, kDigestDigits);
  for (size_t i = 1; i < words.size(); ++i) {
    if (!Trim(words[i]).empty()) AISP_RETURN_IF_ERROR(ParseOption(Trim(words[i]), where, &key));
  }
  return key;
}

}  // namespace aisp
