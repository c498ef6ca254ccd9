#include "kvcache/tiers/disk_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "common/random.h"
#include "tests/kvcache/tiers/faulty_file.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

constexpr size_t kPayload = 10000;
constexpr int32_t kSlots = 6;
constexpr Hash128 kModel = {11, 12};

Hash128 Key(uint64_t n) { return {n, ~n}; }

class DiskStoreTest : public ::testing::Test {
 protected:
  DiskStoreTest() { disk.bytes.resize(DiskStore::SlotBytes(kPayload) * kSlots); }

  DiskStore Open(const Hash128& model = kModel) {
    return DiskStore({model, kPayload, 1000}, std::make_unique<FaultyFile>(&disk), kSlots);
  }
  std::vector<std::byte> Block(uint64_t seed) const {
    std::vector<std::byte> slot(DiskStore::SlotBytes(kPayload));
    SplitMix64 random(seed);
    for (size_t i = 0; i < kPayload; ++i)
      slot[DiskStore::kHeaderBytes + i] = static_cast<std::byte>(random.Next());
    return slot;
  }
  Status Write(DiskStore& store, int32_t slot, uint64_t key, uint64_t parent = 0) {
    std::vector<std::byte> buffer = Block(key);
    return store.Write({slot, Key(key), Key(parent), 16 * slot}, buffer);
  }
  // If Read succeeds, the payload must be right.
  Status Read(DiskStore& store, int32_t slot, uint64_t key) {
    std::vector<std::byte> buffer(store.slot_bytes());
    Status status = store.Read(slot, Key(key), buffer);
    const std::vector<std::byte> right = Block(key);
    if (status) {
      EXPECT_TRUE(std::equal(right.begin() + DiskStore::kHeaderBytes,
                             right.begin() + DiskStore::kHeaderBytes + kPayload,
                             buffer.begin() + DiskStore::kHeaderBytes));
    }
    return status;
  }
  static std::vector<TierEntry> Scan(DiskStore& store) {
    std::vector<std::byte> scratch(DiskStore::kHeaderBytes);
    return store.Scan(scratch);
  }

  FaultyDisk disk;
};

TEST_F(DiskStoreTest, WhatIsWrittenIsReadAgainAfterARestart) {
  DiskStore before = Open();
  ASSERT_TRUE(Write(before, 3, 30));
  ASSERT_TRUE(Write(before, 1, 10, 30));
  DiskStore after = Open();
  const auto found = Scan(after);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].slot, 3) << "the older first";
  EXPECT_EQ(found[1].slot, 1);
  EXPECT_EQ(found[1].key, Key(10));
  EXPECT_EQ(found[1].parent, Key(30));
  EXPECT_EQ(found[1].position, 16);
  EXPECT_TRUE(Read(after, 3, 30));
  EXPECT_TRUE(Read(after, 1, 10));
  EXPECT_EQ(Read(after, 1, 30).error().code, Code::kDataLoss) << "another block";
  EXPECT_EQ(Read(after, 0, 10).error().code, Code::kDataLoss) << "never written";
}

TEST_F(DiskStoreTest, TheUnitsOfABlockOutliveARestartAndAreHashedWithIt) {
  DiskStore before = Open();
  TierEntry entry{2, Key(7), Key(0), 32};
  entry.units[0] = {1, 2};
  entry.units[7] = {3, 4};
  std::vector<std::byte> buffer = Block(7);
  ASSERT_TRUE(before.Write(entry, buffer));
  DiskStore after = Open();
  const auto found = Scan(after);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].units, entry.units);
  disk.bytes[2 * after.slot_bytes() + 100] ^= std::byte{1};  // among the units
  DiskStore spoilt = Open();
  EXPECT_TRUE(Scan(spoilt).empty());
}

TEST_F(DiskStoreTest, OfTwoWithOneKeyTheNewerCounts) {
  DiskStore store = Open();
  ASSERT_TRUE(Write(store, 0, 5));
  ASSERT_TRUE(Write(store, 4, 5));
  DiskStore after = Open();
  const auto found = Scan(after);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].slot, 4);
  // Writes from now on are newer than all of it.
  ASSERT_TRUE(Write(after, 2, 5));
  DiskStore last = Open();
  ASSERT_EQ(Scan(last).size(), 1u);
  EXPECT_EQ(Scan(last)[0].slot, 2);
}

TEST_F(DiskStoreTest, BlocksOfAnotherModelAreNotFound) {
  DiskStore store = Open();
  ASSERT_TRUE(Write(store, 0, 5));
  DiskStore other = Open({99, 12});
  EXPECT_TRUE(Scan(other).empty());
  EXPECT_EQ(Read(other, 0, 5).error().code, Code::kDataLoss);
}

TEST_F(DiskStoreTest, ShortReadsAndWritesAreCarriedOn) {
  disk.longest = 4096;
  DiskStore store = Open();
  ASSERT_TRUE(Write(store, 2, 7));
  EXPECT_TRUE(Read(store, 2, 7));
}

TEST_F(DiskStoreTest, AWriteCutAnywhereIsFoundOut) {
  for (size_t cut = 0; cut < DiskStore::SlotBytes(kPayload); cut += 512) {
    FaultyDisk fresh;
    fresh.bytes.resize(disk.bytes.size());
    std::swap(disk, fresh);
    DiskStore store = Open();
    ASSERT_TRUE(Write(store, 2, 7));
    disk.power_is_lost = cut;
    ASSERT_TRUE(Write(store, 2, 8));
    DiskStore after = Open();
    const bool old_is_whole = cut == 0;
    // If only padding is missing, nothing is lost.
    const bool new_is_whole = cut >= DiskStore::kHeaderBytes + kPayload;
    EXPECT_EQ(Read(after, 2, 7).has_value(), old_is_whole) << cut;
    EXPECT_EQ(Read(after, 2, 8).has_value(), new_is_whole) << cut;
  }
}

// The block that a partial write overwrote is lost, nothing else; once there is space, writes work
// again.
TEST_F(DiskStoreTest, ADiskThatFillsInTheMiddleOfAWriteAndHasRoomAgain) {
  for (size_t room = 0; room < DiskStore::SlotBytes(kPayload); room += 512) {
    FaultyDisk fresh;
    fresh.bytes.resize(disk.bytes.size());
    std::swap(disk, fresh);
    DiskStore store = Open();
    ASSERT_TRUE(Write(store, 1, 6));
    ASSERT_TRUE(Write(store, 2, 7));
    disk.room = room;
    const Status full = Write(store, 2, 8);
    ASSERT_FALSE(full) << room;
    EXPECT_EQ(full.error().code, Code::kResourceExhausted);
    const bool all_of_it = room >= DiskStore::kHeaderBytes + kPayload;
    EXPECT_EQ(Read(store, 2, 7).has_value(), room == 0) << room;
    EXPECT_EQ(Read(store, 2, 8).has_value(), all_of_it) << room;
    // The same after a restart; a torn block in its index is detected.
    DiskStore after = Open();
    const size_t found = Scan(after).size();
    EXPECT_GE(found, 1u);
    EXPECT_TRUE(Read(after, 1, 6));
    EXPECT_EQ(Read(after, 2, 8).has_value(), all_of_it) << room;
    disk.room.reset();
    ASSERT_TRUE(Write(store, 2, 9));
    EXPECT_TRUE(Read(store, 2, 9));
    EXPECT_TRUE(Read(store, 1, 6));
    DiskStore later = Open();
    EXPECT_EQ(Scan(later).size(), 2u);
  }
}

TEST_F(DiskStoreTest, AFlippedBitIsFoundOutWhereverItIs) {
  DiskStore store = Open();
  ASSERT_TRUE(Write(store, 2, 7));
  const size_t begin = 2 * DiskStore::SlotBytes(kPayload);
  constexpr size_t kHeaderUsed = 112;
  SplitMix64 random(3);
  for (int i = 0; i < 3000; ++i) {
    size_t at = random.Below(kHeaderUsed + kPayload);
    if (at >= kHeaderUsed) at += DiskStore::kHeaderBytes - kHeaderUsed;
    const auto bit = static_cast<std::byte>(1u << random.Below(8));
    disk.bytes[begin + at] ^= bit;
    ASSERT_EQ(Read(store, 2, 7).error().code, Code::kDataLoss) << at;
    disk.bytes[begin + at] ^= bit;
  }
  EXPECT_TRUE(Read(store, 2, 7));
}

TEST_F(DiskStoreTest, ErrorsOfTheDiskAreValues) {
  DiskStore store = Open();
  ASSERT_TRUE(Write(store, 0, 5));
  disk.fail_reads = Error{Code::kUnavailable, "input/output error"};
  EXPECT_EQ(Read(store, 0, 5).error().code, Code::kUnavailable);
  EXPECT_TRUE(Scan(store).empty());
  disk.fail_reads.reset();
  disk.fail_writes = Error{Code::kResourceExhausted, "no space left on device"};
  EXPECT_EQ(Write(store, 1, 6).error().code, Code::kResourceExhausted);
  disk.fail_writes.reset();
  disk.bytes.resize(DiskStore::SlotBytes(kPayload) / 2);
  EXPECT_EQ(Read(store, 0, 5).error().code, Code::kDataLoss) << "the file was cut";
}

// A process that starts after the file was truncated: opening restores its size.
TEST_F(DiskStoreTest, AFileThatWasCutAnywhereKeepsWhatIsWhole) {
  const size_t slot = DiskStore::SlotBytes(kPayload);
  DiskStore before = Open();
  for (int32_t i = 0; i < kSlots; ++i)
    ASSERT_TRUE(Write(before, i, static_cast<uint64_t>(i) + 1, static_cast<uint64_t>(i)));
  const std::vector<std::byte> whole = disk.bytes;
  for (size_t cut = 0; cut <= whole.size(); cut += slot / 4) {
    disk.bytes = whole;
    disk.bytes.resize(cut);
    disk.bytes.resize(whole.size());
    DiskStore after = Open();
    const size_t entries = Scan(after).size();
    EXPECT_GE(entries, cut / slot) << cut;
    EXPECT_LE(entries, (cut + slot - 1) / slot) << cut;
    for (int32_t i = 0; i < kSlots; ++i) {
      const size_t end = static_cast<size_t>(i) * slot + DiskStore::kHeaderBytes + kPayload;
      const Status read = Read(after, i, static_cast<uint64_t>(i) + 1);
      EXPECT_EQ(read.has_value(), end <= cut) << cut << ", slot " << i;
      if (!read) {
        EXPECT_EQ(read.error().code, Code::kDataLoss);
      }
    }
    ASSERT_TRUE(Write(after, 0, 77));
    EXPECT_TRUE(Read(after, 0, 77)) << "it serves on";
  }
}

TEST(PosixBlockFile, AFileThatWasCutIsBroughtToItsSizeAgain) {
  TempFolder folder;
  const std::string path = folder.path() + "/blocks";
  ASSERT_TRUE(PosixBlockFile::Open(path, 64 << 10));
  ASSERT_EQ(truncate(path.c_str(), 1000), 0);
  auto file = PosixBlockFile::Open(path, 64 << 10);
  ASSERT_TRUE(file) << file.error().message;
  struct stat st {};
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_size, 64 << 10);
  EXPECT_GE(st.st_blocks * 512, 64 << 10);
}

// A file system of a fixed size that refuses at once what is beyond it, and allocates nothing.
TEST(PosixBlockFile, WhereThereIsNoRoomTheFileIsNoLongerThanItWas) {
  struct statvfs room {};
  if (statvfs("/dev/shm", &room) != 0 || room.f_blocks == 0) GTEST_SKIP() << "no /dev/shm";
  const std::string path = "/dev/shm/aisp_block_file_test." + std::to_string(getpid());
  const std::unique_ptr<const char, int (*)(const char*)> gone(path.c_str(), unlink);
  const uint64_t too_much = (room.f_blocks + 16) * room.f_frsize;
  struct stat st {};
  for (const int64_t before : {0, 64 << 10}) {
    if (before > 0) {
      ASSERT_TRUE(PosixBlockFile::Open(path, static_cast<uint64_t>(before)));
    }
    const auto file = PosixBlockFile::Open(path, too_much);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, Code::kResourceExhausted) << file.error().message;
    ASSERT_EQ(stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_size, before);
  }
}

TEST(PosixBlockFile, IsPrivatePreallocatedAndLocked) {
  TempFolder folder;
  const std::string path = folder.path() + "/blocks";
  auto file = PosixBlockFile::Open(path, 64 << 10);
  ASSERT_TRUE(file) << file.error().message;
  struct stat st {};
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(st.st_size, 64 << 10);
  EXPECT_GE(st.st_blocks * 512, 64 << 10) << "the disk cannot be full later";
  auto second = PosixBlockFile::Open(path, 64 << 10);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  file->reset();
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  ASSERT_TRUE(PosixBlockFile::Open(path, 64 << 10));
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u) << "an old file of wider mode is narrowed";
}

TEST(PosixBlockFile, SaysWhatKeepsItFromBeingOpened) {
  const auto file = PosixBlockFile::Open("/nowhere/at/all", 4096);
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().message.find("/nowhere/at/all"), std::string::npos);
}

}  // namespace
}  // namespace aisp
