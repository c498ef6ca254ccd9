// Service classes with real processes: batch work together with interactive requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBatch = 24;
constexpr int kBatchTokens = 400;
constexpr int kInteractive = 60;

struct Streamed {
  double ttft_ms = 0;
  int tokens = 0;
  std::string error;
};

// A streamed completion of exactly `tokens` tokens; `service_class` "": the field is absent. The
// client leaves once it sees `left`.
Streamed Stream(const std::string& address, int which, int tokens, const std::string& service_class,
                const std::atomic<bool>* left = nullptr) {
  Streamed out;
  HttpClient client = Connect(address);
  const Json body = {{"prompt", Prose(30, which)},
                     {"max_tokens", tokens},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
  HttpHeaders headers = {{"content-type", "application/json"}};
  if (!service_class.empty()) headers.emplace_back("x-aisp-class", service_class);
  const auto begin = Clock::now();
  const auto head = client.Open("POST", "/v1/completions", body.dump(), headers);
  if (!head || head->status != 200) {
    out.error = head ? std::to_string(head->status) + " " + head->body : head.error().message;
    return out;
  }
  while (true) {
    const auto event = client.NextEvent();
    if (!event || !*event) {
      out.error = "the stream broke";
      return out;
    }
    if ((*event)->data == "[DONE]" || (left != nullptr && *left)) return out;
    if (out.ttft_ms == 0)
      out.ttft_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    const Json json = Json::parse((*event)->data);
    if (json.contains("error")) out.error = json["error"].dump();
    if (json.contains("usage") && json["usage"].is_object())
      out.tokens = json["usage"]["completion_tokens"];
  }
}

// Many requests at once, each on its own thread, until all have ended.
class Crowd {
 public:
  Crowd(const std::string& address, int count, const std::string& service_class) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, address, i, service_class] {
        const Streamed s = Stream(address, 1000 + i, kBatchTokens, service_class, &left_);
        whole_ += s.error.empty() && s.tokens == kBatchTokens ? 1 : 0;
        ++ended_;
      });
    }
  }
  // Whoever has not ended leaves.
  ~Crowd() {
    left_ = true;
    Join();
  }
  void Join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  int ended() const { return ended_; }
  int whole() const { return whole_; }

 private:
  std::atomic<bool> left_{false};
  std::atomic<int> ended_{0}, whole_{0};
  std::vector<std::thread> threads_;
};

// The 99th percentile of interactive TTFT, one request after the other.
double P99(const std::string& address, std::string* error) {
  std::vector<double> ttft;
  for (int i = 0; i < kInteractive; ++i) {
    const Streamed s = Stream(address, i, 8, "");
    if (!s.error.empty()) *error = s.error;
    ttft.push_back(s.ttft_ms);
  }
  std::sort(ttft.begin(), ttft.end());
  return ttft[ttft.size() * 99 / 100];
}

class Classes : public testing::Test {
 protected:
  Classes()
      : cluster_({.prefill = 0,
                  .decode = 1,
                  .router_flags = {"--router.best_effort_patience=2s"},
                  .worker_flags = {"--max-num-seqs=4"}}) {}
  Cluster cluster_;
};

TEST_F(Classes, BatchFillsTheWorkerAndInteractiveRequestsHardlyNotice) {
  ASSERT_TRUE(cluster_.AwaitReady());
  std::string error;
  P99(cluster_.http(), &error);
  const double alone_ms = P99(cluster_.http(), &error);
  double beside_batch_ms = 0, beside_interactive_ms = 0;
  {
    Crowd batch(cluster_.http(), kBatch, "batch");
    EXPECT_TRUE(
        Eventually([&] { return Metric(cluster_.http(), "aisp_class_queued_requests") > 0; }));
    beside_batch_ms = P99(cluster_.http(), &error);
    EXPECT_LT(batch.ended(), kBatch) << "batch was to run all the while";
    batch.Join();
    EXPECT_EQ(batch.whole(), kBatch) << "none is lost";
  }
  {
    Crowd control(cluster_.http(), kBatch, "interactive");
    EXPECT_TRUE(
        Eventually([&] { return Metric(cluster_.http(), "aisp_router_requests_waiting") > 0; }));
    beside_interactive_ms = Stream(cluster_.http(), 7, 8, "").ttft_ms;
  }
  EXPECT_EQ(error, "");
  std::printf(
      "interactive TTFT p99: alone %.1f ms, beside batch %.1f ms; one beside as many "
      "interactive ones %.1f ms\n",
      alone_ms, beside_batch_ms, beside_interactive_ms);
  EXPECT_LT(beside_batch_ms, beside_interactive_ms / 3);
  EXPECT_EQ(Metric(cluster_.http(), "aisp_class_queued_requests"), 0);
}

TEST_F(Classes, ABestEffortRequestThatHasWaitedLongEnoughRunsUnderALoadThatLeavesNoRoom) {
  ASSERT_TRUE(cluster_.AwaitReady());
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (int n = 0; !stop; ++n) {
        if (!Stream(cluster_.http(), 100 * c + n, 60, "").error.empty()) ++failed;
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return Metric(cluster_.http(), "aisp_active_requests") >= 8; }));
  const auto begin = Clock::now();
  const Streamed aged = Stream(cluster_.http(), 9999, 60, "best-effort");
  const auto took = Clock::now() - begin;
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(aged.error, "");
  EXPECT_EQ(aged.tokens, 60);
  EXPECT_GE(aged.ttft_ms, 1900) << "there was room for it, or it took others'";
  EXPECT_LT(took, std::chrono::seconds(30));
  EXPECT_EQ(failed, 0);
}

TEST_F(Classes, AClassIsNamedByHeaderOrFieldAndPromisesOfTimeAreForInteractiveOnes) {
  ASSERT_TRUE(cluster_.AwaitReady());
  HttpClient client = Connect(cluster_.http());
  const auto post = [&](const Json& more, HttpHeaders headers) {
    Json body = {{"prompt", "Once"}, {"max_tokens", 2}};
    body.update(more);
    headers.emplace_back("content-type", "application/json");
    const auto answer = client.Request("POST", "/v1/completions", body.dump(), headers);
    return answer ? std::pair(answer->status, answer->body) : std::pair(0, answer.error().message);
  };
  EXPECT_EQ(post({{"service_class", "batch"}}, {}).first, 200);
  EXPECT_EQ(post({{"service_class", "batch"}}, {{"x-aisp-class", "best-effort"}}).first, 200);
  EXPECT_EQ(Metric(cluster_.http(), "aisp_class_queue_seconds_count"), 2);
  const auto unknown = post({{"service_class", "slow"}}, {});
  EXPECT_EQ(unknown.first, 400);
  EXPECT_NE(unknown.second.find("best-effort"), std::string::npos) << unknown.second;
  EXPECT_EQ(post(Json::object(), {{"x-aisp-class", "slow"}}).first, 400);
  const auto promise = post(Json::object(), {{"x-aisp-class", "batch"}, {"x-slo-ttft-ms", "100"}});
  EXPECT_EQ(promise.first, 400);
  EXPECT_NE(promise.second.find("leave them out"), std::string::npos) << promise.second;
}

}  // namespace
}  // namespace aisp::e2e
