// What a worker reports to routers, and when it is unready; tested on whole roles, as routers see
// it.
#include <gtest/gtest.h>

#include <cstring>

#include "common/prefix_hash.h"
#include "tests/worker/role_rig.h"
#include "worker/adapter_keeper.h"

namespace aisp {
namespace {

RigOptions NoPrefill() {
  RigOptions options;
  options.prefill_workers = 0;
  return options;
}

TEST(WorkerShell, RegistersWithIdentityRoleAndFingerprint) {
  RoleRig rig({});
  rig.Attach();
  const v1::Register& p = rig.router->registers.at("p0");
  EXPECT_EQ(p.role(), v1::ROLE_PREFILL);
  EXPECT_EQ(p.kv_address(), "p0");
  EXPECT_EQ(p.incarnation(), 1u);
  ASSERT_EQ(p.transports_size(), 1);
  EXPECT_EQ(p.transports(0), "manual");
  const v1::Register& d = rig.router->registers.at("d");
  EXPECT_EQ(d.role(), v1::ROLE_DECODE);
  EXPECT_EQ(d.fingerprint().model_name(), "provenance");
  EXPECT_EQ(d.fingerprint().kv_layout().block_tokens(), 16u);
}

TEST(WorkerShell, ItIsReadyWhenItHasTriedToLoadTheAdaptersThatAreServed) {
  AdapterKeeper::OnLoaded read;
  AdapterKeeper keeper({}, [&](const std::string&, const std::string&,
                               AdapterKeeper::OnLoaded done) { read = std::move(done); });
  RigOptions options = NoPrefill();
  options.decode.worker.adapters = &keeper;
  RoleRig rig(options);
  keeper.Wire(rig.decode->engine.get());
  v1::AdapterSet served;
  served.set_version(3);
  served.add_adapters()->set_digest("1");
  rig.router->adapters = served;
  rig.Attach();
  EXPECT_TRUE(rig.router->registers.at("d").has_adapters());
  EXPECT_EQ(rig.router->registers.at("d").adapters().set().version(), 0u);
  EXPECT_EQ(rig.router->adapter_reports.at("d").set().version(), 3u);
  EXPECT_FALSE(rig.router->telemetry.at("d").ready());
  EXPECT_NE(rig.router->telemetry.at("d").unready_reason().find("LoRA"), std::string::npos);
  ASSERT_TRUE(read);
  read(NotFound("no such file"));
  rig.RunFor(std::chrono::milliseconds(1));
  EXPECT_TRUE(rig.router->telemetry.at("d").ready());
  EXPECT_EQ(rig.router->adapter_reports.at("d").troubles_size(), 1);
}

TEST(WorkerShell, TelemetryCarriesLoadAndStepSamples) {
  RoleRig rig(NoPrefill());
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 400));
  rig.RunFor(std::chrono::milliseconds(60));
  const v1::Telemetry t = rig.router->telemetry.at("d");
  EXPECT_TRUE(t.ready()) << t.unready_reason();
  EXPECT_EQ(t.incarnation(), 7u);
  EXPECT_EQ(t.running(), 1u);
  EXPECT_EQ(t.total_blocks(), 64u);
  EXPECT_LT(t.free_blocks(), 64u);
  EXPECT_GT(t.steps_total(), 50u);
  EXPECT_LE(t.steps_size(), 64);
  ASSERT_GT(t.steps_size(), 0);
  const v1::StepSample& last = t.steps(t.steps_size() - 1);
  EXPECT_EQ(last.decode_rows(), 1u);
  EXPECT_GT(last.decode_context(), 100u);
  rig.RunFor(std::chrono::milliseconds(60));
  EXPECT_EQ(rig.router->telemetry.at("d").sequence(), t.sequence() + 1);
}

TEST(WorkerShell, SlowPathsAreCountedByOperationAndReason) {
  RoleRig rig(NoPrefill());
  rig.Attach();
  EXPECT_EQ(rig.metrics.Render().find("aisp_slow_path_total"), std::string::npos);
  rig.decode->executor->slow = {{"attend", "an odd head size", "layer 0 attend", 3}};
  rig.RunFor(std::chrono::milliseconds(60));
  rig.decode->executor->slow.front().count = 7;
  rig.decode->executor->slow.push_back({"linear", "an odd width", "logits", 2});
  rig.RunFor(std::chrono::milliseconds(60));
  const std::string text = rig.metrics.Render();
  const auto line = [&](const std::string& op, const std::string& reason) -> std::string {
    const size_t at = text.find("op=\"" + op + "\",reason=\"" + reason + "\"");
    if (at == std::string::npos) return "none";
    const size_t end = text.find('\n', at);
    return text.substr(text.rfind(' ', end) + 1, end - text.rfind(' ', end) - 1);
  };
  EXPECT_EQ(line("attend", "an odd head size"), "7") << text;
  EXPECT_EQ(line("linear", "an odd width"), "2") << text;
}

// Applies the events as a router does; returns the resulting set of units.
std::set<std::string> Follow(const std::vector<v1::KvEventBatch>& batches, uint64_t* next) {
  std::set<std::string> units;
  bool known = false;
  for (const v1::KvEventBatch& batch : batches) {
    if (batch.snapshot()) {
      units.clear();
      *next = batch.first_sequence();
      known = true;
    } else {
      EXPECT_TRUE(known);
      EXPECT_EQ(batch.first_sequence(), *next) << "a gap";
      *next = batch.first_sequence() + static_cast<uint64_t>(batch.events_size());
    }
    for (const v1::KvEvent& event : batch.events()) {
      if (event.kind() == v1::KvEvent::CLEARED) units.clear();
      for (const std::string& hash : event.unit_hashes()) {
        if (event.kind() == v1::KvEvent::STORED) units.insert(hash);
        if (event.kind() == v1::KvEvent::REMOVED) units.erase(hash);
      }
    }
  }
  return units;
}

TEST(WorkerShell, KvEventsHaveNoGapAndASnapshotSaysTheSame) {
  RigOptions options = NoPrefill();
  options.decode_blocks = 16;  // so that blocks are evicted too
  RoleRig rig(options);
  rig.Attach();
  std::vector<TokenId> prompt;
  for (uint64_t id = 1; id <= 12; ++id) {
    prompt = MakePrompt(70, id);
    rig.router->Generate("d", rig.MakeRequest(id, prompt, 3));
    rig.ExpectAnswer(id, prompt, 3);
  }
  rig.RunFor(std::chrono::milliseconds(5));
  const auto batches = rig.router->kv_events.at("d");
  EXPECT_GT(batches.size(), 10u);
  EXPECT_TRUE(batches[0].snapshot());
  uint64_t next = 0;
  const std::set<std::string> followed = Follow(batches, &next);
  EXPECT_FALSE(followed.empty());
  // The last prompt's units are in it, in the wire's byte order.
  for (const Hash128& hash :
       UnitHashes(rig.decode->engine->RootOf(""), std::span(prompt).first(64))) {
    std::string bytes(16, '\0');
    std::memcpy(bytes.data(), &hash.lo, 8);
    std::memcpy(bytes.data() + 8, &hash.hi, 8);
    EXPECT_EQ(followed.count(bytes), 1u);
  }
  rig.router->kv_events.clear();
  v1::RouterMessage ask;
  ask.mutable_kv_snapshot();
  rig.router->Send("d", ask);
  rig.RunFor(std::chrono::milliseconds(2));
  ASSERT_EQ(rig.router->kv_events.at("d").size(), 1u);
  uint64_t snapshot_next = 0;
  EXPECT_EQ(Follow(rig.router->kv_events.at("d"), &snapshot_next), followed);
  EXPECT_EQ(snapshot_next, next);
}

TEST(WorkerShell, ARouterThatComesBackGetsASnapshotFirst) {
  RoleRig rig(NoPrefill());
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(70, 1), 3));
  rig.ExpectAnswer(1, MakePrompt(70, 1), 3);
  rig.router_links.BreakAll();
  rig.RunFor(std::chrono::milliseconds(2));
  rig.router->kv_events.clear();
  ASSERT_TRUE(rig.RunUntil([&] { return !rig.router->kv_events["d"].empty(); }));
  EXPECT_TRUE(rig.router->kv_events["d"][0].snapshot());
  uint64_t next = 0;
  EXPECT_EQ(Follow(rig.router->kv_events["d"], &next).size(), 4u);
  EXPECT_EQ(rig.router->registrations, 2);
}

TEST(WorkerShell, WithoutARouterTheWorkerIsNotReady) {
  RoleRig rig(NoPrefill());
  EXPECT_FALSE(rig.decode->decode->Ready());
  rig.Attach();
  EXPECT_TRUE(rig.decode->decode->Ready());
  rig.router_links.Unlisten("router");
  rig.router_links.BreakAll();
  rig.RunFor(std::chrono::milliseconds(10));
  const Status ready = rig.decode->decode->Ready();
  ASSERT_FALSE(ready);
  EXPECT_NE(ready.error().message.find("router"), std::string::npos);
}

TEST(WorkerShell, AStepThatDoesNotEndMakesTheWorkerUnready) {
  RoleRig rig(NoPrefill());
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(70, 1), 50));
  while (rig.decode->inbox.DeliverOne()) {
  }
  ASSERT_TRUE(rig.decode->decode->CanLaunch());
  rig.decode->decode->Launch();
  EXPECT_TRUE(rig.decode->decode->Ready());
  rig.clock.Advance(std::chrono::seconds(11));
  const Status ready = rig.decode->decode->Ready();
  ASSERT_FALSE(ready);
  EXPECT_NE(ready.error().message.find("no step ended"), std::string::npos);
  rig.decode->decode->Collect();
  EXPECT_TRUE(rig.decode->decode->Ready());
}

TEST(WorkerShell, AnIdleWorkerStaysReady) {
  RoleRig rig(NoPrefill());
  rig.Attach();
  rig.tick = std::chrono::milliseconds(50);
  rig.RunFor(std::chrono::seconds(60));
  EXPECT_TRUE(rig.decode->decode->Ready());
}

// Every block is leased to a writer that owes acknowledgements: the worker must become unready.
TEST(WorkerShell, APoolThatIsAllQuarantineMakesTheWorkerUnready) {
  RigOptions options;
  options.decode_blocks = 8;
  options.decode.lease_base = std::chrono::milliseconds(50);
  options.decode.lease_per_1k_tokens = {};
  RoleRig rig(options);
  rig.Attach();
  rig.prefills[0]->transport->hold = true;
  v1::GenerateRequest request = rig.MakeRequest(1, MakePrompt(120, 1), 4);
  rig.router->Generate("d", request);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.decode->engine->blocks().Stats().quarantined == 8; }));
  EXPECT_TRUE(rig.decode->decode->Ready());
  rig.tick = std::chrono::milliseconds(20);
  rig.RunFor(std::chrono::seconds(12));
  const Status ready = rig.decode->decode->Ready();
  ASSERT_FALSE(ready);
  EXPECT_NE(ready.error().message.find("8 of them quarantined"), std::string::npos)
      << ready.error().message;
  EXPECT_FALSE(rig.router->telemetry["d"].ready());
  rig.prefills[0]->transport->hold = false;
  rig.ExpectAnswer(1, MakePrompt(120, 1), 4);
  rig.RunFor(std::chrono::milliseconds(100));
  EXPECT_TRUE(rig.decode->decode->Ready());
}

}  // namespace
}  // namespace aisp
