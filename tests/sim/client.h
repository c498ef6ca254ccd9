// SimClient: one request's client. Compares its output with the provenance oracle, token by token,
// and checks that it ends exactly once and in time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "router/router.h"
#include "tests/sim/coverage.h"
#include "tests/support/provenance_executor.h"
#include "tests/support/sim_world.h"

namespace aisp {

// What a surface and its client do besides waiting for the end.
struct SimHabits {
  // The answer's text contains a stop string that ends with this token; 0: none.
  size_t stop_string_after = 0;
  // The client reads this many tokens a second and is cut off when more than `most_unread` are
  // unread; 0: it reads at once.
  double reads_per_s = 0;
  size_t most_unread = 0;
  // Its first step fails, or ends the process.
  enum class Poison { kNone, kStep, kProcess } poison = Poison::kNone;
};

class SimClient final : public RequestObserver {
 public:
  // Ends the request at its router, as completed or as cancelled.
  using EndRequest = std::function<void(RequestId id, bool completed)>;
  SimClient(SimWorld* world, SimCoverage* coverage, std::string name,
            const ProvenanceOptions& model, RouterRequest request, const SimHabits& habits,
            Duration grace, EndRequest end);

  void OnRouted(const RouteDecision& route) override;
  void OnTokens(const v1::TokenEvent& event) override;
  void OnFinish(v1::FinishReason reason, const Error& error, Duration retry_after) override;
  void OnPromptLogprobs(const v1::PromptLogprobs& logprobs) override;
  void OnEmbedding(const v1::TokenEvent& event) override;

  // The result of Submit, at the time of the call.
  void Submitted(const Result<RequestId>& id);
  // The client left, or its router died with the connection: nothing may follow.
  void Leave(const std::string& why);
  // Fails the run if the request should have ended by now.
  void CheckOverdue(Instant now);

  bool done() const { return state_ == State::kDone; }
  bool gone() const { return state_ == State::kGone; }
  bool waiting() const { return state_ == State::kWaiting; }
  bool succeeded() const { return state_ == State::kDone && ok_; }
  const std::string& outcome() const { return outcome_; }
  RequestId id() const { return id_; }
  const RouterRequest& request() const { return request_; }
  bool poisonous() const { return habits_.poison != SimHabits::Poison::kNone; }

  // The run fails unless this request succeeds.
  bool must_succeed = false;

 private:
  enum class State { kNew, kWaiting, kDone, kGone };

  void Fail(const std::string& what);
  void CheckTiming(const v1::Timing& timing);
  void TakeToken(const v1::TokenEvent& event, int at);
  // Ends the request if a stop string was found or too much is unread; inside OnTokens, as a
  // surface does.
  void ReadOn();
  void CheckError(const Error& error);
  // Checks the outputs besides tokens of a successful request.
  void CheckOutputs();

  SimWorld* const world_;
  SimCoverage* const coverage_;
  const std::string name_;
  const RouterRequest request_;
  const SimHabits habits_;
  const Duration grace_;
  const EndRequest end_;
  ExpectedEnd expected_;
  std::vector<float> expected_embedding_, expected_logprobs_;
  std::vector<float> embedding_, logprobs_;
  State state_ = State::kNew;
  bool ok_ = false;
  std::string outcome_;
  RequestId id_;
  Instant submitted_;
  Instant first_token_ = kNever;
  std::vector<TokenId> received_;
  int routes_ = 0;
  int finishes_ = 0;
};

}  // namespace aisp
