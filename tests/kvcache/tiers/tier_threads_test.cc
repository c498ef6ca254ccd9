// Real threads, a real file, the CPU as the device.
#include "kvcache/tiers/tier_threads.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "common/random.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/kvcache/tiers/faulty_file.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

KvLayout SmallLayout() {
  KvLayout layout;
  layout.num_layers = 3;
  layout.num_kv_heads = 2;
  layout.head_dim = 8;
  layout.num_blocks = 10;
  return layout;
}

class TierThreadsTest : public ::testing::Test {
 protected:
  TierThreadsTest() : device(MakeCpuDevice()), pool(layout.PoolBytes()) {}

  void Start(std::unique_ptr<BlockFile> file, int32_t host_slots = 4) {
    TierThreads::Options options;
    options.layout = layout;
    options.pool = pool.data();
    options.host_slots = host_slots;
    if (file != nullptr) {
      options.disk = std::make_unique<DiskStore>(
          DiskStore::Shape{{1, 2}, layout.BlockBytes(), 1000}, std::move(file), 4);
    }
    options.on_done = [this] {
      std::lock_guard lock(mutex);
      ++ended;
      changed.notify_all();
    };
    auto started = TierThreads::Start(std::move(options), *device);
    ASSERT_TRUE(started) << started.error().message;
    threads = std::move(*started);
  }

  // Submits and waits for completion.
  Status Do(TierSpot from, TierSpot to, Hash128 key = {7, 7}) {
    const uint64_t id = ++last;
    EXPECT_TRUE(threads->Submit({id, from, to, key, {}, 16}));
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended == static_cast<int>(id); });
    std::vector<TierDone> done;
    threads->TakeDone(&done);
    EXPECT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].id, id);
    return done[0].status;
  }

  void FillBlock(int32_t block, uint64_t seed) {
    SplitMix64 random(seed);
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      std::byte* at = pool.data() + layout.Offset(layer, BlockId(block));
      for (size_t i = 0; i < layout.LayerBlockBytes(); ++i)
        at[i] = static_cast<std::byte>(random.Next());
    }
  }
  bool Equal(int32_t a, int32_t b) const {
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      if (std::memcmp(pool.data() + layout.Offset(layer, BlockId(a)),
                      pool.data() + layout.Offset(layer, BlockId(b)), layout.LayerBlockBytes()))
        return false;
    }
    return true;
  }

  const KvLayout layout = SmallLayout();
  std::unique_ptr<Device> device;
  std::vector<std::byte> pool;
  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0;
  uint64_t last = 0;
  std::unique_ptr<TierThreads> threads;  // last: ends before what its callback uses
};

TEST_F(TierThreadsTest, ABlockGoesDownAndComesBack) {
  TempFolder folder;
  auto file = PosixBlockFile::Open(folder.path() + "/blocks",
                                   4 * DiskStore::SlotBytes(layout.BlockBytes()));
  ASSERT_TRUE(file);
  Start(std::move(*file));
  FillBlock(3, 1);
  ASSERT_TRUE(Do({TierPlace::kPool, 3}, {TierPlace::kHost, 2}));
  ASSERT_TRUE(Do({TierPlace::kHost, 2}, {TierPlace::kDisk, 1}));
  ASSERT_TRUE(Do({TierPlace::kHost, 2}, {TierPlace::kPool, 5}));
  EXPECT_TRUE(Equal(3, 5));
  ASSERT_TRUE(Do({TierPlace::kDisk, 1}, {TierPlace::kPool, 7}));
  EXPECT_TRUE(Equal(3, 7));
  FillBlock(4, 2);
  ASSERT_TRUE(Do({TierPlace::kPool, 4}, {TierPlace::kDisk, 0}, {8, 8}));
  ASSERT_TRUE(Do({TierPlace::kDisk, 0}, {TierPlace::kPool, 9}, {8, 8}));
  EXPECT_TRUE(Equal(4, 9));
  EXPECT_FALSE(Equal(3, 9));
  EXPECT_EQ(Do({TierPlace::kDisk, 0}, {TierPlace::kPool, 9}).error().code, Code::kDataLoss);
}

TEST_F(TierThreadsTest, ManyCopiesAtOnceAllCome) {
  Start(nullptr);
  for (int32_t i = 0; i < 4; ++i) {
    FillBlock(i, static_cast<uint64_t>(i));
    ASSERT_TRUE(Do({TierPlace::kPool, i}, {TierPlace::kHost, i}));
  }
  std::vector<TierDone> done;
  threads->TakeDone(&done);
  const int before = ended;
  for (int32_t i = 0; i < 4; ++i)
    ASSERT_TRUE(
        threads->Submit({++last, {TierPlace::kHost, i}, {TierPlace::kPool, 8 - i}, {}, {}, 16}));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended == before + 4; });
  threads->TakeDone(&done);
  ASSERT_EQ(done.size(), 4u);
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(done[static_cast<size_t>(i)].status);
    EXPECT_TRUE(Equal(i, 8 - i));
  }
}

TEST_F(TierThreadsTest, FaultsOfTheDiskReachTheEngineAsErrors) {
  FaultyDisk disk;
  disk.bytes.resize(4 * DiskStore::SlotBytes(layout.BlockBytes()));
  Start(std::make_unique<FaultyFile>(&disk));
  FillBlock(3, 1);
  disk.fail_writes = Error{Code::kResourceExhausted, "no space left on device"};
  EXPECT_EQ(Do({TierPlace::kPool, 3}, {TierPlace::kDisk, 0}).error().code,
            Code::kResourceExhausted);
  disk.fail_writes.reset();
  ASSERT_TRUE(Do({TierPlace::kPool, 3}, {TierPlace::kDisk, 0}));
  disk.bytes[DiskStore::kHeaderBytes + 5] ^= std::byte{1};
  EXPECT_EQ(Do({TierPlace::kDisk, 0}, {TierPlace::kPool, 5}).error().code, Code::kDataLoss);
}

TEST_F(TierThreadsTest, WithoutATierItsJobsAreRefused) {
  Start(nullptr);
  EXPECT_FALSE(threads->Submit({1, {TierPlace::kPool, 0}, {TierPlace::kDisk, 0}, {}, {}, 0}));
}

}  // namespace
}  // namespace aisp
