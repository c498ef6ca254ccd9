#include <cmath>

#include <gtest/gtest.h>

#include "tests/worker/memory_links.h"
#include "worker/router_links.h"

namespace aisp {
namespace {

// Dials that the test answers.
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
  // The old router still listens and says so: another try, and no word of a refusal.
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
  links.OnLinkUp(LinkId(1), late);  // too late: nothing is said on it
  EXPECT_TRUE(dialer.sent.empty());
  links.OnTimer(links.NextTimer());
  EXPECT_EQ(dialer.dialled.size(), 2u);
}

}  // namespace
}  // namespace aisp
