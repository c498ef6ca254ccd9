// A decode worker whose router and prefill worker send anything: meaningless requests, answers to
// grants that were never requested, wrong counts, messages twice, late or never, broken links, and
// processes that die with and without proof. Invariants: its block accounting is consistent at
// every moment, it never spins, and when all peers have gone no block is missing.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "common/check.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kMaxTurns = 300;

class Play {
 public:
  explicit Play(std::string_view input) : bytes_(input), rig_(Options()) {
    rig_.router_links.on_up = [this](v1::WorkerMessage& m) { return FromWorker(&m); };
    rig_.kv_links.on_down = [this](v1::PrefillToDecode& m) {
      const bool kept = FromPrefill(&m);
      if (m.has_hello())
        writers_.insert(m.hello().worker_id() + "/" + std::to_string(m.hello().incarnation()));
      return kept;
    };
    rig_.Attach();
  }

  void Run() {
    hostile_ = true;
    for (int i = 0; i < kMaxTurns && !bytes_.spent(); ++i) Turn();
    hostile_ = false;
    for (const uint64_t id : ids_) Cancel(id);
    for (int i = 0; i < 20; ++i) rig_.Turn();
    // A writer that is proven dead holds nothing.
    for (const std::string& writer : writers_) rig_.death.dead[writer] = true;
    if (rig_.prefills[0] != nullptr) rig_.KillPrefill(0, true);
    rig_.tick = milliseconds(50);
    // Longer than a lease and the longest timeout of any request here.
    rig_.RunFor(seconds(30));
    const BlockManager& blocks = rig_.decode->engine->blocks();
    AISP_CHECK(rig_.decode->decode->num_requests() == 0);
    AISP_CHECK(rig_.decode->decode->num_leases() == 0);
    AISP_CHECK(blocks.Stats().pinned == 0 && blocks.Stats().quarantined == 0);
    AISP_CHECK(blocks.LeasedBlocks() == 0 && blocks.Available() == blocks.Stats().total);
    AISP_CHECK(!testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed());
  }

 private:
  static RigOptions Options() {
    RigOptions options;
    options.decode.lease_base = seconds(2);
    return options;
  }

  void Turn() {
    switch (bytes_.Below(12)) {
      case 0:
      case 1:
        return Ask();
      case 2:
        return AskNonsense();
      case 3:
        return Cancel(AnyId());
      case 4:
        return Nonsense();
      case 5:
      case 6:
        return PrefillSays();
      case 7:
        rig_.clock.Advance(milliseconds(bytes_.Below(200)));
        return;
      case 8:
        return LivesAndDeaths();
      default:
        for (size_t n = 1 + bytes_.Below(12); n > 0; --n) {
          rig_.Turn();
          rig_.clock.Advance(rig_.tick);
        }
    }
  }

  uint64_t AnyId() {
    if (ids_.empty() || bytes_.Below(8) == 7) return bytes_.Number();
    auto it = ids_.begin();
    std::advance(it, static_cast<ptrdiff_t>(bytes_.Below(std::min<size_t>(ids_.size(), 256))));
    return *it;
  }

  void SendAsRouter(v1::RouterMessage message) {
    if (rig_.router->links.count("d") != 0) rig_.router->Send("d", std::move(message));
  }

  void Cancel(uint64_t id) {
    v1::RouterMessage message;
    message.mutable_cancel()->set_request_id(id);
    SendAsRouter(std::move(message));
  }

  void Ask() {
    if (ids_.size() >= 64) return;
    const uint64_t id = ++last_id_;
    v1::GenerateRequest request =
        rig_.MakeRequest(id, MakePrompt(1 + static_cast<int>(bytes_.Below(90)), bytes_.Below(4)),
                         1 + static_cast<uint32_t>(bytes_.Below(12)));
    if (bytes_.Flip()) request.clear_prefill();
    request.set_timeout_ms(static_cast<int64_t>(bytes_.Below(256)) * 20 + 1);
    // Prefill workers hold the prompts that they have prefilled.
    if (bytes_.Below(4) == 3) AddPull(&request);
    Generate(request);
  }

  void AddPull(v1::GenerateRequest* request) {
    v1::PrefixSource& pull = *request->mutable_pull();
    pull.mutable_holder()->set_worker_id("p0");
    pull.mutable_holder()->set_kv_address(bytes_.Below(8) == 7 ? "nowhere" : "p0");
    pull.set_tokens(bytes_.Flip() ? 4096 : bytes_.Number32());
    pull.set_begin_within_us(bytes_.Flip() ? 50'000 : static_cast<int64_t>(bytes_.Number()));
    pull.set_limit_us(bytes_.Flip() ? 200'000 : static_cast<int64_t>(bytes_.Number()));
  }

  // A request whose fields have hostile values.
  void AskNonsense() {
    if (ids_.size() >= 64) return;
    v1::GenerateRequest request;
    // Sometimes the id of a running request.
    request.set_request_id(bytes_.Flip() ? ++last_id_ : AnyId());
    for (size_t n = bytes_.Below(64); n > 0; --n) request.add_tokens(bytes_.Signed32());
    request.set_prompt_tokens(bytes_.Number32());
    request.set_max_new_tokens(bytes_.Number32());
    request.set_min_new_tokens(bytes_.Number32());
    request.set_timeout_ms(1 + static_cast<int64_t>(bytes_.Number() % 20'000));
    request.set_priority(bytes_.Signed32());
    request.set_choice(bytes_.Number32());
    request.set_prompt_id(bytes_.Below(4) == 3 ? bytes_.Number() : 0);
    v1::SamplingParams& s = *request.mutable_sampling();
    s.set_temperature(Float());
    s.set_top_p(Float());
    s.set_top_k(bytes_.Signed32());
    s.set_num_logprobs(bytes_.Signed32());
    s.set_repetition_penalty(Float());
    s.set_max_draft_tokens(bytes_.Number32());
    for (size_t n = bytes_.Below(3); n > 0; --n)
      (*s.mutable_logit_bias())[bytes_.Signed32()] = Float();
    request.mutable_tenant()->set_weight(bytes_.Number32());
    request.mutable_tenant()->set_rank(bytes_.Signed32());
    for (size_t n = bytes_.Below(3); n > 0; --n) {
      v1::PrefillTarget& target = *request.add_prefill_fallbacks();
      target.set_worker_id(bytes_.Flip() ? "p0" : "d");
      target.set_kv_address(bytes_.Flip() ? "p0" : "nowhere");
      target.set_incarnation(bytes_.Number());
    }
    if (bytes_.Flip()) *request.mutable_prefill() = rig_.MakeRequest(1, {1}, 1).prefill();
    if (bytes_.Below(4) == 3) AddPull(&request);
    Generate(request);
  }

  float Float() {
    const uint32_t bits = bytes_.Number32();
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  void Generate(const v1::GenerateRequest& request) {
    // The test cannot track an id that is used twice.
    if (!ids_.insert(request.request_id()).second) untold_.insert(request.request_id());
    v1::RouterMessage message;
    *message.mutable_generate() = request;
    SendAsRouter(std::move(message));
  }

  void Nonsense() {
    v1::RouterMessage message;
    switch (bytes_.Below(6)) {
      case 0:
        message.mutable_kv_snapshot();
        break;
      case 1:
        message.mutable_probe()->set_nonce(bytes_.Number());
        break;
      case 2:
        message.mutable_shared_prompt()->set_prompt_id(bytes_.Number());
        for (size_t n = bytes_.Below(40); n > 0; --n)
          message.mutable_shared_prompt()->add_tokens(bytes_.Signed32());
        break;
      case 3:
        message.mutable_drop_prompt()->set_prompt_id(bytes_.Number());
        break;
      case 4:
        message.mutable_registered()->set_telemetry_interval_ms(bytes_.Number32());
        message.mutable_registered()->set_silence_limit_ms(bytes_.Number32());
        break;
      default:
        if (!message.ParseFromString(std::string(bytes_.Text(200)))) message.Clear();
        // These end the worker's service, as an operator may; after them nothing is left to test.
        if (message.has_drain() || message.has_refused() || message.has_router_draining()) return;
        if (message.has_generate()) return Generate(message.generate());
    }
    SendAsRouter(std::move(message));
  }

  // A message that no prefill worker has a reason to send, on a link that may exist.
  void PrefillSays() {
    v1::PrefillToDecode message;
    Scramble(&message, bytes_.Below(8));
    const auto links = static_cast<size_t>(rig_.kv_links.dials());
    if (links == 0) return;
    KvLinksInMemory::Sender(&rig_.kv_links)
        .Send(LinkId(1 + bytes_.Below(std::min<size_t>(links, 256))), std::move(message));
  }

  void Scramble(v1::PrefillToDecode* message, size_t kind) {
    const auto number = [&] { return bytes_.Number(); };
    switch (kind) {
      case 0:
        message->mutable_need()->set_transfer_id(number());
        message->mutable_need()->set_held_tokens(bytes_.Number32());
        return;
      case 1: {
        v1::PrefillDone& done = *message->mutable_done();
        done.set_transfer_id(number());
        done.set_epoch(number());
        done.set_token_layers(number());
        done.set_prefill_cached_tokens(bytes_.Number32());
        done.set_queue_ns(static_cast<int64_t>(number()));
        done.set_prefill_ns(static_cast<int64_t>(number()));
        done.set_transfer_tail_ns(static_cast<int64_t>(number()));
        done.set_blocks(bytes_.Number32());
        return;
      }
      case 2:
        message->mutable_failed()->set_transfer_id(number());
        message->mutable_failed()->mutable_error()->set_code(bytes_.Signed32());
        message->mutable_failed()->mutable_error()->set_retryable(bytes_.Flip());
        message->mutable_failed()->mutable_error()->set_fault(
            static_cast<v1::Fault>(bytes_.Below(6)));
        return;
      case 3:
        message->mutable_fence()->set_epoch(number());
        return;
      case 4: {
        v1::KvHelloAck& hello = *message->mutable_hello();
        hello.set_worker_id(bytes_.Flip() ? "p0" : std::string(bytes_.Text(16)));
        hello.set_incarnation(number());
        hello.set_transport(bytes_.Flip() ? "manual" : std::string(bytes_.Text(16)));
        hello.set_lane_token(std::string(bytes_.Text(16)));
        hello.set_pid(static_cast<int64_t>(number()));
        hello.set_takes_grants(bytes_.Flip());
        return;
      }
      case 5:
        message->mutable_refused()->set_reason("no");
        return;
      case 6:
        message->mutable_draining();
        return;
      default:
        if (!message->ParseFromString(std::string(bytes_.Text(200)))) message->Clear();
    }
  }

  // The messages of an honest prefill worker, sent to a dishonest peer.
  bool FromPrefill(v1::PrefillToDecode* message) {
    if (!hostile_) return true;
    switch (bytes_.Below(8)) {
      case 0:
        return false;
      case 1:
        if (message->has_done()) message->mutable_done()->set_token_layers(bytes_.Number());
        return true;
      case 2:
        if (message->has_done()) message->mutable_done()->set_epoch(bytes_.Number());
        return true;
      case 3:
        if (message->has_need()) message->mutable_need()->set_transfer_id(bytes_.Number());
        return true;
      case 4:
        Scramble(message, bytes_.Below(8));
        return true;
      default:
        return true;
    }
  }

  bool FromWorker(v1::WorkerMessage* message) {
    if (message->has_probe_answer() || message->has_heartbeat()) return false;
    if (!message->has_tokens()) return true;
    v1::TokenBatch kept;
    for (const v1::TokenEvent& event : message->tokens().events()) {
      if (untold_.count(event.request_id()) == 0) *kept.add_events() = event;
    }
    *message->mutable_tokens() = kept;
    return kept.events_size() > 0;
  }

  void LivesAndDeaths() {
    switch (bytes_.Below(6)) {
      case 0:
        if (rig_.prefills[0] != nullptr) rig_.KillPrefill(0, bytes_.Flip());
        return;
      case 1:
        if (rig_.prefills[0] == nullptr && incarnation_ < 9) rig_.StartPrefill(0, ++incarnation_);
        return;
      case 2:
        if (rig_.prefills[0] != nullptr) rig_.prefills[0]->paused = bytes_.Flip();
        return;
      case 3:
        if (rig_.prefills[0] != nullptr) rig_.prefills[0]->transport->hold = bytes_.Flip();
        return;
      case 4:
        rig_.kv_links.BreakAll();
        return;
      default:
        rig_.router_links.BreakAll();
    }
  }

  ByteSource bytes_;
  RoleRig rig_;
  bool hostile_ = false;
  std::set<uint64_t> ids_, untold_;
  std::set<std::string> writers_;  // that sent a hello, under whatever name
  uint64_t last_id_ = 0, incarnation_ = 1;
};

}  // namespace

void FuzzOne(std::string_view input) { Play(input).Run(); }

}  // namespace aisp
