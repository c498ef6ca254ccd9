#include "common/threads.h"

#include <csignal>
#include <string>

#include <gtest/gtest.h>
#include <pthread.h>

namespace aisp {
namespace {

TEST(Thread, CarriesTheFirstFifteenBytesOfItsName) {
  char name[16] = {};
  Thread("aisp-engine-device-0", [&] {
    pthread_getname_np(pthread_self(), name, sizeof(name));
  }).Join();
  EXPECT_STREQ(name, "aisp-engine-dev");
}

TEST(Thread, LeavesSignalsToTheMainThread) {
  sigset_t inside;
  Thread("signals", [&] { pthread_sigmask(SIG_BLOCK, nullptr, &inside); }).Join();
  EXPECT_EQ(sigismember(&inside, SIGTERM), 1);
  EXPECT_EQ(sigismember(&inside, SIGSEGV), 0);
  sigset_t here;
  pthread_sigmask(SIG_BLOCK, nullptr, &here);
  EXPECT_EQ(sigismember(&here, SIGTERM), 0);
}

TEST(Thread, IsJoinedByItsDestructorAndByAssignment) {
  int runs = 0;
  {
    Thread thread("first", [&] { ++runs; });
    thread = Thread("second", [] {});
    EXPECT_EQ(runs, 1);
    thread = Thread("third", [&] { ++runs; });
  }
  EXPECT_EQ(runs, 2);
}

TEST(Waker, MergesWakesUntilTheyAreDrained) {
  const Waker waker = Waker::Create().value();
  EXPECT_FALSE(waker.Drain());
  waker.Wake();
  waker.Wake();
  EXPECT_TRUE(waker.Drain());
  EXPECT_FALSE(waker.Drain());
}

TEST(Waker, WakesASleeperInAnotherThread) {
  const Waker waker = Waker::Create().value();
  bool woken = false;
  Thread sleeper("sleeper", [&] { woken = waker.Wait(std::chrono::seconds(30)); });
  waker.Wake();
  sleeper.Join();
  EXPECT_TRUE(woken);
}

TEST(Waker, WaitEndsAtItsTimeout) {
  const Waker waker = Waker::Create().value();
  EXPECT_FALSE(waker.Wait(FromMs(5)));
}

}  // namespace
}  // namespace aisp
