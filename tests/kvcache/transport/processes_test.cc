// Transports between processes, and what happens when one of them dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <optional>

#include "kvcache/transport/peer_death.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

constexpr size_t kSlot = 64 << 10;
constexpr Epoch kEpoch{1};

// A writer process: receives a descriptor, connects, sends "connected" or the error, then obeys:
//   "token": answers the owner's name for the connection
//   "one <byte>": writes a slot of that byte, waits for its completion, answers "done" or the error
//   "flood": writes slots without end; answers "flooding" after the first round
int WriterMain(Lane lane, Child::Pipe& pipe) {
  Side side(lane, nullptr, {.stall_timeout = kPatience});
  auto reached = side.transport().Reach(pipe.Receive(), kPatience);
  pipe.Send(reached ? "connected" : reached.error().ToString());
  if (!reached) return 1;
  const std::string token = (*reached)->token();
  const std::optional<KvPeerId> peer = side.transport().Add(std::move(*reached));
  for (std::string order = pipe.Receive(); !order.empty(); order = pipe.Receive()) {
    if (order == "token") {
      pipe.Send(token);
      continue;
    }
    if (order == "flood") {
      for (uint64_t i = 0;; ++i) {
        side.FillWith(static_cast<std::byte>(i));
        for (uint64_t slot = 0; slot < side.pool().size() / kSlot; ++slot) {
          const BlockCopy copy{slot * kSlot, slot * kSlot, kSlot};
          if (!side.transport().Write(*peer, {&copy, 1}, kEpoch)) return 2;
        }
        side.Await(side.pool().size() / kSlot);
        if (i == 0) pipe.Send("flooding");
      }
    }
    side.FillWith(static_cast<std::byte>(order.back()));
    const BlockCopy copy{0, 0, kSlot};
    const Result<WriteId> id = side.transport().Write(*peer, {&copy, 1}, kEpoch);
    const Status status = id ? side.Await(1).at(0).status : Status(tl::unexpected(id.error()));
    pipe.Send(status ? "done" : status.error().ToString());
  }
  return 0;
}

class Processes : public testing::TestWithParam<Lane> {
 protected:
  // The child is forked before the owner starts its threads.
  Processes()
      : child_([](Child::Pipe& pipe) { return WriterMain(GetParam(), pipe); }),
        owner_(GetParam(), nullptr) {
    descriptor_ = *owner_.transport().Descriptor();
    Allow();
  }
  void Allow() {
    const BlockCopy all{0, 0, owner_.pool().size()};
    owner_.transport().AllowEpoch(kEpoch, {&all, 1});
  }
  void Connect() {
    child_.pipe().Send(descriptor_);
    ASSERT_EQ(child_.pipe().Receive(), "connected");
  }
  bool SlotHolds(char value) {
    // Like an owner, it reads between two grants, which also orders the transport thread's copies
    // with this thread's reads.
    owner_.transport().RevokeEpoch(kEpoch);
    const std::span<const std::byte> slot = owner_.pool().first(kSlot);
    const bool holds = std::ranges::all_of(
        slot, [value](std::byte b) { return b == static_cast<std::byte>(value); });
    Allow();
    return holds;
  }
  void StartFlood() {
    child_.pipe().Send("flood");
    ASSERT_EQ(child_.pipe().Receive(), "flooding");
  }

  Child child_;
  Side owner_;
  std::string descriptor_;
};

TEST_P(Processes, BytesCrossAndTheCompletionFollowsThem) {
  Connect();
  for (const char value : {'a', 'b', 'c'}) {
    child_.pipe().Send(std::string("one ") + value);
    ASSERT_EQ(child_.pipe().Receive(), "done");
    EXPECT_TRUE(SlotHolds(value));
  }
}

TEST_P(Processes, KilledWriterLeavesTheOwnerServing) {
  Connect();
  StartFlood();
  child_.Signal(SIGKILL);
  EXPECT_EQ(child_.Join(), -SIGKILL);
  Side next(GetParam(), nullptr);
  next.FillWith(std::byte{'z'});
  const Result<KvPeerId> peer = next.transport().Connect(descriptor_, kPatience);
  ASSERT_TRUE(peer.has_value()) << peer.error().ToString();
  const BlockCopy copy{0, 0, kSlot};
  ASSERT_TRUE(next.transport().Write(*peer, {&copy, 1}, kEpoch).has_value());
  EXPECT_TRUE(next.Await(1).at(0).status.has_value());
  EXPECT_TRUE(SlotHolds('z'));
}

TEST_P(Processes, WriterSurvivesTheOwnersDeathAndHearsOfIt) {
  Connect();
  child_.pipe().Send("one a");
  ASSERT_EQ(child_.pipe().Receive(), "done");
  owner_.Close();
  std::string answer;
  do {
    child_.pipe().Send("one b");
    answer = child_.pipe().Receive();
  } while (answer == "done");
  EXPECT_THAT(answer, testing::HasSubstr("UNAVAILABLE"));
  child_.Signal(0);  // it lives
}

TEST_P(Processes, StoppedWriterGoesOnWhereItWas) {
  Connect();
  child_.pipe().Send("one a");
  ASSERT_EQ(child_.pipe().Receive(), "done");
  child_.Stop();
  child_.pipe().Send("one b");
  EXPECT_TRUE(SlotHolds('a'));
  child_.Signal(SIGCONT);
  EXPECT_EQ(child_.pipe().Receive(), "done");
  EXPECT_TRUE(SlotHolds('b'));
}

// A fetch from a process stopped midway cannot be cancelled, but it ends in time.
TEST(UcxProcesses, AStoppedWritersEpochIsFencedWhenItsTimeIsOver) {
  if (const std::string why = WhyNot(Lane::kUcx); !why.empty()) GTEST_SKIP() << why;
  for (int round = 0; round < 10; ++round) {
    const Lane lane = round % 2 == 0 ? Lane::kUcxWire : Lane::kUcxDevice;
    Child child([lane](Child::Pipe& pipe) { return WriterMain(lane, pipe); });
    Side owner(lane, nullptr, {.stall_timeout = std::chrono::milliseconds(300)});
    const BlockCopy all{0, 0, owner.pool().size()};
    owner.transport().AllowEpoch(kEpoch, {&all, 1});
    child.pipe().Send(*owner.transport().Descriptor());
    ASSERT_EQ(child.pipe().Receive(), "connected");
    child.pipe().Send("flood");
    ASSERT_EQ(child.pipe().Receive(), "flooding");
    child.Stop();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!owner.transport().RevokeEpoch(kEpoch)) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      sched_yield();
    }
    owner.FillWith(std::byte{0xee});
    child.Signal(SIGCONT);
    // It is cut off or refused, while others write.
    Side other(Lane::kUcx, nullptr);
    other.FillWith(std::byte{0xdd});
    owner.transport().AllowEpoch(Epoch(2), {&all, 1});
    const KvPeerId peer = *other.transport().Connect(*owner.transport().Descriptor(), kPatience);
    const BlockCopy slot{0, 0, kSlot};
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(other.transport().Write(peer, {&slot, 1}, Epoch(2)).has_value());
      EXPECT_TRUE(other.Await(1).at(0).status.has_value());
    }
    EXPECT_TRUE(owner.transport().RevokeEpoch(Epoch(2)));
    EXPECT_TRUE(std::ranges::all_of(owner.pool().subspan(kSlot),
                                    [](std::byte b) { return b == std::byte{0xee}; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, Processes,
                         testing::ValuesIn(Built({Lane::kShm, Lane::kCudaIpc, Lane::kTcp,
                                                  Lane::kTcpDevice, Lane::kUcx, Lane::kUcxWire,
                                                  Lane::kUcxDevice})),
                         [](const auto& lane) { return LaneName(lane.param); });

bool AwaitDeath(const PeerWatch& watch) {
  pollfd state{watch.fd(), POLLIN, 0};
  return poll(&state, 1, static_cast<int>(ToMs(kPatience))) == 1;
}

// Transports that map the owner's pool.
class MappingProcess : public Processes {
 protected:
  WriterWatcher& watcher() { return dynamic_cast<WriterWatcher&>(owner_.transport()); }
  std::string Token() {
    child_.pipe().Send("token");
    return child_.pipe().Receive();
  }
};

TEST_P(MappingProcess, OwnerWatchesItsWriterAndAStoppedOneIsAlive) {
  WriterWatcher& lane = watcher();
  EXPECT_FALSE(lane.WatchWriter(std::string(32, 'a')).has_value()) << "nobody was given this";
  EXPECT_FALSE(lane.WatchWriter("4711").has_value()) << "a pid proves nothing";
  Connect();
  Result<PeerWatch> watch = lane.WatchWriter(Token());
  ASSERT_TRUE(watch.has_value()) << watch.error().ToString();
  EXPECT_EQ(watch->pid(), child_.pid());
  EXPECT_FALSE(watch->Dead());
  StartFlood();
  child_.Stop();
  EXPECT_FALSE(watch->Dead()) << "a stopped process comes back, and its writes with it";
  child_.Signal(SIGCONT);
  EXPECT_FALSE(watch->Dead());
  child_.Signal(SIGKILL);
  EXPECT_TRUE(AwaitDeath(*watch));
  EXPECT_TRUE(watch->Dead());
  // Proof: from here on nothing lands.
  const std::vector<std::byte> then(owner_.pool().begin(), owner_.pool().end());
  child_.Join();
  EXPECT_TRUE(watch->Dead());
  EXPECT_EQ(std::memcmp(then.data(), owner_.pool().data(), then.size()), 0);
}

TEST_P(MappingProcess, DeadWriterIsForgottenByTheOwner) {
  Connect();
  WriterWatcher& lane = watcher();
  const std::string token = Token();
  const Result<PeerWatch> watch = lane.WatchWriter(token);
  ASSERT_TRUE(watch.has_value());
  child_.Signal(SIGKILL);
  child_.Join();
  // The owner notices on its socket; a new writer takes the slot.
  while (lane.WatchWriter(token).has_value()) sched_yield();
  EXPECT_TRUE(watch->Dead());
}

INSTANTIATE_TEST_SUITE_P(Lanes, MappingProcess, testing::Values(Lane::kShm, Lane::kCudaIpc),
                         [](const auto& lane) { return LaneName(lane.param); });

TEST(ShmPool, MustBeASharedMappingOfItsHandle) {
  const SharedPool pool = std::move(*SharedPool::Create(1 << 16));
  const SharedPool other = std::move(*SharedPool::Create(1 << 16));
  for (const KvRegion& wrong : {KvRegion{pool.region().base, 1 << 16, -1},
                                KvRegion{pool.region().base, 1 << 17, pool.region().handle},
                                KvRegion{pool.region().base, 1 << 16, other.region().handle}}) {
    EXPECT_FALSE(ShmTransport(ShmTransport::Options()).Register(wrong).has_value());
  }
  ShmTransport transport{ShmTransport::Options()};
  EXPECT_TRUE(transport.Register(pool.region()).has_value());
  EXPECT_FALSE(transport.Register(pool.region()).has_value()) << "twice";
}

TEST(CudaIpcPool, MustBeADevicesWithItsBuffer) {
  const SharedPool pool = std::move(*SharedPool::Create(1 << 16));
  const Status refused = CudaIpcTransport(CudaIpcTransport::Options()).Register(pool.region());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kFailedPrecondition);
}

TEST(PeerWatch, ZombieIsDeadAndItsPidProvesNothingAboutASuccessor) {
  Child child([](Child::Pipe& pipe) {
    pipe.Receive();
    return 0;
  });
  const Result<uint64_t> started = PeerWatch::StartTime(child.pid());
  ASSERT_TRUE(started.has_value());
  EXPECT_FALSE(PeerWatch::Open(child.pid(), *started + 1).has_value())
      << "another process with the same pid";
  const Result<PeerWatch> watch = PeerWatch::Open(child.pid(), *started);
  ASSERT_TRUE(watch.has_value());
  EXPECT_FALSE(watch->Dead());
  child.pipe().Send("end");
  EXPECT_TRUE(AwaitDeath(*watch));  // not reaped yet
  const Result<PeerWatch> second = watch->Duplicate();
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(second->Dead());
  child.Join();
  EXPECT_TRUE(watch->Dead());
  const Result<PeerWatch> gone = PeerWatch::Open(child.pid());
  ASSERT_FALSE(gone.has_value());
  EXPECT_EQ(gone.error().code, Code::kNotFound);
}

TEST(PeerWatch, AConnectionProvesThatItsOtherEndIsGoneAndNothingElse) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd own(ends[0]);
  UniqueFd other(ends[1]);
  const Result<PeerWatch> watch = PeerWatch::OfConnection(own.get());
  ASSERT_TRUE(watch.has_value());
  EXPECT_FALSE(watch->Dead());
  ASSERT_EQ(send(other.get(), "x", 1, 0), 1);
  EXPECT_FALSE(watch->Dead()) << "something to read is no end";
  const Result<PeerWatch> second = watch->Duplicate();
  other.Reset();
  EXPECT_TRUE(watch->Dead());
  EXPECT_TRUE(second->Dead());
}

TEST(PeerWatch, OwnProcessIsAlive) {
  const Result<PeerWatch> self = PeerWatch::Open(getpid(), *PeerWatch::StartTime(getpid()));
  ASSERT_TRUE(self.has_value());
  EXPECT_FALSE(self->Dead());
  EXPECT_FALSE(PeerWatch::Open(0).has_value());
  EXPECT_FALSE(PeerWatch::Open(-1).has_value());
}

}  // namespace
}  // namespace aisp
