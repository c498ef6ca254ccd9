#include <cmath>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/log.h"
#include "tests/worker/memory_links.h"
#include "worker/router_links.h"

namespace aisp {
namespace {

// The test answers its dials.
class ScriptedDialer final : public LinkDialer<v1::WorkerMessage> {
 public:
  std::vector<std::string> dialled;
  std::vector<v1::WorkerMessage> sent;
  std::vector<LinkId> closed;
  LinkId last;

  LinkId Dial(const std::string& address) override {
    dialled.push_back(address);
    last = LinkId(last.value + 1);
    return last;
  }
  void Send(LinkId, v1::WorkerMessage message) override { sent.push_back(std::move(message)); }
  void Close(LinkId link) override { closed.push_back(link); }
};

WorkerOptions Options(std::vector<std::string> addresses) {
  WorkerOptions options;
  options.worker_id = "w";
  options.incarnation = 3;
  options.router_addresses = std::move(addresses);
  options.reconnect_min = std::chrono::milliseconds(20);
  options.reconnect_max = std::chrono::milliseconds(320);
  return options;
}

const Error kGone{Code::kUnavailable, "gone"};

TEST(RouterLinks, RedialsWithADoublingBoundedBackoff) {
  ScriptedDialer dialer;
  RouterLinks links(Options({"a"}), {});
  links.SetDialer(&dialer);
  Instant now{0};
  links.Start(now);
  std::vector<double> waits;
  for (int i = 0; i < 12; ++i) {
    links.OnLinkDown(dialer.last, kGone, now);
    waits.push_back(ToMs(links.NextTimer() - now));
    now = links.NextTimer();
    links.OnTimer(now);
  }
  EXPECT_EQ(dialer.dialled.size(), 13u);
  for (size_t i = 0; i < waits.size(); ++i) {
    const double whole = std::min(320.0, 20.0 * std::pow(2.0, static_cast<double>(i)));
    EXPECT_GE(waits[i], whole / 2);
    EXPECT_LE(waits[i], whole);
  }
}

// Captures log lines during its lifetime.
class CapturedLog {
 public:
  CapturedLog() : fd_(memfd_create("log", 0)), session_({.fd = fd_}) {}
  ~CapturedLog() { close(fd_); }
  int Count(const std::string& phrase) const {
    FlushLog(std::chrono::seconds(10));
    std::string text(1 << 16, '\0');
    text.resize(static_cast<size_t>(pread(fd_, text.data(), text.size(), 0)));
    int count = 0;
    for (size_t at = 0; (at = text.find(phrase, at)) != std::string::npos; ++at) ++count;
    return count;
  }

 private:
  const int fd_;
  const LogSession session_;
};

TEST(RouterLinks, WarnsAtOnceOfARouterThatCannotBeReachedAndThenEverMoreSeldom) {
  const CapturedLog log;
  ScriptedDialer dialer;
  RouterLinks links(Options({"nowhere:1"}), {});
  links.SetDialer(&dialer);
  Instant now{0};
  links.Start(now);
  links.OnLinkDown(dialer.last, kGone, now);
  EXPECT_EQ(log.Count("router cannot be reached"), 1);
  EXPECT_EQ(log.Count("router=nowhere:1"), 1);
  while (now < Instant{} + std::chrono::minutes(10)) {
    now = links.NextTimer();
    links.OnTimer(now);
    links.OnLinkDown(dialer.last, kGone, now);
  }
  // Warnings after 1, 2, 4, 8, 16, 32, 60, 60 ... seconds, of some two thousand attempts.
  EXPECT_GT(dialer.dialled.size(), 1000u);
  EXPECT_GE(log.Count("router cannot be reached"), 12);
  EXPECT_LE(log.Count("router cannot be reached"), 17);
}

TEST(RouterLinks, SaysARefusalOnceInFullAndThenSeldom) {
  const CapturedLog log;
  ScriptedDialer dialer;
  RouterLinks links(Options({"a"}), {});
  links.SetDialer(&dialer);
  Instant now{0};
  links.Start(now);
  v1::RegisterRefused refused;
  refused.set_reason("model_name is x here and y there");
  for (int i = 0; i < 20; ++i) {
    links.OnLinkUp(dialer.last, now);
    links.OnRefused(dialer.last, refused, now);
    now = links.NextTimer();
    links.OnTimer(now);
  }
  EXPECT_EQ(log.Count("router refused this worker"), 1);
  EXPECT_LE(log.Count("model_name is x here"), 5);
}

TEST(RouterLinks, AttachesToEveryRouterAndIsReadyWithOne) {
  ScriptedDialer dialer;
  v1::Register hello;
  hello.set_worker_id("w");
  RouterLinks links(Options({"a", "b"}), hello);
  links.SetDialer(&dialer);
  links.Start(Instant{0});
  EXPECT_EQ(dialer.dialled, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(links.Ready());
  links.OnLinkUp(LinkId(2), Instant{0});
  ASSERT_EQ(dialer.sent.size(), 1u);
  EXPECT_EQ(dialer.sent[0].register_().worker_id(), "w");
  EXPECT_FALSE(links.Ready());
  v1::Registered accepted;
  accepted.set_telemetry_interval_ms(10);
  accepted.set_silence_limit_ms(21);
  links.OnRegistered(LinkId(2), accepted);
  EXPECT_TRUE(links.Ready());
  EXPECT_TRUE(links.Attached(LinkId(2)));
  EXPECT_FALSE(links.Attached(LinkId(1)));
  EXPECT_EQ(links.TelemetryInterval(), Duration(std::chrono::milliseconds(7)));
  links.OnLinkUp(LinkId(1), Instant{0});
  links.OnRegistered(LinkId(1), {});
  EXPECT_EQ(links.AttachedLinks().size(), 2u);
  EXPECT_TRUE(links.OnLinkDown(LinkId(2), kGone, Instant{0}));
  EXPECT_TRUE(links.Ready());
}

TEST(RouterLinks, ARefusalIsKeptAsTheReasonAndTriedAgainAtTheLongestBackoff) {
  ScriptedDialer dialer;
  RouterLinks links(Options({"a"}), {});
  links.SetDialer(&dialer);
  links.Start(Instant{0});
  links.OnLinkUp(LinkId(1), Instant{0});
  v1::RegisterRefused refused;
  refused.set_reason("model_name differs: the router has \"a\", the worker has \"b\"");
  links.OnRefused(LinkId(1), refused, Instant{0});
  EXPECT_EQ(dialer.closed, std::vector<LinkId>{LinkId(1)});
  const Status ready = links.Ready();
  ASSERT_FALSE(ready);
  EXPECT_NE(ready.error().message.find("the router has \"a\", the worker has \"b\""),
            std::string::npos);
  EXPECT_GE(ToMs(links.NextTimer() - Instant{0}), 160);
  EXPECT_LE(ToMs(links.NextTimer() - Instant{0}), 320);
}

TEST(RouterLinks, ADrainingRouterKeepsItsLinkWhileItsSuccessorIsLookedFor) {
  ScriptedDialer dialer;
  RouterLinks links(Options({"a"}), {});
  links.SetDialer(&dialer);
  links.Start(Instant{0});
  links.OnLinkUp(LinkId(1), Instant{0});
  links.OnRegistered(LinkId(1), {});
  links.OnRouterDraining(LinkId(1), Instant{0});
  EXPECT_EQ(dialer.dialled, (std::vector<std::string>{"a", "a"}));
  EXPECT_TRUE(links.Attached(LinkId(1)));
  // The old router still listens and refuses as draining: dial again, without a warning.
  links.OnLinkUp(LinkId(2), Instant{0});
  v1::RegisterRefused refused;
  refused.set_draining(true);
  links.OnRefused(LinkId(2), refused, Instant{0});
  EXPECT_LE(ToMs(links.NextTimer() - Instant{0}), 20);
  links.OnTimer(links.NextTimer());
  links.OnLinkUp(LinkId(3), Instant{0});
  links.OnRegistered(LinkId(3), {});
  EXPECT_EQ(links.AttachedLinks(), (std::vector<LinkId>{LinkId(3), LinkId(1)}));
  links.Broadcast({});
  EXPECT_TRUE(links.OnLinkDown(LinkId(1), kGone, Instant{0})) << "its requests must end";
  EXPECT_EQ(links.AttachedLinks(), std::vector<LinkId>{LinkId(3)});
  EXPECT_TRUE(links.Ready());
}

TEST(RouterLinks, AnUnansweredDialIsGivenUp) {
  ScriptedDialer dialer;
  RouterLinks links(Options({"a"}), {});
  links.SetDialer(&dialer);
  links.Start(Instant{0});
  const Instant late = links.NextTimer();
  EXPECT_EQ(ToMs(late - Instant{0}), 5000);
  links.OnTimer(late);
  EXPECT_EQ(dialer.closed.size(), 1u);
  links.OnLinkUp(LinkId(1), late);  // too late: nothing is sent on it
  EXPECT_TRUE(dialer.sent.empty());
  links.OnTimer(links.NextTimer());
  EXPECT_EQ(dialer.dialled.size(), 2u);
}

TEST(RouterLinks, ReplicasThatComeAreDialledAndThoseThatGoAreServedToTheEnd) {
  ScriptedDialer dialer;
  RouterLinks links(Options({"a", "b"}), {});
  links.SetDialer(&dialer);
  Instant now{0};
  links.Start(now);
  links.OnLinkUp(LinkId(1), now);
  links.OnRegistered(LinkId(1), {});
  links.OnLinkDown(LinkId(2), kGone, now);
  links.SetAddresses({"c"}, now);
  EXPECT_EQ(dialer.dialled, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(links.Attached(LinkId(1))) << "it may have requests here";
  EXPECT_TRUE(dialer.closed.empty());
  EXPECT_TRUE(links.OnLinkDown(LinkId(1), kGone, now));
  while (links.NextTimer() != kNever && now < Instant{0} + std::chrono::seconds(4)) {
    now = links.NextTimer();
    links.OnTimer(now);
  }
  for (size_t i = 3; i < dialer.dialled.size(); ++i) EXPECT_EQ(dialer.dialled[i], "c");
}

// A role that is not active must not register besides the active one.
TEST(RouterLinks, NobodyIsDialledBeforeTheStartOrWhileItStandsBy) {
  ScriptedDialer dialer;
  RouterLinks links(Options({}), {});
  links.SetDialer(&dialer);
  const Instant now{0};
  links.SetAddresses({"a", "b"}, now);
  EXPECT_TRUE(dialer.dialled.empty());
  links.Start(now);
  EXPECT_EQ(dialer.dialled, (std::vector<std::string>{"a", "b"}));
  links.StandBy();
  links.SetAddresses({"a", "b", "c"}, now);
  EXPECT_EQ(dialer.dialled.size(), 2u);
  links.Start(now);
  EXPECT_EQ(dialer.dialled.size(), 5u);
}

TEST(RouterLinks, ARouterThatWentWhileItStoodByIsNotDialledAgain) {
  ScriptedDialer dialer;
  RouterLinks links(Options({"a"}), {});
  links.SetDialer(&dialer);
  const Instant now{0};
  links.Start(now);
  links.OnLinkUp(LinkId(1), now);
  links.OnRegistered(LinkId(1), {});
  links.SetAddresses({"b"}, now);  // "a" is kept until its link ends
  links.StandBy();
  links.Start(now);
  EXPECT_EQ(dialer.dialled, (std::vector<std::string>{"a", "b", "b"}));
}

TEST(RouterLinks, AnOustedWorkerKnowsThatItHasToEnd) {
  ScriptedDialer dialer;
  RouterLinks links(Options({"a"}), {});
  links.SetDialer(&dialer);
  const Instant now{0};
  links.Start(now);
  links.OnLinkUp(dialer.last, now);
  links.OnRegistered(dialer.last, {});
  v1::RegisterRefused refused;
  refused.set_reason("the name is given to two");
  links.OnRefused(dialer.last, refused, now);
  EXPECT_TRUE(links.Ousted()) << "it may be accepted later";
  refused.set_reason("another process was accepted");
  refused.set_ousted(true);
  links.OnTimer(now + std::chrono::seconds(2));
  links.OnLinkUp(dialer.last, now);
  links.OnRefused(dialer.last, refused, now);
  ASSERT_FALSE(links.Ousted());
  EXPECT_EQ(links.Ousted().error().code, Code::kAborted);
}

}  // namespace
}  // namespace aisp
