#include "frontend/tenants.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>

#include "common/strings.h"

namespace aisp {
namespace {

int64_t UnixNow() { return static_cast<int64_t>(std::time(nullptr)); }

// The UTC time `left` from now, as "2027-01-31T12:00:00Z".
std::string TimeOfDay(Duration left) {
  const std::time_t when = std::time(nullptr) + (left.count() + 999'999'999) / 1'000'000'000;
  std::tm t{};
  gmtime_r(&when, &t);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", t.tm_year + 1900, t.tm_mon + 1,
                     t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec);
}

std::string ShowRate(const Rate& rate) {
  const double s = ToSeconds(rate.period);
  return fmt::format("{} in {}", rate.count,
                     s < 60       ? "a second"
                     : s < 3600   ? "a minute"
                     : s < 86'400 ? "an hour"
                                  : "a day");
}

Result<TenantLimits> DefaultsOf(const Config::Http& http) {
  TenantLimits limits;
  limits.inflight = http.max_inflight_per_key;
  const std::pair<std::pair<const char*, const std::string*>, std::optional<Rate>*> rates[] = {
      {{"http.requests_per_key (--requests-per-key)", &http.requests_per_key}, &limits.requests},
      {{"http.tokens_per_key (--tokens-per-key)", &http.tokens_per_key}, &limits.tokens}};
  for (const auto& [setting, out] : rates) {
    if (setting.second->empty()) continue;
    const auto rate = ParseRate(*setting.second);
    if (!rate) {
      return InvalidArgument(fmt::format("{} = '{}'; it wants {}", setting.first, *setting.second,
                                         rate.error().message));
    }
    *out = *rate;
  }
  return limits;
}

}  // namespace

Result<std::unique_ptr<Tenants>> Tenants::Load(const Config& config) {
  auto out = std::make_unique<Tenants>();
  AISP_ASSIGN_OR_RETURN(const TenantLimits defaults, DefaultsOf(config.http));
  for (size_t i = 0; i < config.http.api_keys.size(); ++i) {
    AISP_RETURN_IF_ERROR(
        out->Add(config.http.api_keys[i], fmt::format("http.api_keys, entry {}", i + 1), defaults));
  }
  const std::string& path = config.http.api_keys_file;
  if (path.empty()) return out;
  std::ifstream file(path);
  if (!file) return NotFound(fmt::format("cannot read http.api_keys_file '{}'", path));
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string_view entry = Trim(line);
    if (entry.empty() || entry.front() == '#') continue;
    AISP_RETURN_IF_ERROR(out->Add(entry, fmt::format("{}:{}", path, number), defaults));
  }
  if (file.bad()) return Unavailable(fmt::format("reading http.api_keys_file '{}' failed", path));
  // A key file without keys must not disable authentication.
  if (out->keys_.empty()) {
    return InvalidArgument(fmt::format("http.api_keys_file '{}' holds no key", path));
  }
  return out;
}

Status Tenants::Add(std::string_view entry, const std::string& where,
                    const TenantLimits& defaults) {
  AISP_ASSIGN_OR_RETURN(ApiKey added, ParseApiKey(entry, where, defaults));
  for (const ApiKey& known : keys_) {
    if (known.digest == added.digest) {
      return InvalidArgument(
          fmt::format("{}: this key stands there twice (tenant '{}')", where, known.tenant));
    }
  }
  const auto [it, is_new] = states_.try_emplace(added.tenant);
  State& state = it->second;
  if (is_new) {
    state.limits = added.limits;
    if (state.limits.requests)
      state.requests_left = static_cast<double>(state.limits.requests->count);
  } else if (state.limits != added.limits) {
    return InvalidArgument(
        fmt::format("{}: tenant '{}' has another key with other limits; all keys of a name share "
                    "one allowance, so write the same for each",
                    where, added.tenant));
  }
  keys_.push_back(std::move(added));
  return {};
}

ApiResult<std::string> Tenants::Authenticate(std::string_view authorization) const {
  return Authenticate(authorization, UnixNow());
}

ApiResult<std::string> Tenants::Authenticate(std::string_view authorization, int64_t unix_s) const {
  if (keys_.empty()) return std::string();
  constexpr std::string_view kScheme = "bearer ";
  const auto refuse = [](std::string message) {
    return tl::unexpected(
        ApiError(Code::kUnauthenticated, std::move(message), "", "invalid_api_key"));
  };
  if (authorization.empty()) {
    return refuse(
        "no API key was sent; send the header \"Authorization: Bearer YOUR_KEY\" (or, over HTTP, "
        "\"x-api-key: YOUR_KEY\")");
  }
  if (authorization.size() < kScheme.size() ||
      !EqualsIgnoreCaseAscii(authorization.substr(0, kScheme.size()), kScheme)) {
    return refuse("the Authorization header must be \"Bearer YOUR_KEY\"");
  }
  const KeyDigest given = DigestOfKey(Trim(authorization.substr(kScheme.size())));
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    if (CRYPTO_memcmp(given.data(), key.digest.data(), given.size()) == 0) found = &key;
  }
  if (found == nullptr) return refuse("the API key is not known here; ask the operator for one");
  if (unix_s >= found->expires_unix_s) {
    return refuse(
        fmt::format("the API key has expired ({}); ask the operator for another", found->expires));
  }
  return found->tenant;
}

void Tenants::Refill(State& state, Instant now) {
  if (state.limits.requests) {
    const Rate& rate = *state.limits.requests;
    const auto most = static_cast<double>(rate.count);
    const double share = ToSeconds(now - state.refilled) / ToSeconds(rate.period);
    // The first time the bucket is full.
    state.requests_left =
        state.refilled == Instant{0} ? most : std::min(most, state.requests_left + most * share);
    state.refilled = now;
  }
  if (state.limits.tokens && state.window_begin != kNever &&
      now >= state.window_begin + state.limits.tokens->period) {
    state.window_begin = kNever;
    state.tokens_used = 0;
  }
}

tl::expected<Tenants::Slot, Tenants::Refusal> Tenants::Enter(const std::string& tenant,
                                                             Instant now) {
  State& s = states_[tenant];
  if (tenant.empty()) return Slot(s.inflight);
  Refill(s, now);
  const auto refuse = [](std::string message, Duration wait) {
    return tl::unexpected(Refusal{ApiError(Code::kResourceExhausted, std::move(message)), wait});
  };
  if (const int64_t inflight = *s.inflight;
      s.limits.inflight > 0 && inflight >= s.limits.inflight) {
    return refuse(fmt::format("this API key has {} choices in flight, the limit is {}; retry later",
                              inflight, s.limits.inflight),
                  std::chrono::seconds(1));
  }
  if (s.limits.tokens && s.tokens_used >= s.limits.tokens->count) {
    const Duration left = s.window_begin + s.limits.tokens->period - now;
    return refuse(fmt::format("this API key has used {} tokens, it may have {}; there are new ones "
                              "at {}",
                              s.tokens_used, ShowRate(*s.limits.tokens), TimeOfDay(left)),
                  left);
  }
  if (s.limits.requests && s.requests_left < 1) {
    const Rate& rate = *s.limits.requests;
    const double part = (1 - s.requests_left) / static_cast<double>(rate.count);
    const auto left = FromMs(part * ToMs(rate.period));
    return refuse(fmt::format("this API key may send {} requests; the next one at {}",
                              ShowRate(rate), TimeOfDay(left)),
                  left);
  }
  if (s.limits.requests) s.requests_left -= 1;
  return Slot(s.inflight);
}

tl::expected<void, Tenants::Refusal> Tenants::Widen(const std::string& tenant, Slot* slot,
                                                    int64_t choices) {
  const auto it = states_.find(tenant);
  const int64_t more = choices - slot->places_;
  if (it == states_.end() || slot->count_ == nullptr || more <= 0) return {};
  const State& s = it->second;
  const int64_t limit = tenant.empty() ? 0 : s.limits.inflight;
  if (limit > 0 && choices > limit) {
    return tl::unexpected(Refusal{
        ApiError(Code::kInvalidArgument,
                 fmt::format("the request has {} choices, and this API key may have {} in flight; "
                             "ask for fewer prompts or a smaller n",
                             choices, limit)),
        {}});
  }
  if (const int64_t inflight = *s.inflight; limit > 0 && inflight + more > limit) {
    return tl::unexpected(Refusal{
        ApiError(Code::kResourceExhausted,
                 fmt::format("this API key has {} choices in flight beside the {} of this request, "
                             "the limit is {}; retry later",
                             inflight - slot->places_, choices, limit)),
        std::chrono::seconds(1)});
  }
  slot->Take(more);
  return {};
}

TenantShare Tenants::ShareOf(const std::string& tenant, int32_t priority,
                             std::optional<ServiceClass> asked) const {
  TenantShare share;
  share.name = tenant;
  share.service_class = asked.value_or(ServiceClass::kInteractive);
  const auto it = states_.find(tenant);
  if (tenant.empty() || it == states_.end()) return share;
  if (!asked) share.service_class = it->second.limits.service_class;
  share.weight = static_cast<uint32_t>(it->second.limits.weight);
  share.tenants = static_cast<uint32_t>(states_.size());
  if (it->second.limits.ranks) share.rank = priority;
  return share;
}

Objective Tenants::ObjectiveOf(const std::string& tenant, Objective asked) const {
  const auto it = states_.find(tenant);
  if (it == states_.end()) return asked;
  if (asked.ttft_ms <= 0) asked.ttft_ms = it->second.limits.slo_ttft_ms;
  if (asked.tpot_ms <= 0) asked.tpot_ms = it->second.limits.slo_tpot_ms;
  return asked;
}

void Tenants::Charge(const std::string& tenant, int64_t tokens, Instant now) {
  const auto it = states_.find(tenant);
  if (it == states_.end() || !it->second.limits.tokens || tokens <= 0) return;
  State& s = it->second;
  Refill(s, now);
  if (s.window_begin == kNever) s.window_begin = now;
  s.tokens_used += tokens;
}

std::string CacheScope(std::string_view tenant, std::string_view salt) {
  if (tenant.empty() && salt.empty()) return "";
  // The length delimits the tenant, so that no two pairs give the same scope.
  return fmt::format("{}:{}{}", tenant.size(), tenant, salt);
}

}  // namespace aisp
