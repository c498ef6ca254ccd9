// Byte-pair encoding of one word: the pieces of a vocabulary and the ranked merges between them.
//
// Merging takes the pair of lowest rank, the leftmost of equals, until none is left (Sennrich et
// al. 2016). Short words scan for it, long ones keep a heap: O(n log n) for any input, so that a
// megabyte without a space is no denial of service. Immutable after Create: any thread. (A cache of
// the words that are one token uses relaxed atomics and never changes a result.)
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/result.h"

namespace aisp {

// Bounds on what a tokenizer file may claim; larger than any published tokenizer.
inline constexpr size_t kMaxVocabSize = 4u << 20;
inline constexpr size_t kMaxMerges = 8u << 20;
inline constexpr size_t kMaxPieceBytes = 4096;

struct BpeSpec {
  struct Merge {
    TokenId left = 0, right = 0, result = 0;
    uint32_t rank = 0;  // lower merges first
  };
  std::vector<std::string>
      pieces;  // by id: what the piece matches, in bytes; empty when it never matches text
  std::vector<Merge> merges;
  // A symbol is one byte when true, else one UTF-8 character.
  bool byte_symbols = false;
  // A word that is a piece is taken whole, without merging.
  bool ignore_merges = false;
  // Symbols outside the vocabulary: byte tokens (all 256 or none), else `unk`, else dropped.
  std::optional<std::array<TokenId, 256>> byte_tokens;
  std::optional<TokenId> unk;
  bool fuse_unk = false;  // a run of unknown symbols is one `unk`
};

class Bpe {
 public:
  // Memory that Encode works in; one per thread.
  struct Scratch;
  struct ScratchDeleter {
    void operator()(Scratch* s) const;
  };
  using ScratchPtr = std::unique_ptr<Scratch, ScratchDeleter>;
  static ScratchPtr NewScratch();

  // INVALID_ARGUMENT when ids are out of range or a bound is exceeded.
  static Result<Bpe> Create(BpeSpec spec);

  // Appends the tokens of `word` (valid UTF-8 unless symbols are bytes; below 1 GiB).
  void Encode(std::string_view word, Scratch* scratch, std::vector<TokenId>* out) const;

  std::optional<TokenId> Find(std::string_view piece) const;

 private:
  struct MergeTo {
    uint32_t rank = UINT32_MAX;  // UINT32_MAX: these two do not merge
    TokenId result = -1;
  };
  struct MergeSlot {
    uint64_t pair = UINT64_MAX;
    MergeTo to;
  };
  struct PieceSlot {
    uint32_t tag = 0;
    TokenId id = -1;
  };
  enum Whole : uint8_t { kUnknown, kOneToken, kSeveralTokens };

  Bpe() = default;
  void BuildPieceTable();
  bool WordsEndBeforeMark() const;
  void EncodeWord(std::string_view word, Scratch* scratch, std::vector<TokenId>* out) const;
  void BuildMergeTable(const std::vector<BpeSpec::Merge>& merges);
  MergeTo FindMerge(TokenId left, TokenId right) const;
  void AddSymbols(std::string_view word, Scratch* scratch) const;
  void AddSymbol(std::string_view symbol, TokenId id, Scratch* scratch, bool* after_unk) const;
  void MergeByScan(Scratch* scratch) const;
  void MergeByHeap(Scratch* scratch) const;

  BpeSpec spec_;
  size_t max_piece_bytes_ = 0;
  bool cut_before_mark_ = false;  // no merge crosses a U+2581 that follows another character
  std::array<TokenId, 256> byte_symbol_{};         // the piece of each single byte (ASCII only when
                                                   // symbols are characters), or -1
  std::vector<PieceSlot> piece_slots_;             // open addressing, power of two
  std::vector<MergeSlot> merge_slots_;             // open addressing, power of two
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;  // Whole, by id
};

}  // namespace aisp
