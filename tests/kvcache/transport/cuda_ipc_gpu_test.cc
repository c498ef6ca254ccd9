// cuda_ipc, and ucx with GPU memory, on real GPUs: two processes on one GPU, and on two if there
// are two. Skipped without a GPU.
//
// A process that has used CUDA must not fork: each test forks its peer first, and CTest runs each
// test in its own process.
#include <gmock/gmock.h>
#include <poll.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/random.h"
#include "common/strings.h"
#include "kernels/cuda/load.h"
#include "kvcache/transport/peer_death.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

using testing::HasSubstr;

constexpr size_t kPoolBytes = 256u << 20;
constexpr Epoch kEpoch{1};

std::vector<std::string> Folders() {
  std::error_code ignored;
  const std::string here =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
  return {here, here + "/../lib", std::string(AISP_BINARY_DIR) + "/lib"};
}

Result<CudaBackend> OpenGpu(int32_t index) {
  const std::vector<std::string> folders = Folders();
  CudaBackendOptions options;
  options.index = index;
  options.max_rows = 16;
  options.max_sequences = 1;
  return OpenCudaBackend(options, folders);
}

// A pool in a GPU's memory, and its transport.
class GpuSide {
 public:
  static Result<std::unique_ptr<GpuSide>> Open(int32_t gpu, Lane lane = Lane::kCudaIpc) {
    auto side = std::unique_ptr<GpuSide>(new GpuSide);
    AISP_ASSIGN_OR_RETURN(side->gpu_, OpenGpu(gpu));
    AISP_ASSIGN_OR_RETURN(side->pool_,
                          side->gpu_.device->Allocate(kPoolBytes, MemoryKind::kShareable));
    AISP_ASSIGN_OR_RETURN(side->stream_, side->gpu_.device->CreateStream());
    if (lane == Lane::kUcx) {
      AISP_ASSIGN_OR_RETURN(side->transport, OpenUcxTransport(UcxOptions(), Folders()));
    } else {
      side->transport = std::make_unique<CudaIpcTransport>(CudaIpcTransport::Options{});
    }
    AISP_RETURN_IF_ERROR(
        side->transport->Register({static_cast<std::byte*>(side->pool_.data()), kPoolBytes, -1,
                                   side->gpu_.device.get(), &side->pool_}));
    return side;
  }

  void Fill(uint64_t seed) { Put(Noise(seed)); }
  void Put(const std::vector<std::byte>& bytes) {
    AISP_CHECK(gpu_.device->Copy(pool_.data(), bytes.data(), bytes.size(), *stream_).has_value());
    AISP_CHECK(gpu_.device->Synchronize(*stream_).has_value());
  }
  std::vector<std::byte> Bytes() {
    std::vector<std::byte> out(kPoolBytes);
    AISP_CHECK(gpu_.device->Copy(out.data(), pool_.data(), out.size(), *stream_).has_value());
    AISP_CHECK(gpu_.device->Synchronize(*stream_).has_value());
    return out;
  }
  Status WriteAndWait(KvPeerId peer, const std::vector<BlockCopy>& copies) {
    const auto id = transport->Write(peer, copies, kEpoch);
    if (!id) return tl::unexpected(id.error());
    WriteCompletion done;
    while (transport->Poll({&done, 1}) == 0) sched_yield();
    return done.status;
  }

  static std::vector<std::byte> Noise(uint64_t seed) {
    std::vector<std::byte> bytes(kPoolBytes);
    SplitMix64 random(seed);
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t word = random.Next();
      std::memcpy(bytes.data() + i, &word, 8);
    }
    return bytes;
  }

 private:
  CudaBackend gpu_;
  Buffer pool_;
  std::unique_ptr<Stream> stream_;

 public:
  std::unique_ptr<KvTransport> transport;  // destroyed first
};

// Copies whose targets do not overlap: mostly whole 16-byte words, like KV blocks, some odd sizes.
std::vector<BlockCopy> SomeCopies(uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<BlockCopy> copies;
  uint64_t next = 16 * random.Below(4096);
  for (;;) {
    BlockCopy copy;
    copy.bytes = random.Below(8) == 0 ? 1 + random.Below(70000) : 16 * (1 + random.Below(8192));
    copy.src_offset = 16 * random.Below((kPoolBytes - copy.bytes) / 16);
    copy.dst_offset = next;
    next += (copy.bytes + 15) / 16 * 16 + 16 * random.Below(16384);
    if (copy.dst_offset + copy.bytes > kPoolBytes) return copies;
    copies.push_back(copy);
  }
}

// A writer process: connects to the descriptor it gets, then obeys "write SEED", "time" or "flood"
// until its pipe closes.
int WriterMain(int32_t gpu, Lane lane, Child::Pipe& pipe) {
  const std::string descriptor = pipe.Receive();
  if (descriptor.empty()) return 0;
  auto side = GpuSide::Open(gpu, lane);
  auto reached = side ? (*side)->transport->Reach(descriptor, kPatience)
                      : Result<std::unique_ptr<KvTransport::Reached>>(tl::unexpected(side.error()));
  pipe.Send(reached ? "connected" : reached.error().ToString());
  if (!reached) return 1;
  const std::string token = (*reached)->token();
  const std::optional<KvPeerId> peer = (*side)->transport->Add(std::move(*reached));
  (*side)->Fill(1);
  for (std::string order = pipe.Receive(); !order.empty(); order = pipe.Receive()) {
    Status status;
    std::string answer = "done";
    if (order == "token") {
      pipe.Send(token);
      continue;
    }
    if (order == "flood") {
      pipe.Send("flooding");
      while ((*side)->WriteAndWait(*peer, {{0, 0, kPoolBytes}})) {
      }
      return 2;
    }
    if (order == "time") {
      const SteadyClock clock;
      const Instant begin = clock.Now();
      for (int i = 0; i < 8 && status; ++i)
        status = (*side)->WriteAndWait(*peer, {{0, 0, kPoolBytes}});
      const double one = 8.0 * kPoolBytes / ToSeconds(clock.Now() - begin);
      std::vector<BlockCopy> blocks;
      for (uint64_t i = 0; i < 1024; ++i) blocks.push_back({(1023 - i) << 16, i << 16, 64 << 10});
      const Instant then = clock.Now();
      for (int i = 0; i < 8 && status; ++i) status = (*side)->WriteAndWait(*peer, blocks);
      const double many = 8.0 * (64u << 20) / ToSeconds(clock.Now() - then);
      auto again = (*side)->transport->Reach(descriptor, kPatience);
      const Result<double> measured =
          again ? (*again)->Measure(kPatience) : tl::unexpected(again.error());
      answer = "whole " + std::to_string(one * 1e-9) + " GB/s, 64 KiB blocks " +
               std::to_string(many * 1e-9) + " GB/s, measured " +
               std::to_string(measured ? *measured * 1e-9 : -1.0) + " GB/s";
    } else {
      status = (*side)->WriteAndWait(*peer, SomeCopies(std::stoull(order)));
    }
    pipe.Send(status ? answer : status.error().ToString());
  }
  return 0;
}

// The GPU of the other process: the owner's own, or the second one.
class LaneOnGpu : public testing::TestWithParam<int32_t> {
 protected:
  explicit LaneOnGpu(Lane lane)
      : lane_(lane),
        child_([lane](Child::Pipe& pipe) { return WriterMain(GetParam(), lane, pipe); }) {}

  void SetUp() override {
    auto second = OpenGpu(GetParam());
    if (!second) GTEST_SKIP() << second.error().message;
    auto side = GpuSide::Open(0, lane_);
    ASSERT_TRUE(side) << side.error().message;
    owner_ = std::move(*side);
    const BlockCopy all{0, 0, kPoolBytes};
    owner_->transport->AllowEpoch(kEpoch, {&all, 1});
    descriptor_ = *owner_->transport->Descriptor();
    child_.pipe().Send(descriptor_);
    ASSERT_EQ(child_.pipe().Receive(), "connected");
  }

  void ExpectBytesWhereTheyShouldBe();

  const Lane lane_;
  Child child_;
  std::unique_ptr<GpuSide> owner_;
  std::string descriptor_;
};

void LaneOnGpu::ExpectBytesWhereTheyShouldBe() {
  std::vector<std::byte> expected = GpuSide::Noise(2);
  owner_->Put(expected);
  const std::vector<std::byte> source = GpuSide::Noise(1);
  for (uint64_t seed = 10; seed < 14; ++seed) {
    child_.pipe().Send(std::to_string(seed));
    ASSERT_EQ(child_.pipe().Receive(), "done");
    for (const BlockCopy& copy : SomeCopies(seed)) {
      std::memcpy(expected.data() + copy.dst_offset, source.data() + copy.src_offset, copy.bytes);
    }
    ASSERT_TRUE(owner_->Bytes() == expected) << "seed " << seed;
  }
  child_.pipe().Send("time");
  const std::string speed = child_.pipe().Receive();
  EXPECT_THAT(speed, HasSubstr("GB/s"));
  RecordProperty("speed", speed);
  std::printf("writer on GPU %d: %s\n", GetParam(), speed.c_str());
}

class CudaIpcOnGpu : public LaneOnGpu {
 protected:
  CudaIpcOnGpu() : LaneOnGpu(Lane::kCudaIpc) {}
};

TEST_P(CudaIpcOnGpu, BytesArriveExactlyWhereTheyShould) { ExpectBytesWhereTheyShouldBe(); }

TEST_P(CudaIpcOnGpu, NothingLandsAfterTheProofOfAWritersDeath) {
  child_.pipe().Send("token");
  auto watch =
      dynamic_cast<WriterWatcher&>(*owner_->transport).WatchWriter(child_.pipe().Receive());
  child_.pipe().Send("flood");
  ASSERT_EQ(child_.pipe().Receive(), "flooding");
  ASSERT_TRUE(watch) << watch.error().message;
  EXPECT_FALSE(watch->Dead());
  child_.Signal(SIGKILL);
  pollfd state{watch->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&state, 1, static_cast<int>(ToMs(kPatience))), 1);
  EXPECT_TRUE(watch->Dead());
  const std::vector<std::byte> mark(kPoolBytes, std::byte{0x5a});
  owner_->Put(mark);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(owner_->Bytes() == mark);
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudaIpcOnGpu, testing::Values(0, 1),
                         [](const auto& gpu) { return gpu.param == 0 ? "OneGpu" : "TwoGpus"; });

// By way of page-locked memory, whatever the installed UCX was built for.
class UcxOnGpu : public LaneOnGpu {
 protected:
  UcxOnGpu() : LaneOnGpu(Lane::kUcx) {}
  void SetUp() override {
    if (auto opened = OpenUcxTransport(UcxOptions(), Folders()); !opened)
      GTEST_SKIP() << opened.error().message;
    LaneOnGpu::SetUp();
  }
};

TEST_P(UcxOnGpu, BytesArriveExactlyWhereTheyShould) { ExpectBytesWhereTheyShouldBe(); }

INSTANTIATE_TEST_SUITE_P(Gpus, UcxOnGpu, testing::Values(0, 1),
                         [](const auto& gpu) { return gpu.param == 0 ? "OneGpu" : "TwoGpus"; });

// An owner process dies while this one writes: the writer is told, and its own GPU keeps working.
TEST(CudaIpcOwner, ItsDeathLeavesTheWriterWorking) {
  Child owner([](Child::Pipe& pipe) {
    if (pipe.Receive() != "start") return 0;
    auto side = GpuSide::Open(0);
    if (!side) return 1;
    pipe.Send(*(*side)->transport->Descriptor());
    pipe.Receive();
    return 0;
  });
  auto side = GpuSide::Open(0);
  if (!side) GTEST_SKIP() << side.error().message;
  owner.pipe().Send("start");
  const std::string descriptor = owner.pipe().Receive();
  const auto peer = (*side)->transport->Connect(descriptor, kPatience);
  ASSERT_TRUE(peer) << peer.error().message;
  ASSERT_TRUE((*side)->WriteAndWait(*peer, {{0, 0, kPoolBytes}}));
  owner.Signal(SIGKILL);
  owner.Join();
  Status status;
  while (status) status = (*side)->WriteAndWait(*peer, {{0, 0, kPoolBytes}});
  EXPECT_EQ(status.error().code, Code::kUnavailable) << status.error().message;
  (*side)->transport->Disconnect(*peer);
  const std::vector<std::byte> noise = GpuSide::Noise(5);
  (*side)->Put(noise);
  EXPECT_TRUE((*side)->Bytes() == noise);
  EXPECT_FALSE((*side)->transport->Connect(descriptor, kPatience).has_value());
}

}  // namespace
}  // namespace aisp
