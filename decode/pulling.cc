// Prefixes from other workers' caches; see decode/prefix_puller.h.
#include "common/log.h"
#include "decode/decode_role_impl.h"
#include "decode/ttft.h"

namespace aisp {

// If a prefill worker computes the prompt, the prefix is needed there.
void DecodeRole::Impl::PlacePull(const v1::GenerateRequest& wire, std::span<const TokenId> tokens,
                                 DecodeRequest* request) {
  if (request->targets.empty()) {
    request->pull = StartPull(wire, tokens, &request->pulled);
  } else if (wire.has_pull() && !wire.pull().holder().kv_address().empty()) {
    *request->prefill.mutable_pull() = wire.pull();
  }
}

uint64_t DecodeRole::Impl::StartPull(const v1::GenerateRequest& wire,
                                     std::span<const TokenId> tokens, PullOutcome* outcome) {
  if (!wire.has_pull() || wire.pull().holder().kv_address().empty() || deps.transports.empty() ||
      tokens.empty())
    return 0;
  PullWish wish{.root = deps.engine->RootOf(wire.cache_salt(), wire.adapter()),
                .tokens = tokens,
                .request = {}};
  wish.request.set_trace_id(wire.trace_id());
  wish.request.set_cache_salt(wire.cache_salt());
  wish.request.set_adapter(wire.adapter());
  *wish.request.mutable_tenant() = wire.tenant();
  return puller->Start(wire.pull(), wish, outcome);
}

bool DecodeRole::Impl::MayGrant(const std::string& address, int32_t blocks) const {
  return !leases.Silent(address, deps.clock->Now(), options.fence_grace) &&
         !OverCap(address, blocks);
}

uint64_t DecodeRole::Impl::Fetch(const v1::PrefillRequest& of, std::span<const TokenId> tokens,
                                 PrefixFetcher::Done done) {
  if (of.pull().holder().kv_address().empty() || deps.transports.empty() || tokens.empty())
    return 0;
  PullWish wish{
      .root = deps.engine->RootOf(of.cache_salt(), of.adapter()), .tokens = tokens, .request = {}};
  wish.request.set_trace_id(of.trace_id());
  wish.request.set_cache_salt(of.cache_salt());
  wish.request.set_adapter(of.adapter());
  *wish.request.mutable_tenant() = of.tenant();
  PullOutcome outcome;
  const uint64_t pull = puller->Start(of.pull(), wish, &outcome);
  if (pull == 0) return 0;
  fetches[++last_fetch] = {pull, std::move(done)};
  return last_fetch;
}

void DecodeRole::Impl::Abandon(uint64_t fetch) {
  const auto it = fetches.find(fetch);
  if (it == fetches.end()) return;
  const uint64_t pull = it->second.pull;
  fetches.erase(it);
  puller->Abandon(pull);
}

void DecodeRole::Impl::ReportFetched(uint64_t pull, const PullOutcome& outcome) {
  std::vector<PrefixFetcher::Done> waited;
  for (auto it = fetches.begin(); it != fetches.end();) {
    if (it->second.pull != pull) {
      ++it;
      continue;
    }
    waited.push_back(std::move(it->second.done));
    it = fetches.erase(it);
  }
  if (waited.empty()) return;
  const v1::PrefixPull wire = PullToWire(outcome);
  for (const PrefixFetcher::Done& done : waited) done(wire);
}

void DecodeRole::Impl::OnPulled(uint64_t pull, const PullOutcome& outcome) {
  ReportFetched(pull, outcome);
  std::vector<RequestKey> waited;
  for (const auto& [key, request] : requests) {
    if (request.pull == pull) waited.push_back(key);
  }
  for (const RequestKey key : waited) {
    DecodeRequest& request = requests.at(key);
    request.pull = 0;
    request.pulled = outcome;
    if (!outcome.why.empty()) request.fallback = "the prefix was not pulled: " + outcome.why;
    if (!request.targets.empty()) {
      StartRemote(request);
    } else {
      request.phase = RequestPhase::kRunning;
      deps.engine->RemoteFailed(request.sequence, /*run_locally=*/true);
    }
  }
}

}  // namespace aisp
