// Notes from writers to a pool's owner: in order, bounded, and harmless whatever is in the memory.
#include "kvcache/transport/note_box.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "common/random.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

struct Ends {
  Ends() : owner(*NoteBox::Create()), writer(*NoteBox::Open(UniqueFd(dup(owner.fd())))) {}
  NoteBox owner;
  NoteBox writer;
};

TEST(NoteBox, NotesComeInOrder) {
  Ends ends;
  std::string note;
  EXPECT_FALSE(ends.owner.Filled());
  EXPECT_FALSE(ends.owner.Take(&note));
  for (int round = 0; round < 100; ++round) {
    EXPECT_TRUE(ends.writer.Put("a" + std::to_string(round)));
    EXPECT_TRUE(ends.writer.Put(std::string(NoteBox::kMostBytes, 'b')));
    EXPECT_TRUE(ends.owner.Filled());
    ASSERT_TRUE(ends.owner.Take(&note));
    EXPECT_EQ(note, "a" + std::to_string(round));
    ASSERT_TRUE(ends.owner.Take(&note));
    EXPECT_EQ(note, std::string(NoteBox::kMostBytes, 'b'));
    EXPECT_FALSE(ends.owner.Take(&note));
  }
}

TEST(NoteBox, AFullBoxAndALongNoteAreRefused) {
  Ends ends;
  EXPECT_FALSE(ends.writer.Put(std::string(NoteBox::kMostBytes + 1, 'x')));
  for (uint64_t i = 0; i < NoteBox::kNotes; ++i) EXPECT_TRUE(ends.writer.Put("x"));
  EXPECT_FALSE(ends.writer.Put("y"));
  std::string note;
  EXPECT_TRUE(ends.owner.Take(&note));
  EXPECT_TRUE(ends.writer.Put("y"));
}

TEST(NoteBox, GarbageInTheMemoryHarmsNobody) {
  SplitMix64 random(3);
  for (int round = 0; round < 200; ++round) {
    Ends ends;
    std::string bytes(NoteBox::kNotes * (NoteBox::kMostBytes + 8), 'x');
    for (char& byte : bytes) byte = static_cast<char>(random.Below(256));
    // Small counters, so that some lengths are looked at.
    const uint64_t put = random.Below(2) == 0 ? random.Next() : random.Below(12);
    ASSERT_EQ(pwrite(ends.owner.fd(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_EQ(pwrite(ends.owner.fd(), &put, sizeof(put), 0), static_cast<ssize_t>(sizeof(put)));
    std::string note;
    for (uint64_t i = 0; i < 2 * NoteBox::kNotes; ++i) {
      if (ends.owner.Take(&note)) {
        EXPECT_LE(note.size(), NoteBox::kMostBytes);
      }
      ends.writer.Put("x");
    }
  }
}

TEST(NoteBox, MemoryThatItsOwnerCouldTakeAwayIsNotMapped) {
  UniqueFd unsealed(memfd_create("notes", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 1 << 20), 0);
  EXPECT_EQ(NoteBox::Open(std::move(unsealed)).error().code, Code::kFailedPrecondition);
  UniqueFd small(memfd_create("notes", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(small.get(), 64), 0);
  ASSERT_TRUE(SealPool(small.get()).has_value());
  EXPECT_EQ(NoteBox::Open(std::move(small)).error().code, Code::kOutOfRange);
}

TEST(CudaIpcNotes, EachWriterHasItsOwnBoxAndName) {
  Side owner(Lane::kCudaIpc, nullptr);
  const std::string descriptor = *owner.transport().Descriptor();
  Side one(Lane::kCudaIpc, nullptr), two(Lane::kCudaIpc, nullptr);
  auto reached = std::move(*one.transport().Reach(descriptor, kPatience));
  const std::string first = reached->token();
  const KvPeerId peer = one.transport().Add(std::move(reached));
  reached = std::move(*two.transport().Reach(descriptor, kPatience));
  const std::string second = reached->token();
  const KvPeerId other = two.transport().Add(std::move(reached));
  EXPECT_FALSE(owner.transport().HasNotes());
  EXPECT_TRUE(one.transport().Leave(peer, "from one"));
  EXPECT_TRUE(two.transport().Leave(other, "from two"));
  EXPECT_TRUE(owner.transport().HasNotes());
  std::map<std::string, std::string> notes;
  std::string token, note;
  while (owner.transport().TakeNote(&token, &note)) notes[token] = note;
  EXPECT_EQ(notes, (std::map<std::string, std::string>{{first, "from one"}, {second, "from two"}}));
  one.transport().Disconnect(peer);
  EXPECT_FALSE(one.transport().Leave(peer, "late"));
}

TEST(CudaIpcNotes, AreNotOfferedByTheOtherLanes) {
  InprocHub hub;
  for (const Lane lane : Built({Lane::kInproc, Lane::kShm, Lane::kTcp, Lane::kUcx})) {
    Side owner(lane, &hub), writer(lane, &hub);
    const KvPeerId peer = *writer.transport().Connect(*owner.transport().Descriptor(), kPatience);
    EXPECT_FALSE(writer.transport().capabilities().notes);
    EXPECT_FALSE(writer.transport().Leave(peer, "x"));
    EXPECT_FALSE(owner.transport().HasNotes());
  }
}

}  // namespace
}  // namespace aisp
