// The contract of KvTransport, for every implementation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "common/random.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

using testing::HasSubstr;

class TransportContract : public testing::TestWithParam<Lane> {
 protected:
  TransportContract() : owner_(GetParam(), &hub_), writer_(GetParam(), &hub_) {
    owner_.FillWith(std::byte{0});
    writer_.Fill(1);
  }

  // Everything may be written in epoch 1.
  KvPeerId ConnectAndAllow() {
    const Result<std::string> descriptor = owner_.transport().Descriptor();
    EXPECT_TRUE(descriptor.has_value());
    Allow(Epoch(1));
    const Result<KvPeerId> peer = writer_.transport().Connect(*descriptor, kPatience);
    EXPECT_TRUE(peer.has_value()) << peer.error().ToString();
    return *peer;
  }
  void Allow(Epoch epoch) {
    const BlockCopy all{.src_offset = 0, .dst_offset = 0, .bytes = owner_.pool().size()};
    owner_.transport().AllowEpoch(epoch, {&all, 1});
  }
  Result<WriteId> Write(KvPeerId peer, const BlockCopy& copy, Epoch epoch = Epoch(1)) {
    return writer_.transport().Write(peer, {&copy, 1}, epoch);
  }
  bool OwnerCopies() { return owner_.transport().capabilities().owner_copies; }

  InprocHub hub_;
  Side owner_;
  Side writer_;
};

TEST_P(TransportContract, BytesArriveExactlyWhereTheyShould) {
  const KvPeerId peer = ConnectAndAllow();
  std::vector<std::byte> expected(owner_.pool().begin(), owner_.pool().end());
  SplitMix64 random(7);
  for (int i = 0; i < 200; ++i) {
    std::vector<BlockCopy> copies(1 + random.Below(100));
    uint64_t next = random.Below(4000);  // the copies of one write do not overlap
    for (BlockCopy& copy : copies) {
      copy.bytes = random.Below(3000);
      copy.src_offset = random.Below(writer_.pool().size() - copy.bytes);
      copy.dst_offset = next;
      next += copy.bytes + random.Below(6000);
      std::memcpy(expected.data() + copy.dst_offset, writer_.pool().data() + copy.src_offset,
                  copy.bytes);
    }
    ASSERT_TRUE(writer_.transport().Write(peer, copies, Epoch(1)).has_value());
  }
  for (const WriteCompletion& done : writer_.Await(200)) EXPECT_TRUE(done.status.has_value());
  EXPECT_EQ(std::memcmp(owner_.pool().data(), expected.data(), expected.size()), 0);
}

TEST_P(TransportContract, WritesCompleteInOrderWithTheirEpochs) {
  const KvPeerId peer = ConnectAndAllow();
  Allow(Epoch(2));
  std::vector<WriteId> ids;
  for (uint64_t i = 0; i < 100; ++i) {
    const Result<WriteId> id = Write(peer, {i * 64, i * 128, 4096}, Epoch(1 + i % 2));
    ASSERT_TRUE(id.has_value());
    ids.push_back(*id);
  }
  const std::vector<WriteCompletion> done = writer_.Await(100);
  ASSERT_EQ(done.size(), 100u);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(done[i].id, ids[i]);
    EXPECT_EQ(done[i].epoch, Epoch(1 + i % 2));
  }
}

TEST_P(TransportContract, BytesAreInThePoolWhenTheWriteCompletes) {
  const KvPeerId peer = ConnectAndAllow();
  for (uint64_t i = 0; i < 50; ++i) {
    const BlockCopy copy{i * 100, 500000 - i * 7000, 6000};
    ASSERT_TRUE(Write(peer, copy).has_value());
    const std::vector<WriteCompletion> done = writer_.Await(1);
    ASSERT_TRUE(done.at(0).status.has_value()) << done[0].status.error().ToString();
    EXPECT_EQ(std::memcmp(owner_.pool().data() + copy.dst_offset,
                          writer_.pool().data() + copy.src_offset, copy.bytes),
              0);
  }
}

TEST_P(TransportContract, WholePoolInOneWrite) {
  const KvPeerId peer = ConnectAndAllow();
  ASSERT_TRUE(Write(peer, {0, 0, owner_.pool().size()}).has_value());
  EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
  EXPECT_EQ(std::memcmp(owner_.pool().data(), writer_.pool().data(), owner_.pool().size()), 0);
}

TEST_P(TransportContract, EmptyWriteCompletes) {
  const KvPeerId peer = ConnectAndAllow();
  ASSERT_TRUE(writer_.transport().Write(peer, {}, Epoch(1)).has_value());
  EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
}

TEST_P(TransportContract, CopiesOutsideEitherPoolAreRefused) {
  const KvPeerId peer = ConnectAndAllow();
  const uint64_t pool = owner_.pool().size();
  for (const BlockCopy& copy : {BlockCopy{0, pool - 10, 11}, BlockCopy{pool - 10, 0, 11},
                                BlockCopy{0, pool + 1, 0}, BlockCopy{0, UINT64_MAX - 4, 8},
                                BlockCopy{UINT64_MAX - 4, 0, 8}, BlockCopy{0, 0, UINT64_MAX}}) {
    const Result<WriteId> id = Write(peer, copy);
    ASSERT_FALSE(id.has_value());
    EXPECT_EQ(id.error().code, Code::kOutOfRange);
  }
  EXPECT_TRUE(Write(peer, {0, pool - 10, 10}).has_value());
  EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
}

TEST_P(TransportContract, FullQueueRefusesUntilPolled) {
  Side small(GetParam(), &hub_, {.max_writes = 4});
  const std::string descriptor = *owner_.transport().Descriptor();
  Allow(Epoch(1));
  const KvPeerId peer = *small.transport().Connect(descriptor, kPatience);
  const BlockCopy copy{0, 0, 64};
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(small.transport().Write(peer, {&copy, 1}, Epoch(1)).has_value());
  const Result<WriteId> refused = small.transport().Write(peer, {&copy, 1}, Epoch(1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  small.Await(1);
  EXPECT_TRUE(small.transport().Write(peer, {&copy, 1}, Epoch(1)).has_value());
  small.Await(4);
}

TEST_P(TransportContract, CancelledWritesEndInOrderAndOthersArrive) {
  const KvPeerId peer = ConnectAndAllow();
  Allow(Epoch(2));
  const uint64_t half = owner_.pool().size() / 2;
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(Write(peer, {0, 0, half}, Epoch(1)).has_value());
    ASSERT_TRUE(Write(peer, {0, half, 1000}, Epoch(2)).has_value());
  }
  writer_.transport().CancelWrites(peer, Epoch(1));
  const std::vector<WriteCompletion> done = writer_.Await(80);
  ASSERT_EQ(done.size(), 80u);
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].id.value, done[0].id.value + i);
    if (done[i].epoch == Epoch(2)) {
      EXPECT_TRUE(done[i].status.has_value());
    } else {
      EXPECT_TRUE(done[i].status.has_value() || done[i].status.error().code == Code::kCancelled);
    }
  }
  EXPECT_EQ(std::memcmp(owner_.pool().data() + half, writer_.pool().data(), 1000), 0);
}

TEST_P(TransportContract, DisconnectCompletesEveryWriteAndForgetsThePeer) {
  const KvPeerId peer = ConnectAndAllow();
  const uint64_t all = owner_.pool().size();
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(Write(peer, {0, 0, all}).has_value());
  writer_.transport().Disconnect(peer);
  std::array<WriteCompletion, 64> done;
  EXPECT_EQ(writer_.transport().Poll(done), 40u);  // at once: Disconnect waited
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(done[i].status.has_value() || done[i].status.error().code == Code::kUnavailable);
  }
  const Result<WriteId> id = Write(peer, {0, 0, 8});
  ASSERT_FALSE(id.has_value());
  EXPECT_EQ(id.error().code, Code::kNotFound);
  writer_.transport().Disconnect(peer);  // a second call has no effect
}

TEST_P(TransportContract, PeersCanConnectAgainAfterDisconnect) {
  for (int round = 0; round < 20; ++round) {
    const KvPeerId peer = ConnectAndAllow();
    ASSERT_TRUE(Write(peer, {0, 0, 128}).has_value());
    EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
    writer_.transport().Disconnect(peer);
  }
}

TEST_P(TransportContract, OwnerDeathIsAnErrorForTheWriter) {
  const KvPeerId peer = ConnectAndAllow();
  ASSERT_TRUE(Write(peer, {0, 0, 128}).has_value());
  writer_.Await(1);
  owner_.Close();
  // The notice may still be in flight; all accepted writes end.
  while (Write(peer, {0, 0, 128}).has_value()) writer_.Await(1);
  const Result<WriteId> id = Write(peer, {0, 0, 128});
  ASSERT_FALSE(id.has_value());
  EXPECT_EQ(id.error().code, Code::kUnavailable);
}

TEST_P(TransportContract, OwnerDeathAmidWritesEndsThemAll) {
  const KvPeerId peer = ConnectAndAllow();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Write(peer, {0, 0, owner_.pool().size()}).has_value());
  owner_.Close();
  EXPECT_EQ(writer_.Await(100).size(), 100u);
}

TEST_P(TransportContract, WriterDeathAmidWritesLeavesTheOwnerServing) {
  const KvPeerId peer = ConnectAndAllow();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Write(peer, {0, 0, owner_.pool().size()}).has_value());
  writer_.Close();
  Side next(GetParam(), &hub_);
  next.Fill(2);
  const KvPeerId again = *next.transport().Connect(*owner_.transport().Descriptor(), kPatience);
  const BlockCopy copy{0, 0, owner_.pool().size()};
  ASSERT_TRUE(next.transport().Write(again, {&copy, 1}, Epoch(1)).has_value());
  EXPECT_TRUE(next.Await(1).at(0).status.has_value());
}

TEST_P(TransportContract, DescriptorOfADeadOwnerIsAnError) {
  const std::string descriptor = *owner_.transport().Descriptor();
  owner_.Close();
  const Result<KvPeerId> peer = writer_.transport().Connect(descriptor, kPatience);
  ASSERT_FALSE(peer.has_value());
  EXPECT_EQ(peer.error().code, Code::kUnavailable) << peer.error().ToString();
}

TEST_P(TransportContract, GarbageDescriptorsAreErrors) {
  const std::string good = *owner_.transport().Descriptor();
  for (const std::string& descriptor :
       {std::string(), std::string("x"), std::string(5000, 'a'), std::string("tcp1 localhost 1 2"),
        std::string("tcp1 127.0.0.1 99999 00000000000000000000000000000000"), std::string("shm1  "),
        std::string("shm1 nobody 00000000000000000000000000000000"), std::string("cudaipc1  "),
        std::string("cudaipc1 nobody 00000000000000000000000000000000"), std::string("ucx1  "),
        std::string("ucx1 localhost 1 00000000000000000000000000000000"), good + "0",
        good.substr(0, good.size() - 1), std::string("\0\0\0\0", 4)}) {
    EXPECT_FALSE(writer_.transport().Connect(descriptor, kPatience).has_value()) << descriptor;
  }
}

TEST_P(TransportContract, UseBeforeRegisterIsAnError) {
  std::unique_ptr<KvTransport> bare;
  if (GetParam() == Lane::kInproc)
    bare = std::make_unique<InprocTransport>(&hub_, InprocTransport::Options());
  if (GetParam() == Lane::kShm) bare = std::make_unique<ShmTransport>(ShmTransport::Options());
  if (GetParam() == Lane::kCudaIpc)
    bare = std::make_unique<CudaIpcTransport>(CudaIpcTransport::Options());
  if (GetParam() == Lane::kTcp || GetParam() == Lane::kTcpDevice)
    bare = std::make_unique<TcpTransport>(TcpTransport::Options());
  if (bare == nullptr) {
    const std::string folders[] = {std::string(AISP_BINARY_DIR) + "/lib"};
    bare = std::move(*OpenUcxTransport(UcxOptions(), folders));
  }
  EXPECT_FALSE(bare->Descriptor().has_value());
  EXPECT_FALSE(bare->Connect(*owner_.transport().Descriptor(), kPatience).has_value());
  EXPECT_FALSE(bare->Register({}).has_value());
}

TEST_P(TransportContract, RevokedEpochNeverLandsWhereTheOwnerCopies) {
  const KvPeerId peer = ConnectAndAllow();
  if (!OwnerCopies()) {
    EXPECT_FALSE(owner_.transport().RevokeEpoch(Epoch(1)));
    return;
  }
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(Write(peer, {0, 0, owner_.pool().size()}).has_value());
  writer_.Await(2);  // while writes are running
  // A transport that fetches waits for fetches in flight, and no longer.
  while (!owner_.transport().RevokeEpoch(Epoch(1))) sched_yield();
  owner_.FillWith(std::byte{0xee});
  ASSERT_TRUE(Write(peer, {0, 0, 8}).has_value());
  const std::vector<WriteCompletion> done = writer_.Await(63);
  ASSERT_EQ(done.size(), 63u);
  ASSERT_FALSE(done.back().status.has_value());
  EXPECT_EQ(done.back().status.error().code, Code::kFailedPrecondition);
  EXPECT_EQ(std::count(owner_.pool().begin(), owner_.pool().end(), std::byte{0xee}),
            static_cast<ptrdiff_t>(owner_.pool().size()));
}

TEST_P(TransportContract, OnlyGrantedRangesCanBeWrittenWhereTheOwnerCopies) {
  if (!OwnerCopies()) GTEST_SKIP() << "the writer has the whole pool mapped";
  const KvPeerId peer = ConnectAndAllow();
  const std::vector<BlockCopy> granted{{0, 4096, 1024}, {0, 5120, 1024}, {0, 20000, 100}};
  owner_.transport().AllowEpoch(Epoch(9), granted);
  ASSERT_TRUE(Write(peer, {0, 4096, 2048}, Epoch(9)).has_value());  // across adjacent ranges
  ASSERT_TRUE(Write(peer, {0, 20000, 101}, Epoch(9)).has_value());
  ASSERT_TRUE(Write(peer, {0, 4095, 10}, Epoch(9)).has_value());
  ASSERT_TRUE(Write(peer, {0, 0, 1}, Epoch(77)).has_value());
  const std::vector<WriteCompletion> done = writer_.Await(4);
  ASSERT_EQ(done.size(), 4u);
  EXPECT_TRUE(done[0].status.has_value());
  EXPECT_EQ(done[1].status.error().code, Code::kOutOfRange);
  EXPECT_EQ(done[2].status.error().code, Code::kOutOfRange);
  EXPECT_EQ(done[3].status.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(done[3].status.error().message, HasSubstr("77"));
  EXPECT_EQ(owner_.pool()[0], std::byte{0});
  EXPECT_EQ(owner_.pool()[20000], std::byte{0});
}

TEST_P(TransportContract, TwoWritersShareOnePool) {
  const KvPeerId peer = ConnectAndAllow();
  Side second(GetParam(), &hub_);
  second.Fill(2);
  const KvPeerId other = *second.transport().Connect(*owner_.transport().Descriptor(), kPatience);
  const uint64_t half = owner_.pool().size() / 2;
  const BlockCopy upper{0, half, half};
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Write(peer, {0, 0, half}).has_value());
    ASSERT_TRUE(second.transport().Write(other, {&upper, 1}, Epoch(1)).has_value());
  }
  writer_.Await(10);
  second.Await(10);
  EXPECT_EQ(std::memcmp(owner_.pool().data(), writer_.pool().data(), half), 0);
  EXPECT_EQ(std::memcmp(owner_.pool().data() + half, second.pool().data(), half), 0);
}

TEST_P(TransportContract, MeasuringTouchesNoPool) {
  auto reached = writer_.transport().Reach(*owner_.transport().Descriptor(), kPatience);
  ASSERT_TRUE(reached.has_value()) << reached.error().ToString();
  const Result<double> rate = (*reached)->Measure(kPatience);
  ASSERT_TRUE(rate.has_value()) << rate.error().ToString();
  EXPECT_GT(*rate, 1e6);
  EXPECT_EQ(std::count(owner_.pool().begin(), owner_.pool().end(), std::byte{0}),
            static_cast<ptrdiff_t>(owner_.pool().size()));
  const KvPeerId peer = writer_.transport().Add(std::move(*reached));
  Allow(Epoch(1));
  ASSERT_TRUE(Write(peer, {0, 0, 128}).has_value());
  EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
}

TEST(UcxLane, IsAmongTheLanes) {
  if (const std::string why = WhyNot(Lane::kUcx); !why.empty()) GTEST_SKIP() << why;
  const std::string folders[] = {std::string(AISP_BINARY_DIR) + "/lib"};
  const auto opened = OpenUcxTransport(UcxOptions(), folders);
  ASSERT_TRUE(opened.has_value()) << opened.error().ToString();
  EXPECT_EQ((*opened)->capabilities().name, "ucx");
}

// As with an older version, or a GPU's pool, on one side.
TEST(UcxLane, OneSideThatMapsNothingIsNoHindrance) {
  if (const std::string why = WhyNot(Lane::kUcx); !why.empty()) GTEST_SKIP() << why;
  for (const auto& [owners, writers] :
       {std::pair(Lane::kUcx, Lane::kUcxWire), std::pair(Lane::kUcxWire, Lane::kUcx),
        std::pair(Lane::kUcx, Lane::kUcxDevice), std::pair(Lane::kUcxDevice, Lane::kUcx)}) {
    Side owner(owners, nullptr);
    Side writer(writers, nullptr);
    writer.Fill(3);
    const BlockCopy all{0, 0, owner.pool().size()};
    owner.transport().AllowEpoch(Epoch(1), {&all, 1});
    const auto peer = writer.transport().Connect(*owner.transport().Descriptor(), kPatience);
    ASSERT_TRUE(peer.has_value()) << peer.error().message;
    ASSERT_TRUE(writer.transport().Write(*peer, {&all, 1}, Epoch(1)).has_value());
    EXPECT_TRUE(writer.Await(1).at(0).status.has_value());
    EXPECT_EQ(std::memcmp(owner.pool().data(), writer.pool().data(), owner.pool().size()), 0);
  }
}

// The ring of page-locked memory is shorter than either write: it is used several times over.
TEST(UcxLane, WritesLongerThanTheRingPassThroughIt) {
  if (const std::string why = WhyNot(Lane::kUcxDevice); !why.empty()) GTEST_SKIP() << why;
  constexpr size_t kPool = size_t{72} << 20;
  for (const Lane writers : {Lane::kUcxDevice, Lane::kUcxWire}) {
    Side owner(Lane::kUcxDevice, nullptr, {.pool_bytes = kPool});
    Side writer(writers, nullptr, {.pool_bytes = kPool});
    writer.Fill(3);
    const BlockCopy all{0, 0, kPool};
    owner.transport().AllowEpoch(Epoch(1), {&all, 1});
    const auto peer = writer.transport().Connect(*owner.transport().Descriptor(), kPatience);
    ASSERT_TRUE(peer.has_value()) << peer.error().message;
    // In pieces of all lengths up to the longest, then whole.
    std::vector<BlockCopy> copies;
    for (uint64_t at = 0, bytes = 1; at < kPool; bytes = bytes * 3 + 5) {
      bytes = std::min<uint64_t>(bytes, 16 << 20);
      copies.push_back({at, at, std::min<uint64_t>(bytes, kPool - at)});
      at += copies.back().bytes;
    }
    ASSERT_TRUE(writer.transport().Write(*peer, copies, Epoch(1)).has_value());
    EXPECT_TRUE(writer.Await(1).at(0).status.has_value());
    EXPECT_EQ(std::memcmp(owner.pool().data(), writer.pool().data(), kPool), 0);
    writer.Fill(4);
    ASSERT_TRUE(writer.transport().Write(*peer, {&all, 1}, Epoch(1)).has_value());
    EXPECT_TRUE(writer.Await(1).at(0).status.has_value());
    EXPECT_EQ(std::memcmp(owner.pool().data(), writer.pool().data(), kPool), 0);
  }
}

TEST(UcxLane, AMissingLibraryIsAnErrorThatSaysWhatToDo) {
  const std::string folders[] = {"/nowhere"};
  const auto opened = OpenUcxTransport(UcxOptions(), folders);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, Code::kNotFound);
  EXPECT_THAT(opened.error().message, HasSubstr("worker.transports"));
}

INSTANTIATE_TEST_SUITE_P(Lanes, TransportContract,
                         testing::ValuesIn(Built({Lane::kInproc, Lane::kShm, Lane::kCudaIpc,
                                                  Lane::kTcp, Lane::kTcpDevice, Lane::kUcx,
                                                  Lane::kUcxWire, Lane::kUcxDevice})),
                         [](const auto& lane) { return LaneName(lane.param); });

}  // namespace
}  // namespace aisp
