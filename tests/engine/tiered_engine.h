// An engine with tiers below its pool. For tests.
#pragma once

#include "tests/engine/small_engine.h"
#include "tests/support/fake_tiers.h"

namespace aisp {

// An engine with tiers, and its owner's loop.
class TieredEngine {
 public:
  TieredEngine(const ProvenanceOptions& model, int32_t host_slots, FakeDisk* disk = nullptr,
               int32_t disk_slots = 0, LayerSink* sink = nullptr, double disk_load_seconds = 0)
      : io(ProvenanceExecutor::LayoutOf(model), host_slots, disk),
        harness(model, Options(host_slots, disk, disk_slots, disk_load_seconds), sink) {
    io.Bind(harness.executor.pool_base());
  }

  // Runs until nothing is left to compute; copies finish when the engine is otherwise idle.
  void Run() {
    for (int i = 0; i < 10000; ++i) {
      const bool moved = harness.Step();
      const bool copying = !io.jobs().empty();
      io.FinishAll();
      harness.engine.PollTiers();
      harness.engine.CheckInvariants();
      if (!moved && !copying) return;
    }
    ADD_FAILURE() << "not idle";
  }
  // The same, but no copy finishes.
  void RunAlone() {
    while (harness.Step()) {
    }
  }
  // One step of this duration.
  bool StepInTime(Duration took) {
    Engine& engine = harness.engine;
    bool moved = false;
    while (engine.CanLaunch()) {
      EXPECT_TRUE(engine.Launch().has_value());
      moved = true;
    }
    if (!engine.InFlight()) return moved;
    harness.clock.Advance(took);
    harness.Take(engine.Collect());
    return true;
  }
  SequenceId Ask(const std::vector<TokenId>& prompt, int32_t tokens = 4) {
    return harness.Add(MakeRequest(prompt, tokens));
  }
  int32_t Cached(SequenceId id) { return harness.engine.Times(id).cached_tokens; }
  TierStats Host() { return harness.engine.tiers()->Stats(TierPlace::kHost); }
  TierStats Disk() { return harness.engine.tiers()->Stats(TierPlace::kDisk); }
  // Other prompts evict every block of the pool.
  void PushOut(uint64_t seed, int32_t tokens = 16 * 16) {
    Ask(SomeTokens(tokens, seed), 1);
    Run();
  }

  FakeTiers io;
  EngineHarness harness;

 private:
  EngineOptions Options(int32_t host_slots, FakeDisk* disk, int32_t disk_slots,
                        double disk_load_seconds) {
    EngineOptions options = Budget(128, 64);
    options.weights_digest = "weights";
    options.tiers.io = &io;
    options.tiers.host_slots = host_slots;
    options.tiers.disk_slots = disk_slots;
    options.tiers.pool_share = 0.5;
    options.tiers.disk_load_seconds = disk_load_seconds;
    if (disk != nullptr) options.tiers.on_disk = disk->Entries();
    return options;
  }
};

// A pool of 16 blocks.
inline ProvenanceOptions Small() { return SmallModel(1, 16); }

}  // namespace aisp
