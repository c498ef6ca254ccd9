#include "net/abandoned_calls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "net/unique_descriptor.h"
#include "tests/net/loopback_listener.h"

namespace aisp {
namespace {

constexpr const char* kPeer = "ipv4:192.0.2.7:5000";
constexpr AbandonedCalls::Limits kLimits{.at_once = 100, .per_second = 100};

class AbandonedCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    const LoopbackListener listener;
    client_ = listener.Connect();
    server_ = listener.Accept();
    bytes_->Add(PeerKey(kPeer), server_.get());
  }
  bool Cut() const {
    pollfd state{client_.get(), POLLIN, 0};
    return poll(&state, 1, 0) == 1;
  }
  void Count(int calls, Duration at, const std::string& party = "party") {
    for (int i = 0; i < calls; ++i) calls_.Count(party, kPeer, Instant() + at);
  }

  UniqueDescriptor client_, server_;
  std::shared_ptr<ConnectionBytes> bytes_ = std::make_shared<ConnectionBytes>(1 << 20);
  AbandonedCalls calls_{bytes_, kLimits};
};

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(AbandonedCallsTest, OneTooManyEndsItsConnection) {
  Count(100, seconds(1));
  EXPECT_FALSE(Cut());
  Count(1, seconds(1));
  EXPECT_TRUE(Cut());
}

TEST_F(AbandonedCallsTest, SoManyInASecondAreNothing) {
  for (int i = 0; i < 1000; ++i) Count(10, milliseconds(100) * i);
  EXPECT_FALSE(Cut());
}

TEST_F(AbandonedCallsTest, WhatCameToSomethingDoesNotCount) {
  for (int i = 0; i < 1000; ++i) {
    Count(1, seconds(1));
    calls_.GiveBack("party", kPeer);
  }
  EXPECT_FALSE(Cut());
}

TEST_F(AbandonedCallsTest, PartiesCountApartAndTheirNumberIsBounded) {
  for (int i = 0; i < 4096; ++i) Count(2, seconds(1), std::to_string(i));
  EXPECT_FALSE(Cut());
  // Later all allowances have refilled: a new address gets an entry, with its own allowance.
  Count(100, seconds(10), "new");
  EXPECT_FALSE(Cut());
  Count(1, seconds(10), "new");
  EXPECT_TRUE(Cut());
}

// All from one address, as behind a proxy.
TEST_F(AbandonedCallsTest, WhoSharesAPartyIsNotCutForWhatOthersDo) {
  const auto others = [&](int calls) {
    for (int i = 0; i < calls; ++i)
      calls_.Count("party", "ipv4:192.0.2.7:6000", Instant() + seconds(1));
  };
  others(1000);
  for (int i = 0; i < 1000; ++i) {
    Count(1, seconds(1));
    calls_.GiveBack("party", kPeer);
    others(1);
  }
  EXPECT_FALSE(Cut());
  Count(17, seconds(1));
  EXPECT_TRUE(Cut());
}

TEST_F(AbandonedCallsTest, AnAddressHasOneName) {
  EXPECT_EQ(AddressOfPeer("ipv4:192.0.2.7:5000"), "192.0.2.7");
  EXPECT_EQ(AddressOfPeer("ipv6:%5B2001:db8::1%5D:1"), AddressOfPeer("ipv6:%5B2001:db8::2%5D:9"));
}

}  // namespace
}  // namespace aisp
