#include "tests/router/router_harness.h"

#include <cstring>
#include <numeric>
#include <sstream>

#include "common/prefix_hash.h"

namespace aisp {

RouterHarness::RouterHarness(const RouterOptions& options)
    : router(options, Fingerprint(), &clock, /*seed=*/7, &sender, &metrics) {
  clock.Set(Instant{1'000'000'000});
}

v1::Fingerprint RouterHarness::Fingerprint() {
  v1::Fingerprint f;
  f.set_protocol_version(1);
  f.set_model_name("story");
  f.set_weights_digest("w1");
  f.set_tokenizer_digest("t1");
  f.set_template_digest("c1");
  f.mutable_kv_layout()->set_num_layers(4);
  f.mutable_kv_layout()->set_num_kv_heads(2);
  f.mutable_kv_layout()->set_head_dim(32);
  f.mutable_kv_layout()->set_block_tokens(16);
  f.mutable_kv_layout()->set_dtype("f32");
  f.mutable_kv_layout()->set_num_blocks(100);
  return f;
}

v1::Register RouterHarness::Registration(const std::string& id, v1::Role role,
                                         uint64_t incarnation) const {
  v1::Register r;
  r.set_worker_id(id);
  r.set_incarnation(incarnation);
  r.set_role(role);
  *r.mutable_fingerprint() = Fingerprint();
  if (role == v1::ROLE_PREFILL) r.set_kv_address(id + ":kv");
  r.set_host_id("host");
  r.set_max_sequence_tokens(4096);
  r.set_max_running(8);
  return r;
}

LinkId RouterHarness::Attach(const v1::Register& registration) {
  const LinkId link(next_link_++);
  router.OnLinkUp(link, "peer");
  v1::WorkerMessage message;
  *message.mutable_register_() = registration;
  router.OnMessage(link, message);
  return link;
}

v1::Telemetry RouterHarness::ReadyTelemetry(uint64_t incarnation) const {
  v1::Telemetry t;
  t.set_incarnation(incarnation);
  t.set_ready(true);
  t.set_free_blocks(1000);
  t.set_total_blocks(1000);
  return t;
}

void RouterHarness::Report(LinkId link, const v1::Telemetry& telemetry) {
  v1::WorkerMessage message;
  *message.mutable_telemetry() = telemetry;
  message.mutable_telemetry()->set_sequence(telemetry_sequence_++);
  router.OnMessage(link, message);
}

LinkId RouterHarness::AddDecode(const std::string& id, uint64_t incarnation) {
  const LinkId link = Attach(Registration(id, v1::ROLE_DECODE, incarnation));
  Report(link, ReadyTelemetry(incarnation));
  return link;
}

LinkId RouterHarness::AddPrefill(const std::string& id, uint64_t incarnation) {
  const LinkId link = Attach(Registration(id, v1::ROLE_PREFILL, incarnation));
  Report(link, ReadyTelemetry(incarnation));
  return link;
}

void RouterHarness::Store(LinkId link, const std::vector<TokenId>& tokens, uint64_t first_sequence,
                          bool snapshot, const std::string& scope, v1::KvTier tier) {
  v1::WorkerMessage message;
  const bool pool = tier == v1::KV_TIER_POOL;
  v1::KvEventBatch& batch = pool ? *message.mutable_kv_events() : *message.mutable_tier_events();
  batch.set_tier(tier);
  batch.set_incarnation(1);
  batch.set_first_sequence(first_sequence);
  batch.set_snapshot(snapshot);
  v1::KvEvent& event = *batch.add_events();
  event.set_kind(v1::KvEvent::STORED);
  for (const Hash128& hash : UnitHashes(PrefixRoot("w1;kv f32", "", "", scope), tokens)) {
    std::string bytes(16, '\0');
    std::memcpy(bytes.data(), &hash.lo, 8);
    std::memcpy(bytes.data() + 8, &hash.hi, 8);
    event.add_unit_hashes(bytes);
  }
  router.OnMessage(link, message);
}

RouterRequest RouterHarness::Request(int prompt_tokens, uint32_t max_new_tokens) const {
  RouterRequest request;
  request.trace_id = "trace";
  std::vector<TokenId> prompt(static_cast<size_t>(prompt_tokens));
  std::iota(prompt.begin(), prompt.end(), 100);
  request.tokens = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  return request;
}

Result<RequestId> RouterHarness::Submit(RouterRequest request, RecordingObserver* observer) {
  observer->next_position = static_cast<uint32_t>(request.tokens.size());
  return router.Submit(std::move(request), observer, &retry_after);
}

void RouterHarness::Tokens(LinkId link, uint64_t wire_id, uint32_t first_position,
                           const std::vector<TokenId>& tokens, v1::FinishReason finish) {
  v1::WorkerMessage message;
  v1::TokenEvent& event = *message.mutable_tokens()->add_events();
  event.set_request_id(wire_id);
  event.set_first_position(first_position);
  event.mutable_tokens()->Add(tokens.begin(), tokens.end());
  event.set_finish(finish);
  router.OnMessage(link, message);
}

void RouterHarness::Fail(LinkId link, uint64_t wire_id, Code code, bool retryable) {
  v1::WorkerMessage message;
  v1::TokenEvent& event = *message.mutable_tokens()->add_events();
  event.set_request_id(wire_id);
  event.set_finish(v1::FINISH_ERROR);
  event.mutable_error()->set_code(static_cast<int>(code));
  event.mutable_error()->set_message("made to fail");
  event.mutable_error()->set_retryable(retryable);
  router.OnMessage(link, message);
}

void RouterHarness::Advance(Duration d) {
  const Instant end = clock.Now() + d;
  while (router.NextTimer() <= end) {
    clock.Set(std::max(clock.Now(), router.NextTimer()));
    router.OnTimer(clock.Now());
  }
  clock.Set(end);
}

std::vector<v1::GenerateRequest> RouterHarness::Generates(LinkId link) const {
  std::vector<v1::GenerateRequest> out;
  auto it = sender.sent.find(link);
  if (it == sender.sent.end()) return out;
  for (const v1::RouterMessage& m : it->second) {
    if (m.has_generate()) out.push_back(m.generate());
  }
  return out;
}

int RouterHarness::Count(LinkId link, v1::RouterMessage::BodyCase kind) const {
  int n = 0;
  auto it = sender.sent.find(link);
  if (it == sender.sent.end()) return 0;
  for (const v1::RouterMessage& m : it->second) n += m.body_case() == kind ? 1 : 0;
  return n;
}

bool RouterHarness::HasMetric(const std::string& line_start, const std::string& value) const {
  std::istringstream lines(metrics.Render());
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(line_start, 0) == 0 && line.substr(line.rfind(' ') + 1) == value) return true;
  }
  return false;
}

}  // namespace aisp
