// A router with recorded outgoing messages, a manual clock, and workers that exist only as
// messages.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "router/router.h"

namespace aisp {

class RecordingSender final : public LinkSender<v1::RouterMessage> {
 public:
  void Send(LinkId link, v1::RouterMessage message) override {
    sent[link].push_back(std::move(message));
  }
  Status Offer(LinkId link, v1::RouterMessage message) override {
    const auto full = refuses.find(link);
    if (full != refuses.end()) return tl::unexpected(full->second);
    Send(link, std::move(message));
    return {};
  }
  void Close(LinkId link) override { closed.insert(link); }

  std::map<LinkId, std::vector<v1::RouterMessage>> sent;
  std::set<LinkId> closed;
  std::map<LinkId, Error> refuses;  // links on which sends fail, and the error
};

class RecordingObserver final : public RequestObserver {
 public:
  void OnRouted(const RouteDecision& route) override { routes.push_back(route); }
  void OnTokens(const v1::TokenEvent& event) override {
    if (tokens.empty()) first_timing = event.timing();
    positions_ok = positions_ok && event.first_position() == next_position;
    next_position += static_cast<uint32_t>(event.tokens_size());
    tokens.insert(tokens.end(), event.tokens().begin(), event.tokens().end());
    if (on_tokens) on_tokens();
  }
  void OnFinish(v1::FinishReason reason, const Error& e, Duration hint) override {
    ++finishes;
    finish = reason;
    error = e;
    retry_after = hint;
  }

  std::vector<RouteDecision> routes;
  std::vector<TokenId> tokens;
  v1::Timing first_timing;
  uint32_t next_position = 0;
  bool positions_ok = true;
  int finishes = 0;
  v1::FinishReason finish = v1::FINISH_NONE;
  Error error;
  Duration retry_after{};
  std::function<void()> on_tokens;
};

class RouterHarness {
 public:
  explicit RouterHarness(const RouterOptions& options = {});

  static v1::Fingerprint Fingerprint();
  v1::Register Registration(const std::string& id, v1::Role role, uint64_t incarnation = 1) const;
  // A new link on which `registration` was received.
  LinkId Attach(const v1::Register& registration);
  // As Attach, followed by telemetry that reports ready.
  LinkId AddDecode(const std::string& id, uint64_t incarnation = 1);
  LinkId AddPrefill(const std::string& id, uint64_t incarnation = 1);
  v1::Telemetry ReadyTelemetry(uint64_t incarnation = 1) const;
  void Report(LinkId link, const v1::Telemetry& telemetry);
  // Sends KV events for the whole units of `tokens`.
  void Store(LinkId link, const std::vector<TokenId>& tokens, uint64_t first_sequence,
             bool snapshot, const std::string& scope = "", v1::KvTier tier = v1::KV_TIER_POOL);

  RouterRequest Request(int prompt_tokens, uint32_t max_new_tokens = 4) const;
  Result<RequestId> Submit(RouterRequest request, RecordingObserver* observer);
  // Sends tokens, and optionally an end, from a worker.
  void Tokens(LinkId link, uint64_t wire_id, uint32_t first_position,
              const std::vector<TokenId>& tokens, v1::FinishReason finish = v1::FINISH_NONE);
  void Fail(LinkId link, uint64_t wire_id, Code code, bool retryable);
  void Advance(Duration d);

  // Messages of one kind that the router sent on a link.
  std::vector<v1::GenerateRequest> Generates(LinkId link) const;
  int Count(LinkId link, v1::RouterMessage::BodyCase kind) const;
  bool HasMetric(const std::string& line_start, const std::string& value) const;

  ManualClock clock;
  RecordingSender sender;
  Metrics metrics;
  Router router;
  Duration retry_after{};

 private:
  uint64_t next_link_ = 1;
  uint64_t telemetry_sequence_ = 1;
};

}  // namespace aisp
