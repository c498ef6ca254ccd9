// SimFrontend: the HTTP surface of one simulated router process: the real Frontend with its jobs,
// choices and answers, over the router, under simulated time. Its loop posts into the process,
// tokenizing takes a moment, and its exchanges end in a SimHttpClient.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/frontend.h"
#include "tests/sim/sim_clock.h"
#include "tests/support/provenance_executor.h"
#include "tests/support/sim_world.h"

namespace aisp {

// Reads the answer of an exchange. Called inside the router's process.
class SimReader {
 public:
  virtual ~SimReader() = default;
  virtual void OnAnswer(int status, const HttpHeaders& headers, const std::string& body) = 0;
  virtual void OnStream(int status, const HttpHeaders& headers) = 0;
  virtual void OnBytes(std::string_view bytes) = 0;
  virtual void OnEnd() = 0;
  // The exchange was dropped without an answer. `arrived`: the frontend had received it.
  virtual void OnDropped(bool arrived) = 0;
};

class SimExchange final : public HttpExchange {
 public:
  SimExchange(HttpRequest request, std::weak_ptr<SimReader> reader)
      : request_(std::move(request)), reader_(std::move(reader)) {}
  ~SimExchange() override;

  const HttpRequest& request() const override { return request_; }
  void Respond(int status, HttpHeaders headers, std::string body) override;
  void BeginStream(int status, HttpHeaders headers) override;
  void Write(std::string_view bytes) override;
  void End() override;
  size_t unsent_bytes() const override { return 0; }
  bool alive() const override { return !gone_ && !complete_; }
  void OnDisconnect(std::function<void(Gone)> handler) override { handler_ = std::move(handler); }

  void Receive(Instant now) {
    request_.received = now;
    arrived_ = true;
  }
  // The client left, or the process ends. Never from inside another call.
  void Disconnect(Gone why);

 private:
  HttpRequest request_;
  const std::weak_ptr<SimReader> reader_;
  std::function<void(Gone)> handler_;
  bool arrived_ = false;
  bool complete_ = false;
  bool gone_ = false;
};

class SimFrontend {
 public:
  SimFrontend(SimWorld* world, const ProvenanceOptions& model, std::shared_ptr<SimProcess> process,
              const SimClock* clock, Router* router, Metrics* metrics);
  // The process ends, and its open answers with it. Destroy before the router.
  ~SimFrontend();
  SimFrontend(const SimFrontend&) = delete;
  SimFrontend& operator=(const SimFrontend&) = delete;

  // A request arrives; inside the process.
  void Handle(const std::shared_ptr<SimExchange>& exchange);
  // No request is in progress.
  bool Idle() const { return stats_.active() == 0; }
  // Fails the run if anything is held for a request although there is none.
  void CheckQuiet();

  static std::unique_ptr<TextModel> MakeModel(const ProvenanceOptions& model);

 private:
  class Loop;
  class Queue;

  SimWorld* const world_;
  const std::shared_ptr<SimProcess> process_;
  const SimClock* const clock_;
  const std::unique_ptr<TextModel> model_;
  const std::unique_ptr<Loop> loop_;
  const std::unique_ptr<Queue> queue_;
  const std::unique_ptr<Tenants> tenants_;
  RequestLog log_;
  LiveStats stats_;
  LoraRequests loras_;
  FrontendContext context_;
  Frontend frontend_;
  std::vector<std::weak_ptr<SimExchange>> exchanges_;
};

}  // namespace aisp
