#include <gtest/gtest.h>

#include "common/log.h"
#include "tests/sim/runner.h"

namespace aisp {
namespace {

class Simulation : public testing::Test {
 protected:
  Simulation() : log_({.level = LogLevel::kError, .fd = OpenNullDevice()}) { PrintSeedOnAbort(); }
  LogSession log_;
};

// Long: it lists every event that the seeds must cause.
TEST_F(Simulation, FiveHundredSeedsKeepEveryPromiseAndCoverTheFaults) {
  const SimReport report = RunSeeds(1, 500, /*jobs=*/2, /*trace=*/false);
  EXPECT_EQ(report.seeds, 500u);
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  for (const char* what : {"request ok",
                           "deadline exceeded",
                           "client cancelled",
                           "preemption",
                           "takeover",
                           "takeover in mid-stream",
                           "route remote-prefill",
                           "route local-cheaper",
                           "route local-cached",
                           "first token after remote KV",
                           "first token drawn for a reader",
                           "first token with remote KV",
                           "first token drawn behind remote KV",
                           "first token with remote KV after a takeover",
                           "first token with remote KV and the end",
                           "grant",
                           "grant refused",
                           "revoke",
                           "fence acknowledged",
                           "prefill done",
                           "prefill failed",
                           "prefill worker killed",
                           "prefill worker killed during transfer",
                           "decode worker killed",
                           "decode worker killed during transfer",
                           "prefill worker stopped during transfer beyond the lease",
                           "decode worker stopped",
                           "death proven",
                           "kv link broken",
                           "router link broken",
                           "link stalled",
                           "drained",
                           "drain that waits",
                           "drain that moves at once",
                           "requests handed back",
                           "streams shall move",
                           "request crossed the word of a drain",
                           "router killed",
                           "router replaced",
                           "router drained",
                           "write failed",
                           "block spoiled on its way",
                           "lane fell",
                           "process with a time of its own",
                           "device failed",
                           "zombie in transfer",
                           "rolling update of a worker",
                           "router stopped",
                           "duplicate name refused",
                           "kv link half open",
                           "router link half open",
                           "request refused by a full router link",
                           "request refused by a full kv link",
                           "request of a tenant",
                           "request that yields",
                           "further choice ok",
                           "request with penalties ok",
                           "logprob",
                           "stop string",
                           "slow reader cut off",
                           "verified draft token",
                           "request refused",
                           "request that no router link takes",
                           "request too large for a link",
                           "worker suspended",
                           "router suspended",
                           "lane below the first one taken",
                           "block back from host memory",
                           "block back from a disk",
                           "copy to or from a tier failed",
                           "step that cannot be computed",
                           "request ended by its step",
                           "worker ended by a request",
                           "request that ends workers refused",
                           "request that ends workers is given up",
                           "embedding",
                           "prompt logprobs",
                           "takeover in mid-prompt",
                           "request ended by its row",
                           "long step",
                           "step that blocks its role",
                           "zombie ousted",
                           "worker told that it is ousted",
                           "name probed",
                           "prefill cancelled",
                           "prefill worker stopped",
                           "prefill worker ended by a request",
                           "row failed",
                           "worker that converts KV",
                           "prompt shared with a decode worker",
                           "prompt shared with a prefill worker",
                           "role change begun",
                           "role change called off",
                           "role change during another",
                           "role change during transfer",
                           "role change of the last decode worker refused",
                           "role change refused: not as expected",
                           "role change that nobody may notice",
                           "worker became prefill",
                           "worker became decode",
                           "worker became parked",
                           "request over HTTP ok",
                           "choices over HTTP ok",
                           "whole answer over HTTP",
                           "error in a stream over HTTP",
                           "stop string over HTTP",
                           "comment in a silent stream",
                           "client left over HTTP",
                           "prefix asked for",
                           "route local-pull",
                           "prefix pull FILLED",
                           "prefix brought from a tier for another",
                           "prefix pull MISSED",
                           "prefix pull LATE",
                           "prefix pull REFUSED",
                           "prefix pull FAILED",
                           "piece landed after its grant was revoked",
                           "piece fenced by the pool's owner",
                           "heartbeat in a long step",
                           "worker quiet",
                           "request moved off a drained or quiet worker"}) {
    EXPECT_GT(report.coverage.Get(what), 0u)
        << what << " never happened: the seeds no longer cover it";
  }
  EXPECT_GT(report.coverage.GetPeak("quarantined blocks"), 8u);
}

TEST_F(Simulation, ASeedReplaysExactly) {
  for (uint64_t seed : {1u, 7u, 42u}) EXPECT_EQ(DigestOfSeed(seed), DigestOfSeed(seed)) << seed;
  EXPECT_NE(DigestOfSeed(1), DigestOfSeed(2));
}

}  // namespace
}  // namespace aisp
