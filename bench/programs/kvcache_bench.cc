// Cost of the BlockManager's bookkeeping. For moving blocks between processes: `aisp bench kv`.

#include <vector>

#include "bench/programs/report.h"
#include "common/check.h"
#include "common/clock.h"
#include "kvcache/block_manager.h"

namespace aisp {
namespace {

constexpr int32_t kBlocks = 128;

struct Costs {
  Duration reserve{}, publish{}, unpin{}, match{};
};

// Sequences of 128 blocks through a full pool, so that every reservation evicts.
void BenchBlockManager() {
  BlockManager::Options options;
  options.layout = {
      .num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .block_tokens = 16, .num_blocks = 65536};
  BlockManager manager(options);
  const SteadyClock clock;
  const Hash128 root{1, 2};
  std::vector<TokenId> tokens(kBlocks * 16);
  constexpr int kWarm = 1000, kRounds = 5000;
  Costs costs;
  for (int round = 0; round < kWarm + kRounds; ++round) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<TokenId>(static_cast<size_t>(round) * 7 + i);
    if (round == kWarm) costs = {};
    const Instant t0 = clock.Now();
    const std::vector<BlockId> blocks = manager.Reserve(kBlocks)->Take(PinKind::kSequence);
    const Instant t1 = clock.Now();
    manager.Publish(root, tokens, blocks, 0);
    const Instant t2 = clock.Now();
    manager.Unpin(blocks, PinKind::kSequence);
    const Instant t3 = clock.Now();
    const std::vector<BlockId> match = manager.MatchAndPin(root, tokens, INT32_MAX);
    const Instant t4 = clock.Now();
    AISP_CHECK(match.size() == kBlocks);
    manager.Unpin(match, PinKind::kSequence);
    uint64_t first = 0;
    manager.TakeEvents(&first);
    costs.reserve += t1 - t0;
    costs.publish += t2 - t1;
    costs.unpin += t3 - t2;
    costs.match += t4 - t3;
  }
  const auto report = [](const char* what, Duration total) {
    ReportBench(fmt::format("blocks/{}_128", what), static_cast<double>(total.count()) / kRounds,
                "ns");
  };
  report("reserve_evicting", costs.reserve);
  report("publish", costs.publish);
  report("unpin", costs.unpin);
  report("match", costs.match);
}

}  // namespace
}  // namespace aisp

int main() {
  aisp::BenchBlockManager();
  return 0;
}
