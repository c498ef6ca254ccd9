// SimClient: one request's client. Holds what the request must bring (the provenance oracle)
// against what it brings, token by token, and that it ends exactly once and in time.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "router/router.h"
#include "tests/sim/coverage.h"
#include "tests/support/provenance_executor.h"
#include "tests/support/sim_world.h"

namespace aisp {

class SimClient final : public RequestObserver {
 public:
  SimClient(SimWorld* world, SimCoverage* coverage, std::string name,
            const ProvenanceOptions& model, RouterRequest request, Duration grace);

  void OnRouted(const RouteDecision& route) override;
  void OnTokens(const v1::TokenEvent& event) override;
  void OnFinish(v1::FinishReason reason, const Error& error, Duration retry_after) override;
  void OnPromptLogprobs(const v1::PromptLogprobs& logprobs) override;
  void OnEmbedding(const v1::TokenEvent& event) override;

  // The outcome of Submit, at the time of the call.
  void Submitted(const Result<RequestId>& id);
  // The client left, or its router died with the connection: nothing may follow.
  void Leave(const std::string& why);
  // Fails the run when the request should have ended by now.
  void CheckOverdue(Instant now);

  bool done() const { return state_ == State::kDone; }
  bool gone() const { return state_ == State::kGone; }
  bool waiting() const { return state_ == State::kWaiting; }
  bool succeeded() const { return state_ == State::kDone && ok_; }
  const std::string& outcome() const { return outcome_; }
  RequestId id() const { return id_; }
  const RouterRequest& request() const { return request_; }

  // The run fails unless this one succeeds.
  bool must_succeed = false;

 private:
  enum class State { kNew, kWaiting, kDone, kGone };

  void Fail(const std::string& what);
  // What a request brought beside tokens when it ended well.
  void CheckOutputs();

  SimWorld* const world_;
  SimCoverage* const coverage_;
  const std::string name_;
  const RouterRequest request_;
  const Duration grace_;
  ExpectedEnd expected_;
  std::vector<float> expected_embedding_, expected_logprobs_;
  std::vector<float> embedding_, logprobs_;
  State state_ = State::kNew;
  bool ok_ = false;
  std::string outcome_;
  RequestId id_;
  Instant submitted_;
  std::vector<TokenId> received_;
  int routes_ = 0;
  int finishes_ = 0;
};

}  // namespace aisp
