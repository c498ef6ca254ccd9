// SimHttpClient: one request to /v1/completions as an HTTP client sees it: a JSON body, and an
// answer that is a JSON object or a stream of SSE events. Compares every choice's tokens, text and
// finish reason with the provenance oracle, and checks that the answer is complete and ends once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "tests/sim/coverage.h"
#include "tests/sim/frontend.h"

namespace aisp {

struct SimHttpRequest {
  std::vector<TokenId> prompt;
  uint32_t max_tokens = 16;
  uint32_t min_tokens = 0;
  uint32_t choices = 1;
  double temperature = 1;
  uint64_t seed = 1;  // below 2^63
  std::vector<TokenId> stop_token_ids;
  bool stream = true;
  bool stops_at_text = false;  // by a stop string in the first choice's answer
  Duration timeout{};
};

class SimHttpClient final : public SimReader, public std::enable_shared_from_this<SimHttpClient> {
 public:
  SimHttpClient(SimWorld* world, SimCoverage* coverage, std::string name,
                const ProvenanceOptions& model, SimHttpRequest request, Duration grace);

  // The request as it reaches a router. The client waits from now on.
  std::shared_ptr<SimExchange> Send();
  // Null once the answer is over and nothing holds it.
  std::shared_ptr<SimExchange> exchange() const { return exchange_.lock(); }
  // The client leaves, or its router died with the connection.
  void Leave(const std::string& why);
  // Fails the run if the answer should be over by now.
  void CheckOverdue(Instant now);

  void OnAnswer(int status, const HttpHeaders& headers, const std::string& body) override;
  void OnStream(int status, const HttpHeaders& headers) override;
  void OnBytes(std::string_view bytes) override;
  void OnEnd() override;
  void OnDropped(bool arrived) override;

  bool waiting() const { return state_ == State::kWaiting || state_ == State::kStreams; }
  bool succeeded() const { return state_ == State::kDone && ok_; }
  bool gone() const { return state_ == State::kGone; }
  const std::string& name() const { return name_; }
  const std::string& outcome() const { return outcome_; }
  bool must_succeed = false;

 private:
  enum class State { kNew, kWaiting, kStreams, kDone, kGone };
  struct Choice {
    std::vector<TokenId> tokens;  // of the oracle
    std::string text;
    std::string finish;
    std::vector<TokenId> received;
    std::string received_text;
    std::string received_finish;
  };

  void ExpectStopString();
  std::string Body() const;
  void Fail(const std::string& what);
  void TakeEvent(std::string_view event);
  void TakeChoices(const Value& body);
  void TakeChoice(const Value::Map& fields);
  void TakeError(const Value& error);
  // The answer announced its end.
  void Finish();

  SimWorld* const world_;
  SimCoverage* const coverage_;
  const std::string name_;
  const SimHttpRequest request_;
  const Duration grace_;
  const std::unique_ptr<TextModel> model_;
  std::vector<Choice> choices_;
  std::string stop_;
  std::weak_ptr<SimExchange> exchange_;
  State state_ = State::kNew;
  bool ok_ = false;
  bool ended_ = false;  // "[DONE]", or a complete answer
  std::string outcome_;
  std::string unread_;
  Instant sent_;
};

}  // namespace aisp
