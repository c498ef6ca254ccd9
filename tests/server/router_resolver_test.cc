// Router replicas behind one name: each is found, and changes are noticed.
#include "server/router_resolver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

namespace aisp {
namespace {

using ::testing::ElementsAre;
using Addresses = std::vector<std::string>;

// A name service that the test changes, and the addresses that were reported from it.
class Names {
 public:
  void Set(const std::string& host, Addresses addresses) {
    const std::lock_guard lock(mutex_);
    hosts_[host] = std::move(addresses);
  }
  RouterResolver::Options Options() {
    RouterResolver::Options o;
    o.interval = o.interval_unknown = std::chrono::milliseconds(1);
    o.lookup = [this](const std::string& host) -> Result<Addresses> {
      const std::lock_guard lock(mutex_);
      ++lookups_;
      changed_.notify_all();
      if (hosts_.count(host) == 0) return Unavailable("no such name");
      return hosts_[host];
    };
    return o;
  }
  std::function<void(const Addresses&)> Told() {
    return [this](const Addresses& addresses) {
      const std::lock_guard lock(mutex_);
      told_.push_back(addresses);
      changed_.notify_all();
    };
  }
  Addresses AwaitTold(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return told_.size() >= count; });
    return told_.size() < count ? Addresses{"nothing was told"} : told_[count - 1];
  }
  // Waits until all names were looked up twice more, so that every change has been reported.
  size_t ToldAfterMoreLookups() {
    std::unique_lock lock(mutex_);
    const int wanted = lookups_ + 5;
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return lookups_ >= wanted; });
    return told_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Addresses> hosts_;
  std::vector<Addresses> told_;
  int lookups_ = 0;
};

TEST(RouterResolver, OnlyNamesWithTheSchemeAreLookedUp) {
  EXPECT_FALSE(RouterResolver::Needed({"router:8090", "10.0.0.1:8090"}));
  EXPECT_TRUE(RouterResolver::Needed({"router:8090", "dns:routers:8090"}));
  EXPECT_THAT(RouterResolver::WithoutNames({"router:8090", "dns:routers:8090"}),
              ElementsAre("router:8090"));
}

TEST(RouterResolver, TellsEveryAddressOfANameBesideTheFixedOnes) {
  Names names;
  names.Set("routers", {"10.0.0.1", "10.0.0.2"});
  const RouterResolver resolver({"fixed:1", "dns:routers:8090"}, names.Told(), names.Options());
  EXPECT_THAT(names.AwaitTold(1), ElementsAre("fixed:1", "10.0.0.1:8090", "10.0.0.2:8090"));
  EXPECT_EQ(names.ToldAfterMoreLookups(), 1u) << "nothing has changed, nothing is told";
  names.Set("routers", {"10.0.0.2", "10.0.0.3"});
  EXPECT_THAT(names.AwaitTold(2), ElementsAre("fixed:1", "10.0.0.2:8090", "10.0.0.3:8090"));
}

TEST(RouterResolver, ANameServiceThatFailsTakesNoRouterAway) {
  Names names;
  names.Set("routers", {"10.0.0.1"});
  const RouterResolver resolver({"dns:routers:8090"}, names.Told(), names.Options());
  EXPECT_THAT(names.AwaitTold(1), ElementsAre("10.0.0.1:8090"));
  names.Set("routers", {});
  EXPECT_EQ(names.ToldAfterMoreLookups(), 1u);
}

TEST(RouterResolver, ANameThatAppearsLaterIsFound) {
  Names names;
  const RouterResolver resolver({"dns:routers:8090"}, names.Told(), names.Options());
  EXPECT_EQ(names.ToldAfterMoreLookups(), 0u);
  names.Set("routers", {"10.0.0.1"});
  EXPECT_THAT(names.AwaitTold(1), ElementsAre("10.0.0.1:8090"));
}

TEST(RouterResolver, TheSystemsOwnLookupKnowsThisMachine) {
  std::mutex mutex;
  std::condition_variable changed;
  Addresses told;
  const RouterResolver resolver({"dns:localhost:8090"}, [&](const Addresses& addresses) {
    const std::lock_guard lock(mutex);
    told = addresses;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait_for(lock, std::chrono::seconds(20), [&] { return !told.empty(); });
  EXPECT_THAT(told, ElementsAre("127.0.0.1:8090")) << "one family, so that no router is met twice";
}

}  // namespace
}  // namespace aisp
