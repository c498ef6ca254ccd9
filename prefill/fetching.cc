// Fetches prefixes that other workers have cached. This happens before blocks are requested, so
// that the prompt hits this worker's own cache when it runs.
#include "common/log.h"
#include "prefill/prefill_role_impl.h"

namespace aisp {

void PrefillRole::Impl::StartFetch(TransferKey key, const v1::PrefillRequest& request,
                                   std::span<const TokenId> tokens) {
  if (!request.has_pull() || deps.fetcher == nullptr) return;
  transfers.at(key).fetch =
      deps.fetcher->Fetch(request, tokens, [this, key](const v1::PrefixPull& pull) {
        Transfer& transfer = transfers.at(key);  // a transfer that ends abandons its fetch
        transfer.fetch = 0;
        transfer.fetched = pull;
        transfer.fetch_over = deps.clock->Now();
        LogDebug("the beginning of a prompt was fetched",
                 {{"request", transfer.trace_id},
                  {"holder", pull.holder()},
                  {"tokens", pull.tokens()},
                  {"result", v1::PrefixPull::Result_Name(pull.result())}});
        shell->PublishKvEvents();
        AskForBlocks();
      });
}

void PrefillRole::Impl::AbandonFetch(Transfer& transfer) {
  if (const uint64_t fetch = std::exchange(transfer.fetch, 0); fetch != 0)
    deps.fetcher->Abandon(fetch);
}

}  // namespace aisp
