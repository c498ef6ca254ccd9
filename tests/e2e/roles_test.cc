// Running workers that change roles, under load, and invalid role commands.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/load.h"

namespace aisp::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Refusal {
  int status = 0;
  std::string message;
};
Refusal Post(const std::string& admin, const std::string& worker, const std::string& body) {
  const auto answer = Connect(admin).Request("POST", "/admin/workers/" + worker + "/role", body);
  if (!answer) return {0, answer.error().message};
  const Json said = Json::parse(answer->body, nullptr, false);
  return {answer->status, said.contains("error") ? said["error"].value("message", "") : ""};
}

Json Worker(const std::string& admin, const std::string& worker) {
  const auto answer = Connect(admin).Request("GET", "/admin/workers/" + worker);
  return answer ? Json::parse(answer->body, nullptr, false) : Json();
}

// Clients whose long prompts are computed by prefill workers; each answer is compared with that
// from before any change.
class RemoteLoad {
 public:
  RemoteLoad(std::string address, int clients) : address_(std::move(address)) {
    for (int i = 0; i < kPrompts; ++i) said_.push_back(Ask(i).text);
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, i] {
        for (int turn = i; !stop_; ++turn) {
          const Reply reply = Ask(turn % kPrompts);
          if (reply.route.find("prefill=local") == std::string::npos) ++remote_;
          if (reply.status == 200 && reply.text == said_[turn % kPrompts]) continue;
          std::lock_guard lock(mutex_);
          failures_.push_back(std::to_string(reply.status) + " " + reply.error + reply.text);
        }
      });
    }
  }
  ~RemoteLoad() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  int remote() const { return remote_; }
  std::vector<std::string> failures() const {
    std::lock_guard lock(mutex_);
    return failures_;
  }

 private:
  static constexpr int kPrompts = 40;
  Reply Ask(int which) const { return Complete(address_, Prose(150, which), 40, "remote"); }

  const std::string address_;
  std::vector<std::string> said_;
  std::atomic<bool> stop_{false};
  std::atomic<int> remote_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> failures_;
  std::vector<std::thread> threads_;
};

TEST(Roles, WorkersTakeOtherRolesUnderLoadAndNoRequestNotices) {
  Cluster cluster({.prefill = 2, .decode = 2, .flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.router->Await("admin");
  const std::string flags = " --move-after=100 --router=http://" + admin;
  RemoteLoad prompts(cluster.http(), 3);
  StoryLoad load(cluster.http(), 5);
  ASSERT_TRUE(Eventually([&] { return load.completed() >= 8; }));
  // There and back: 3P1D, 1P3D, 1P2D with one parked, and the first again.
  const std::pair<const char*, const char*> changes[] = {
      {"decode-0", "prefill"}, {"prefill-0", "decode"},  {"decode-0", "decode"},
      {"prefill-1", "parked"}, {"prefill-0", "prefill"}, {"prefill-1", "decode"},
      {"decode-1", "parked"},  {"prefill-1", "prefill"}, {"decode-1", "decode"}};
  for (const auto& [worker, role] : changes) {
    const int before = load.completed();
    const Ran ran = RunAisp(std::string("role ") + worker + " " + role + flags);
    EXPECT_EQ(ran.code, 0) << worker << ": " << ran.output;
    std::printf("%s", ran.output.c_str());
    EXPECT_TRUE(Eventually([&] { return load.completed() >= before + 8; })) << worker;
  }
  load.Stop();
  prompts.Stop();
  EXPECT_THAT(load.failures(), IsEmpty());
  EXPECT_THAT(prompts.failures(), IsEmpty());
  EXPECT_GT(prompts.remote(), 0);
  EXPECT_EQ(Worker(admin, "decode-0")["role_epoch"], 3);
  EXPECT_EQ(Metric(cluster.http(), "aisp_takeovers_total"), 0) << "nothing failed";
  // Each works in its current role.
  const Reply remote = Complete(cluster.http(), Prose(150, 99), 16, "remote");
  EXPECT_EQ(remote.status, 200);
  EXPECT_THAT(remote.route, HasSubstr("prefill=prefill-"));
  for (const auto& workers : {&cluster.prefill, &cluster.decode}) {
    for (const auto& worker : *workers) EXPECT_TRUE(worker->Running());
  }
}

TEST(Roles, TheFirstDecodeWorkerServesWhatThePrefillWorkerWasAsSoonAsItHasTheRole) {
  Cluster cluster({.prefill = 1, .decode = 1, .flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string flags = " --router=http://" + cluster.router->Await("admin");
  const std::string prompt = Prose(150, 4);
  const Reply before = Complete(cluster.http(), prompt, 40, "remote");
  const Ran up = RunAisp("role prefill-0 decode" + flags);
  EXPECT_EQ(up.code, 0) << up.output;
  const Ran down = RunAisp("role decode-0 prefill" + flags);
  EXPECT_EQ(down.code, 0) << down.output;
  const Reply same = Complete(cluster.http(), prompt, 40, "remote");
  EXPECT_EQ(same.text, before.text) << same.error;
  const Reply reply = Complete(cluster.http(), Prose(150, 5), 40, "remote");
  EXPECT_EQ(reply.status, 200) << reply.error;
  EXPECT_THAT(reply.route, AllOf(HasSubstr("prefill=decode-0"), HasSubstr("decode=prefill-0")));
}

TEST(Roles, WhatIsNotAsExpectedIsRefusedByName) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.router->Await("admin");
  const Refusal expected = Post(admin, "prefill-0", R"({"role":"decode","expected":"decode"})");
  EXPECT_EQ(expected.status, 409);
  EXPECT_THAT(expected.message, HasSubstr("prefill-0 is prefill (epoch 1), expected was decode"));
  const Refusal epoch = Post(admin, "prefill-0", R"({"role":"decode","expected_epoch":4})");
  EXPECT_EQ(epoch.status, 409);
  EXPECT_THAT(epoch.message, HasSubstr("in epoch 1, expected was epoch 4"));
  const Refusal unknown = Post(admin, "prefill-7", R"({"role":"decode"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.message, HasSubstr("known: decode-0, prefill-0"));
  for (const char* role : {"prefill", "parked"}) {
    const Refusal last = Post(admin, "decode-0", std::string(R"({"role":")") + role + "\"}");
    EXPECT_EQ(last.status, 409);
    EXPECT_THAT(last.message, HasSubstr("decode-0 is the last decode worker"));
  }
  for (const char* bad :
       {"", "[]", "{}", R"({"role":"router"})", R"({"role":1})", R"({"role":"decode","rôle":1})",
        R"({"role":"decode","deadline_ms":0})", R"({"role":"decode","move_after_ms":-1})",
        R"({"role":"decode","expected_epoch":"one"})", R"({"role":"decode","expected":null})"}) {
    EXPECT_EQ(Post(admin, "prefill-0", bad).status, 400) << bad;
  }
  EXPECT_EQ(Connect(admin).Request("GET", "/admin/workers/decode-0/role")->status, 405);
  EXPECT_EQ(Worker(admin, "prefill-0")["role_epoch"], 1);
  const std::string flags = " --router=http://" + admin;
  EXPECT_EQ(RunAisp("role prefill-0 router" + flags).code, 2);
  EXPECT_EQ(RunAisp("role prefill-0" + flags).code, 2);
  const Ran wrong = RunAisp("role prefill-0 decode --expect parked" + flags);
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.output, HasSubstr("expected was parked"));
}

TEST(Roles, AWorkerThatDoesEverythingKeepsItsRole) {
  Process all(
      {"serve", "--role=all", "--port=0", "--admin-port=0", "--no-grpc", "--log-level=error"});
  ASSERT_NE(all.Await("ready"), "");
  const Refusal last = Post(all.Await("admin"), "worker", R"({"role":"prefill"})");
  EXPECT_EQ(last.status, 409);
  EXPECT_THAT(last.message, HasSubstr("worker is the last decode worker"));
}

TEST(Roles, AChangeThatWouldTakeTooLongIsCalledOffAndTheStreamGoesOn) {
  Cluster cluster({.prefill = 0, .decode = 2, .flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.router->Await("admin");
  HttpClient client = Connect(cluster.http());
  const Json body = {{"prompt", Prose(20, 3)},
                     {"max_tokens", 1900},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stream", true}};
  const auto head = client.Open("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(head);
  ASSERT_TRUE(client.NextEvent());
  const std::string route(head->Header("x-aisp-route"));
  const std::string worker = route.find("decode-0") != std::string::npos ? "decode-0" : "decode-1";
  const Ran ran = RunAisp("role " + worker +
                          " prefill --move-after=60000 --deadline=50 --router=http://" + admin);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.output, HasSubstr(worker + " keeps its role decode"));
  const Reply reply = ReadStream(client, *head);
  EXPECT_EQ(reply.error, "");
  EXPECT_TRUE(reply.done);
  EXPECT_EQ(Worker(admin, worker)["state"], "ready");
  EXPECT_EQ(Worker(admin, worker)["role_epoch"], 1);
}

}  // namespace
}  // namespace aisp::e2e
