#include "tests/worker/role_rig.h"

#include <gtest/gtest.h>

#include "common/random.h"
#include "worker/fingerprint.h"

namespace aisp {

std::vector<TokenId> MakePrompt(int n, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<TokenId> prompt;
  for (int i = 0; i < n; ++i) prompt.push_back(static_cast<TokenId>(random.Below(1000)));
  return prompt;
}

std::vector<TokenId> MakeLonger(const std::vector<TokenId>& prompt, int more, uint64_t seed) {
  std::vector<TokenId> tokens = prompt;
  const std::vector<TokenId> tail = MakePrompt(more, seed);
  tokens.insert(tokens.end(), tail.begin(), tail.end());
  return tokens;
}

// --- router ---

void RouterStandIn::Generate(const std::string& worker, const v1::GenerateRequest& request) {
  v1::RouterMessage message;
  *message.mutable_generate() = request;
  Send(worker, std::move(message));
}

void RouterStandIn::Cancel(const std::string& worker, uint64_t request_id) {
  v1::RouterMessage message;
  message.mutable_cancel()->set_request_id(request_id);
  Send(worker, std::move(message));
}

void RouterStandIn::OnMessage(LinkId link, v1::WorkerMessage message) {
  switch (message.body_case()) {
    case v1::WorkerMessage::kRegister: {
      ++registrations;
      registers[message.register_().worker_id()] = message.register_();
      v1::RouterMessage answer;
      if (!refuse_reason.empty()) {
        answer.mutable_refused()->set_reason(refuse_reason);
      } else {
        links[message.register_().worker_id()] = link;
        workers_[link] = message.register_().worker_id();
        answer.mutable_registered();
        if (adapters) *answer.mutable_registered()->mutable_adapters() = *adapters;
      }
      sender_->Send(link, std::move(answer));
      break;
    }
    case v1::WorkerMessage::kTelemetry:
      telemetry[workers_[link]] = message.telemetry();
      break;
    case v1::WorkerMessage::kAdapters:
      adapter_reports[workers_[link]] = message.adapters();
      break;
    case v1::WorkerMessage::kKvEvents:
      kv_events[workers_[link]].push_back(message.kv_events());
      break;
    case v1::WorkerMessage::kTierEvents:
      tier_events[workers_[link]].push_back(message.tier_events());
      break;
    case v1::WorkerMessage::kTokens:
      OnTokens(message.tokens());
      break;
    case v1::WorkerMessage::kKeptAnswers:
      kept_answers.push_back(message.kept_answers());
      break;
    case v1::WorkerMessage::kDraining:
      drainings.push_back(message.draining());
      break;
    default:
      FAIL() << "an empty message";
  }
}

void RouterStandIn::OnTokens(const v1::TokenBatch& batch) {
  batches.push_back(batch);
  for (const v1::TokenEvent& event : batch.events()) {
    Answer& answer = answers[event.request_id()];
    EXPECT_EQ(answer.finishes, 0) << "something came after the end";
    answer.events.push_back(event);
    answer.tokens.insert(answer.tokens.end(), event.tokens().begin(), event.tokens().end());
    if (event.has_timing()) answer.timings.push_back(event.timing());
    if (event.finish() == v1::FINISH_NONE) continue;
    answer.finish = event.finish();
    answer.error = event.error();
    ++answer.finishes;
  }
}

void RouterStandIn::OnLinkDown(LinkId link, const Error&) {
  const auto it = workers_.find(link);
  if (it == workers_.end()) return;
  links.erase(it->second);
  workers_.erase(it);
}

// --- rig ---

RoleRig::RoleRig(const RigOptions& rig_options) : options(rig_options) {
  clock.Set(Instant{1'000'000'000});
  router = std::make_unique<RouterStandIn>(&router_sender_);
  router_links.Listen("router", router.get(), &router_inbox);
  prefills.resize(static_cast<size_t>(options.prefill_workers));
  for (size_t i = 0; i < prefills.size(); ++i) StartPrefill(i, 1);
  StartDecode();
}

RoleRig::~RoleRig() {
  prefills.clear();
  decode.reset();
}

ProvenanceOptions RoleRig::Model(int32_t blocks) const {
  ProvenanceOptions model = options.model;
  model.num_blocks = blocks;
  return model;
}

ProvenanceOptions RoleRig::PrefillModel() const {
  ProvenanceOptions model = Model(options.prefill_blocks);
  if (options.of_prefill) options.of_prefill(model);
  return model;
}

v1::Fingerprint RoleRig::FingerprintOf(const KvLayout& layout) const {
  v1::Fingerprint fingerprint;
  fingerprint.set_protocol_version(1);
  fingerprint.set_model_name("provenance");
  fingerprint.set_weights_digest("w1");
  fingerprint.set_arithmetic(options.mixed_precision ? "cpu f32" : "cuda bf16; weights nvfp4");
  fingerprint.set_mixed_precision(options.mixed_precision);
  *fingerprint.mutable_kv_layout() = DescribeLayout(layout);
  return fingerprint;
}

namespace {

void MakeDevice(RigWorker& worker, const ProvenanceOptions& model, ManualFabric* fabric,
                bool owner_copies) {
  worker.executor = std::make_unique<ProvenanceExecutor>(model);
  worker.transport = std::make_unique<ManualTransport>(fabric, worker.name, owner_copies);
  ASSERT_TRUE(worker.transport->Register({.base = worker.executor->pool_base(),
                                          .bytes = worker.executor->pool_bytes(),
                                          .handle = -1}));
}

WorkerOptions WorkerOptionsOf(const WorkerOptions& base, const std::string& name,
                              uint64_t incarnation, const v1::Fingerprint& fingerprint) {
  WorkerOptions worker = base;
  worker.worker_id = name;
  worker.incarnation = incarnation;
  worker.host_id = "host";
  worker.router_addresses = {"router"};
  if (worker.fingerprint.protocol_version() == 0) worker.fingerprint = fingerprint;
  return worker;
}

}  // namespace

void RoleRig::StartPrefill(size_t i, uint64_t incarnation) {
  auto p = std::make_unique<RigPrefill>();
  p->name = "p" + std::to_string(i);
  MakeDevice(*p, PrefillModel(), &fabric_, options.owner_copies);
  PrefillOptions prefill = options.prefill;
  prefill.pid = 1000 + static_cast<int64_t>(i);
  prefill.horizon_tokens = 2 * options.limits.max_batch_tokens;
  prefill.worker = WorkerOptionsOf(options.prefill.worker, p->name, incarnation,
                                   FingerprintOf(p->executor->kv_layout()));
  prefill.worker.kv_address = p->name;
  p->prefill = std::make_unique<PrefillRole>(prefill);
  EngineOptions engine;
  engine.limits = options.limits;
  engine.weights_digest = "w1";
  engine.between_layers = InStep(p.get());
  if (options.host_slots + options.disk_slots > 0) {
    p->tiers = std::make_unique<FakeTiers>(p->executor->kv_layout(), options.host_slots, &p->disk);
    p->tiers->Bind(p->executor->pool_base());
    engine.tiers.io = p->tiers.get();
    engine.tiers.host_slots = options.host_slots;
    engine.tiers.disk_slots = options.disk_slots;
  }
  p->engine = std::make_unique<Engine>(engine, p->executor.get(), &clock, p->prefill->layer_sink());
  p->routers =
      std::make_unique<RouterLinksInMemory::Dialer>(&router_links, p->prefill.get(), &p->inbox);
  p->connector = std::make_unique<RankedConnector>(std::vector<KvTransport*>{p->transport.get()},
                                                   std::chrono::seconds(1), options.run_connects);
  PrefillDeps deps;
  deps.engine = p->engine.get();
  deps.clock = &clock;
  deps.routers = p->routers.get();
  deps.readers = &kv_sender_;
  deps.connector = p->connector.get();
  deps.metrics = &metrics;
  deps.host_pool = p->executor->pool_base();
  deps.conversion_pool = p->executor->pool_base();
  DecodeOptions standby = options.decode;
  standby.worker = prefill.worker;
  p->standby = std::make_unique<DecodeRole>(standby);
  p->peers =
      std::make_unique<KvLinksInMemory::Dialer>(&kv_links, p->standby->peer_links(), &p->inbox);
  p->standby->Wire({p->engine.get(),
                    &clock,
                    p->routers.get(),
                    p->peers.get(),
                    {p->transport.get()},
                    &death,
                    nullptr,
                    p->executor->pool_base()});
  deps.fetcher = p->standby->fetcher();
  p->prefill->Wire(deps);
  kv_links.Listen(p->name, p->prefill->reader_links(), &p->inbox);
  p->prefill->Start();
  prefills[i] = std::move(p);
}

void RoleRig::StartDecode() {
  auto d = std::make_unique<RigDecode>();
  d->name = "d";
  MakeDevice(*d, Model(options.decode_blocks), &fabric_, options.owner_copies);
  EngineOptions engine;
  engine.limits = options.limits;
  engine.weights_digest = "w1";
  engine.speculator = options.speculator;
  engine.between_layers = InStep(d.get());
  d->engine = std::make_unique<Engine>(engine, d->executor.get(), &clock, nullptr);
  DecodeOptions decode_options = options.decode;
  decode_options.worker =
      WorkerOptionsOf(options.decode.worker, d->name, 7, FingerprintOf(d->executor->kv_layout()));
  d->decode = std::make_unique<DecodeRole>(decode_options);
  d->routers =
      std::make_unique<RouterLinksInMemory::Dialer>(&router_links, d->decode.get(), &d->inbox);
  d->peers =
      std::make_unique<KvLinksInMemory::Dialer>(&kv_links, d->decode->peer_links(), &d->inbox);
  d->decode->Wire({d->engine.get(),
                   &clock,
                   d->routers.get(),
                   d->peers.get(),
                   {d->transport.get()},
                   &death,
                   &metrics,
                   d->executor->pool_base()});
  d->decode->Start();
  decode = std::move(d);
}

void RoleRig::KillPrefill(size_t i, bool proof) {
  const std::string name = prefills[i]->name;
  kv_links.Unlisten(name);
  kv_links.BreakOf(&prefills[i]->inbox);
  router_links.BreakOf(&prefills[i]->inbox);
  prefills[i].reset();
  if (proof) death.dead[name + "/1"] = true;
}

void RoleRig::KillDecode() {
  kv_links.BreakOf(&decode->inbox);
  router_links.BreakOf(&decode->inbox);
  decode.reset();
}

// The other workers continue meanwhile.
std::function<void()> RoleRig::InStep(RigWorker* worker) {
  if (!options.in_step) return nullptr;
  return [this, worker] {
    if (worker->paused || std::exchange(in_step_, true)) return;
    for (const auto& p : prefills) {
      if (p != nullptr && p.get() != worker) TurnOf(*p);
    }
    if (decode != nullptr && decode.get() != worker) TurnOf(*decode);
    while (worker->inbox.DeliverOne()) {
    }
    if (worker->tiers != nullptr && !worker->hold_tiers) worker->tiers->FinishAll();
    worker->role().OnTransport();
    in_step_ = false;
  };
}

bool RoleRig::TurnOf(RigWorker& worker) {
  if (worker.paused) return false;
  bool busy = worker.inbox.DeliverOne();
  while (worker.inbox.DeliverOne()) {
  }
  WorkerRole& role = worker.role();
  if (worker.tiers != nullptr && !worker.hold_tiers) worker.tiers->FinishAll();
  role.OnTransport();
  const Instant now = clock.Now();
  if (auto* p = dynamic_cast<RigPrefill*>(&worker); p != nullptr && now >= p->standby->NextTimer())
    p->standby->OnTimer(now);
  if (now >= role.NextTimer()) {
    role.OnTimer(now);
    EXPECT_GT(role.NextTimer(), now) << worker.name << " would spin on its timer";
  }
  while (role.CanLaunch()) {
    role.Launch();
    busy = true;
  }
  if (role.InFlight()) {
    role.Collect();
    busy = true;
  }
  return busy;
}

bool RoleRig::Turn() {
  bool busy = false;
  while (router_inbox.DeliverOne()) busy = true;
  for (const auto& p : prefills) {
    if (p != nullptr) busy |= TurnOf(*p);
  }
  if (decode != nullptr) busy |= TurnOf(*decode);
  CheckInvariants();
  return busy;
}

bool RoleRig::RunUntil(const std::function<bool()>& done, int turns) {
  for (int i = 0; i < turns; ++i) {
    if (done()) return true;
    Turn();
    clock.Advance(tick);
  }
  return done();
}

void RoleRig::RunFor(Duration time) {
  const Instant end = clock.Now() + time;
  while (clock.Now() < end) {
    Turn();
    clock.Advance(tick);
  }
}

void RoleRig::Attach() {
  ASSERT_TRUE(RunUntil([this] { return router->links.size() == prefills.size() + 1; }));
  RunFor(std::chrono::milliseconds(2));
}

void RoleRig::CheckInvariants() const {
  for (const auto& p : prefills) {
    if (p != nullptr) p->engine->blocks().CheckInvariants();
  }
  if (decode != nullptr) decode->engine->blocks().CheckInvariants();
}

v1::GenerateRequest RoleRig::MakeRequest(uint64_t id, const std::vector<TokenId>& prompt,
                                         uint32_t new_tokens) const {
  v1::GenerateRequest request;
  request.set_request_id(id);
  request.set_trace_id("r" + std::to_string(id));
  *request.mutable_tokens() = {prompt.begin(), prompt.end()};
  request.set_prompt_tokens(static_cast<uint32_t>(prompt.size()));
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(id);
  request.mutable_sampling()->set_num_logprobs(-1);
  request.set_max_new_tokens(new_tokens);
  for (size_t i = 0; i < prefills.size(); ++i) {
    v1::PrefillTarget* target =
        i == 0 ? request.mutable_prefill() : request.add_prefill_fallbacks();
    target->set_worker_id("p" + std::to_string(i));
    target->set_kv_address("p" + std::to_string(i));
  }
  return request;
}

v1::GenerateRequest RoleRig::MakePull(uint64_t id, const std::vector<TokenId>& prompt,
                                      uint32_t new_tokens, size_t holder, bool by_prefill) const {
  v1::GenerateRequest request = MakeRequest(id, prompt, new_tokens);
  if (!by_prefill) request.clear_prefill();
  request.clear_prefill_fallbacks();
  v1::PrefixSource* pull = request.mutable_pull();
  pull->mutable_holder()->set_worker_id("p" + std::to_string(holder));
  pull->mutable_holder()->set_kv_address("p" + std::to_string(holder));
  pull->set_tokens(static_cast<uint32_t>(prompt.size()));
  pull->set_begin_within_us(200'000);
  pull->set_limit_us(1'000'000);
  return request;
}

bool RoleRig::Finished(uint64_t id) const {
  const auto it = router->answers.find(id);
  return it != router->answers.end() && it->second.finishes > 0;
}

void RoleRig::ExpectAnswer(uint64_t id, const std::vector<TokenId>& prompt, uint32_t new_tokens) {
  ASSERT_TRUE(RunUntil([&] { return Finished(id); })) << "request " << id << " did not end";
  const RouterStandIn::Answer& answer = router->answers.at(id);
  EXPECT_EQ(answer.finish, v1::FINISH_LENGTH) << answer.error.message();
  EXPECT_EQ(answer.tokens, ExpectedTokens(Model(options.decode_blocks), prompt,
                                          static_cast<int32_t>(new_tokens), id));
  EXPECT_EQ(answer.finishes, 1);
  EXPECT_EQ(answer.timings.size(), 1u);
}

void RoleRig::ExpectAllBlocksBack() {
  const auto check = [](const RigWorker& worker, int32_t staging = 0) {
    const BlockStats stats = worker.engine->blocks().Stats();
    EXPECT_EQ(stats.pinned, staging) << worker.name;
    EXPECT_EQ(stats.quarantined, 0) << worker.name;
    EXPECT_EQ(worker.engine->blocks().LeasedBlocks(), 0) << worker.name;
    EXPECT_EQ(worker.engine->blocks().Available(), stats.total - staging) << worker.name;
  };
  for (const auto& p : prefills) {
    if (p == nullptr) continue;
    check(*p, p->prefill->staging_blocks());
    EXPECT_EQ(p->prefill->num_transfers(), 0u);
    EXPECT_EQ(p->prefill->num_pushes(), 0u);
    EXPECT_EQ(p->standby->num_leases(), 0u);
  }
  if (decode == nullptr) return;
  check(*decode);
  EXPECT_EQ(decode->decode->num_requests(), 0u);
  EXPECT_EQ(decode->decode->num_leases(), 0u);
}

}  // namespace aisp
