// The router with workers that send anything at any time: registrations under names of others,
// tokens for other workers' requests, wrong positions, draining, silence, broken links. Invariants
// for clients: tokens in order, one end, nothing after it, and nothing is left when everybody has
// gone.
#include <memory>
#include <sstream>
#include <vector>

#include "common/check.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/router/router_harness.h"

namespace aisp {
namespace {

constexpr int kMaxTurns = 400;
constexpr const char* kNames[] = {"d0", "d1", "p0", "p1", ""};

// Checks these invariants for one request.
class Client final : public RequestObserver {
 public:
  Client(uint32_t prompt, uint32_t max_new) : next_(prompt), end_(prompt + max_new) {}

  void OnRouted(const RouteDecision&) override { AISP_CHECK(!over_); }
  void OnTokens(const v1::TokenEvent& event) override {
    AISP_CHECK(!over_);
    AISP_CHECK(event.first_position() == next_);
    next_ += static_cast<uint32_t>(event.tokens_size());
    AISP_CHECK(next_ <= end_);
    AISP_CHECK(event.logprobs_size() == 0 || event.logprobs_size() == event.tokens_size());
  }
  void OnFinish(v1::FinishReason reason, const Error& error, Duration) override {
    AISP_CHECK(!over_);
    AISP_CHECK(reason == v1::FINISH_STOP || reason == v1::FINISH_LENGTH ||
               reason == v1::FINISH_ERROR || reason == v1::FINISH_CANCELLED);
    AISP_CHECK(reason != v1::FINISH_ERROR || error.code != Code::kOk);
    over_ = true;
  }
  void Forget() { over_ = true; }  // cancelled: no call follows
  bool over() const { return over_; }

  RequestId id;

 private:
  uint32_t next_;
  const uint32_t end_;
  bool over_ = false;
};

class Play {
 public:
  explicit Play(std::string_view input) : bytes_(input), h_(Options()) {}

  void Run() {
    for (int i = 0; i < kMaxTurns && !bytes_.spent(); ++i) Turn();
    for (const LinkId link : links_) h_.router.OnLinkDown(link, {Code::kUnavailable, "gone"});
    h_.Advance(std::chrono::seconds(4000));
    for (const auto& client : clients_) AISP_CHECK(client->over());
    AISP_CHECK(h_.router.Idle() && h_.router.Workers().empty());
    AISP_CHECK(h_.router.NextTimer() > h_.clock.Now());
  }

 private:
  static RouterOptions Options() {
    RouterOptions options;
    options.max_inflight = 16;
    options.max_prefix_units_per_worker = 64;
    return options;
  }

  void Turn() {
    switch (bytes_.Below(16)) {
      case 0:
        return Attach(v1::ROLE_DECODE);
      case 1:
        return Attach(v1::ROLE_PREFILL);
      case 2:
      case 3:
        return Submit();
      case 4:
      case 5:
      case 6:
        return SayTokens();
      case 7:
        return Say([this](v1::WorkerMessage* m) { FillTelemetry(m->mutable_telemetry()); });
      case 8:
        return Say([this](v1::WorkerMessage* m) {
          const auto tier = static_cast<v1::KvTier>(bytes_.Below(4));
          v1::KvEventBatch* const batch =
              tier == v1::KV_TIER_POOL ? m->mutable_kv_events() : m->mutable_tier_events();
          batch->set_tier(tier);
          FillKvEvents(batch);
        });
      case 9:
        return Say([this](v1::WorkerMessage* m) {
          m->mutable_draining()->set_move(bytes_.Flip());
          for (size_t n = bytes_.Below(4); n > 0; --n)
            m->mutable_draining()->add_not_started(bytes_.Number());
        });
      case 10:
        return Say([this](v1::WorkerMessage* m) {
          v1::Heartbeat& beat = *m->mutable_heartbeat();
          beat.set_incarnation(bytes_.Number());
          beat.set_steps_ended(bytes_.Number());
          beat.set_step_age_ns(bytes_.Number());
          beat.set_step_expected_ns(bytes_.Number());
        });
      case 11:
        if (bytes_.Flip())
          return Say([this](v1::WorkerMessage* m) {
            m->mutable_probe_answer()->set_nonce(bytes_.Number());
          });
        return Say([this](v1::WorkerMessage* m) {
          // Any bytes that parse as a message.
          if (!m->ParseFromString(std::string(bytes_.Text(200)))) m->Clear();
        });
      case 12:
        return Break();
      case 13:
        return EndOne();
      case 14:
        h_.Advance(std::chrono::milliseconds(bytes_.Below(8) * bytes_.Below(256)));
        return;
      default:
        return Operate();
    }
  }

  void Attach(v1::Role role) {
    if (links_.size() >= 24) return;
    v1::Register r = h_.Registration(bytes_.Pick(kNames), role, 1 + bytes_.Below(4));
    switch (bytes_.Below(8)) {
      case 0:
        r.set_incarnation(bytes_.Number());
        break;
      case 1:
        r.set_max_sequence_tokens(bytes_.Number32());
        r.set_max_running(bytes_.Number32());
        r.set_max_batch_tokens(bytes_.Number32());
        r.set_max_prefill_chunk(bytes_.Number32());
        break;
      case 2:
        r.mutable_fingerprint()->mutable_kv_layout()->set_block_tokens(bytes_.Number32());
        break;
      case 3:
        r.set_kv_address(std::string(bytes_.Text(32)));
        r.set_worker_id(std::string(bytes_.Text(32)));
        break;
      default:
        break;
    }
    links_.push_back(h_.Attach(r));
    if (bytes_.Flip()) h_.Report(links_.back(), h_.ReadyTelemetry(r.incarnation()));
  }

  LinkId AnyLink() { return links_[bytes_.Below(links_.size())]; }

  template <typename Fill>
  void Say(const Fill& fill) {
    if (links_.empty()) return;
    const LinkId link = AnyLink();
    v1::WorkerMessage message;
    fill(&message);
    h_.router.OnMessage(link, std::move(message));
  }

  void FillTelemetry(v1::Telemetry* t) {
    *t = h_.ReadyTelemetry(1 + bytes_.Below(4));
    t->set_sequence(bytes_.Number());
    t->set_ready(bytes_.Below(4) != 0);
    t->set_draining(bytes_.Below(8) == 1);
    t->set_drained(bytes_.Below(8) == 1);
    t->set_running(bytes_.Number32());
    t->set_waiting(bytes_.Number32());
    t->set_queued_prefill_tokens(bytes_.Number());
    t->set_queued_prefill_context(bytes_.Number());
    t->set_prefill_age_ns(bytes_.Number());
    t->set_free_blocks(bytes_.Number32());
    t->set_total_blocks(bytes_.Number32());
    for (size_t n = bytes_.Below(5); n > 0; --n) {
      v1::StepSample& step = *t->add_steps();
      step.set_prefill_tokens(bytes_.Number32());
      step.set_decode_rows(bytes_.Number32());
      step.set_decode_context(bytes_.Number());
      step.set_prefill_context(bytes_.Number());
      step.set_duration_ns(bytes_.Number());
    }
    const uint64_t bits = bytes_.Number();
    double speed = 0;
    std::memcpy(&speed, &bits, sizeof(speed));
    t->set_transfer_bytes_per_s(speed);
  }

  void FillKvEvents(v1::KvEventBatch* batch) {
    batch->set_incarnation(1 + bytes_.Below(3));
    batch->set_first_sequence(bytes_.Number());
    batch->set_snapshot(bytes_.Flip());
    for (size_t n = bytes_.Below(5); n > 0; --n) {
      v1::KvEvent& event = *batch->add_events();
      event.set_kind(static_cast<v1::KvEvent::Kind>(bytes_.Below(5)));
      for (size_t hashes = bytes_.Below(40); hashes > 0; --hashes)
        event.add_unit_hashes(
            std::string(bytes_.Below(8) == 7 ? 15 : 16, static_cast<char>(bytes_.Byte())));
    }
  }

  // Prefill workers that it was sent to, or that it was not.
  void SayLost(const v1::GenerateRequest& request, v1::TokenEvent* event) {
    *event->mutable_lost_prefill() = request.prefill_fallbacks();
    if (bytes_.Flip() && request.has_prefill()) *event->add_lost_prefill() = request.prefill();
    if (bytes_.Below(4) == 3) event->add_lost_prefill()->set_worker_id(bytes_.Pick(kNames));
  }

  // Mostly for a request that is on this link, at about the right position.
  void SayTokens() {
    if (links_.empty()) return;
    const LinkId link = AnyLink();
    const auto asked = h_.Generates(link);
    v1::WorkerMessage message;
    for (size_t n = 1 + bytes_.Below(3); n > 0; --n) {
      v1::TokenEvent& event = *message.mutable_tokens()->add_events();
      if (!asked.empty() && bytes_.Below(8) != 7) {
        const v1::GenerateRequest& request =
            asked[bytes_.Below(std::min<size_t>(asked.size(), 256))];
        event.set_request_id(request.request_id());
        event.set_first_position(request.prompt_tokens() + static_cast<uint32_t>(bytes_.Below(6)));
        if (bytes_.Below(8) == 7) SayLost(request, &event);
      } else {
        event.set_request_id(bytes_.Number());
        event.set_first_position(bytes_.Number32());
      }
      for (size_t tokens = bytes_.Below(6); tokens > 0; --tokens)
        event.add_tokens(bytes_.Signed32());
      for (size_t logprobs = bytes_.Below(8) == 7 ? 3 : 0; logprobs > 0; --logprobs)
        event.add_logprobs()->add_top_ids(bytes_.Signed32());
      if (bytes_.Flip()) continue;
      event.set_finish(static_cast<v1::FinishReason>(bytes_.Below(7)));
      event.mutable_error()->set_code(bytes_.Signed32());
      event.mutable_error()->set_retryable(bytes_.Flip());
      event.mutable_error()->set_fault(static_cast<v1::Fault>(bytes_.Below(6)));
      event.set_handed_back(bytes_.Below(4) == 3);
      event.mutable_timing()->set_queue_ns(static_cast<int64_t>(bytes_.Number()));
    }
    h_.router.OnMessage(link, std::move(message));
  }

  void Submit() {
    const int prompt = 1 + static_cast<int>(bytes_.Below(100));
    const auto max_new = 1 + static_cast<uint32_t>(bytes_.Below(20));
    RouterRequest request = h_.Request(prompt, max_new);
    request.prefill = static_cast<PrefillPreference>(bytes_.Below(3));
    request.timeout = std::chrono::milliseconds(bytes_.Below(256) * 20);
    request.priority = bytes_.Signed32();
    clients_.push_back(std::make_unique<Client>(static_cast<uint32_t>(prompt), max_new));
    Client& client = *clients_.back();
    const auto id = h_.router.Submit(std::move(request), &client, &h_.retry_after);
    if (id) {
      client.id = *id;
    } else {
      AISP_CHECK(!client.over());
      client.Forget();
    }
  }

  void EndOne() {
    if (clients_.empty()) return;
    Client& client = *clients_[bytes_.Below(std::min<size_t>(clients_.size(), 256))];
    if (client.over()) return;
    client.Forget();
    bytes_.Flip() ? h_.router.Cancel(client.id) : h_.router.Complete(client.id);
  }

  void Break() {
    if (links_.empty()) return;
    const size_t which = bytes_.Below(links_.size());
    const LinkId link = links_[which];
    links_.erase(links_.begin() + static_cast<ptrdiff_t>(which));
    h_.router.OnLinkDown(link, {Code::kUnavailable, "broken"});
  }

  void Operate() {
    const uint8_t what = bytes_.Byte();
    if (what == 255) return h_.router.BeginDrain();
    (void)h_.router.DrainWorker(bytes_.Pick(kNames), (what & 1) != 0, (what & 2) != 0);
  }

  ByteSource bytes_;
  RouterHarness h_;
  std::vector<LinkId> links_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace

void FuzzOne(std::string_view input) { Play(input).Run(); }

}  // namespace aisp
