#include "kvcache/transport/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

Result<SelectedLane> Connect(const TransportSelector& selector, std::span<const LaneOffer> offers,
                             bool same_host, Duration timeout) {
  AISP_ASSIGN_OR_RETURN(ReachedLane reached, selector.Reach(offers, same_host, timeout));
  return TransportSelector::Add(std::move(reached));
}

class TransportSelection : public testing::Test {
 protected:
  static std::string Descriptor(Side& side) { return *side.transport().Descriptor(); }

  InprocHub hub_;
  Side owner_shm_{Lane::kShm, &hub_};
  Side owner_tcp_{Lane::kTcp, &hub_};
  Side shm_{Lane::kShm, &hub_};
  Side tcp_{Lane::kTcp, &hub_};
  std::string shm_offer_ = Descriptor(owner_shm_);
  std::string tcp_offer_ = Descriptor(owner_tcp_);
  TransportSelector selector_{{&tcp_.transport(), &shm_.transport()}};  // not in order of rank
};

TEST_F(TransportSelection, FastestLaneIsTakenAndMeasured) {
  const std::vector<LaneOffer> offers{{"tcp", tcp_offer_}, {"shm", shm_offer_}};
  const Result<SelectedLane> lane = Connect(selector_, offers, true, kPatience);
  ASSERT_TRUE(lane.has_value());
  EXPECT_EQ(lane->transport, &shm_.transport());
  EXPECT_GT(lane->bytes_per_s, 1e6);
  EXPECT_THAT(lane->warning, IsEmpty());
  const BlockCopy copy{0, 0, 64};
  EXPECT_TRUE(lane->transport->Write(lane->peer, {&copy, 1}, Epoch(1)).has_value());
}

TEST_F(TransportSelection, BetweenHostsOnlyWhatCrossesThemIsTried) {
  const std::vector<LaneOffer> offers{{"shm", shm_offer_}, {"tcp", tcp_offer_}};
  const Result<SelectedLane> lane = Connect(selector_, offers, false, kPatience);
  ASSERT_TRUE(lane.has_value());
  EXPECT_EQ(lane->transport, &tcp_.transport());
  EXPECT_GT(lane->bytes_per_s, 1e6);
  EXPECT_THAT(lane->warning, IsEmpty());
}

TEST_F(TransportSelection, WarnsWhenAFasterLaneFailedAndSaysWhy) {
  owner_shm_.Close();
  const std::vector<LaneOffer> offers{{"shm", shm_offer_}, {"tcp", tcp_offer_}};
  const Result<SelectedLane> lane = Connect(selector_, offers, true, kPatience);
  ASSERT_TRUE(lane.has_value());
  EXPECT_EQ(lane->transport, &tcp_.transport());
  EXPECT_THAT(lane->warning, HasSubstr("faster lane than tcp"));
  EXPECT_THAT(lane->warning, HasSubstr("shm: connecting"));
}

TEST_F(TransportSelection, NothingInCommonOrNothingThatWorksIsAnError) {
  const std::vector<LaneOffer> strange{{"ucx", "abc"}};
  Result<SelectedLane> lane = Connect(selector_, strange, true, kPatience);
  ASSERT_FALSE(lane.has_value());
  EXPECT_EQ(lane.error().code, Code::kUnavailable);
  EXPECT_THAT(lane.error().message, HasSubstr("in common"));

  owner_shm_.Close();
  owner_tcp_.Close();
  const std::vector<LaneOffer> dead{{"shm", shm_offer_}, {"tcp", tcp_offer_}};
  lane = Connect(selector_, dead, true, kPatience);
  ASSERT_FALSE(lane.has_value());
  EXPECT_THAT(lane.error().message, HasSubstr("shm: "));
  EXPECT_THAT(lane.error().message, HasSubstr("tcp: "));
}

// A transport that connects but never answers.
class DeafTransport final : public KvTransport {
 public:
  const TransportCapabilities& capabilities() const override { return capabilities_; }
  Status Register(const KvRegion&) override { return {}; }
  Result<std::string> Descriptor() override { return std::string(); }
  struct Pool final : Reached {
    Result<double> Measure(Duration) override { return Fail(Code::kDeadlineExceeded, "no echo"); }
  };
  Result<std::unique_ptr<Reached>> Reach(std::string_view, Duration) override {
    return std::make_unique<Pool>();
  }
  KvPeerId Add(std::unique_ptr<Reached>) override {
    ++connected;
    return KvPeerId(1);
  }
  void Disconnect(KvPeerId) override { --connected; }
  Result<WriteId> Write(KvPeerId, std::span<const BlockCopy>, Epoch) override {
    return Unimplemented("deaf");
  }
  void CancelWrites(KvPeerId, Epoch) override {}
  void AllowEpoch(Epoch, std::span<const BlockCopy>) override {}
  bool RevokeEpoch(Epoch) override { return false; }
  void Progress() override {}
  size_t Poll(std::span<WriteCompletion>) override { return 0; }
  void SetWaker(std::function<void()>) override {}

  int connected = 0;

 private:
  const TransportCapabilities capabilities_{.name = "deaf",
                                            .crosses_process = true,
                                            .crosses_host = true,
                                            .owner_copies = false,
                                            .rank = 1000};
};

TEST_F(TransportSelection, LaneThatConnectsButCarriesNothingIsLeftForTheNext) {
  DeafTransport deaf;
  TransportSelector selector({&deaf, &tcp_.transport()});
  const std::vector<LaneOffer> offers{{"deaf", ""}, {"tcp", tcp_offer_}};
  const Result<SelectedLane> lane = Connect(selector, offers, false, kPatience);
  ASSERT_TRUE(lane.has_value());
  EXPECT_EQ(lane->transport, &tcp_.transport());
  EXPECT_THAT(lane->warning, HasSubstr("deaf: no echo"));
  EXPECT_EQ(deaf.connected, 0);
}

}  // namespace
}  // namespace aisp
