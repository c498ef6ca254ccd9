#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "common/hash.h"
#include "text/utf8.h"

namespace aisp {
namespace {

// Up to this many symbols, a scan for the lowest rank is faster than a heap.
constexpr size_t kScanSymbols = 32;

constexpr std::string_view kSpaceMark =
    "\xE2\x96\x81";  // U+2581, a space in pieces of the SentencePiece kind

constexpr uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr uint64_t MixPair(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return key ^ key >> 32;
}

std::string InRange(const char* what, TokenId id, size_t size) {
  return std::string(what) + " has id " + std::to_string(id) + "; the vocabulary has " +
         std::to_string(size);
}

}  // namespace

struct Bpe::Scratch {
  // A symbol of the word, and its merge with its right neighbour.
  struct Symbol {
    explicit Symbol(TokenId i) : id(i) {}
    TokenId id;  // -1 once merged into its left neighbour
    int32_t previous = -1, next = -1;
    MergeTo merge;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t position;
    // Order of a heap whose top is the lowest rank, then the leftmost.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

void Bpe::ScratchDeleter::operator()(Scratch* s) const { delete s; }
Bpe::ScratchPtr Bpe::NewScratch() { return ScratchPtr(new Scratch); }

Result<Bpe> Bpe::Create(BpeSpec spec) {
  const size_t size = spec.pieces.size();
  if (size > kMaxVocabSize || spec.merges.size() > kMaxMerges) {
    return InvalidArgument("vocabulary of " + std::to_string(size) + " with " +
                           std::to_string(spec.merges.size()) + " merges; the limits are " +
                           std::to_string(kMaxVocabSize) + " and " + std::to_string(kMaxMerges));
  }
  const auto valid = [&](TokenId id) { return id >= 0 && static_cast<size_t>(id) < size; };
  for (const BpeSpec::Merge& m : spec.merges) {
    for (const TokenId id : {m.left, m.right, m.result}) {
      if (!valid(id)) return InvalidArgument(InRange("a merge", id, size));
    }
  }
  if (spec.unk && !valid(*spec.unk)) return InvalidArgument(InRange("unk_token", *spec.unk, size));
  if (spec.byte_tokens) {
    for (const TokenId id : *spec.byte_tokens) {
      if (!valid(id)) return InvalidArgument(InRange("a byte token", id, size));
    }
  }
  Bpe bpe;
  bpe.spec_ = std::move(spec);
  bpe.whole_ = std::make_unique<std::atomic<uint8_t>[]>(size);
  bpe.BuildPieceTable();
  bpe.BuildMergeTable(bpe.spec_.merges);
  bpe.cut_before_mark_ = !bpe.spec_.byte_symbols && bpe.WordsEndBeforeMark();
  bpe.spec_.merges = {};
  bpe.byte_symbol_.fill(-1);
  for (int b = 0; b < (bpe.spec_.byte_symbols ? 256 : 128); ++b) {
    const char c = static_cast<char>(b);
    bpe.byte_symbol_[static_cast<size_t>(b)] = bpe.Find(std::string_view(&c, 1)).value_or(-1);
  }
  return bpe;
}

void Bpe::BuildPieceTable() {
  piece_slots_.assign(std::bit_ceil(spec_.pieces.size() * 2 + 2), PieceSlot{});
  const size_t mask = piece_slots_.size() - 1;
  for (size_t id = 0; id < spec_.pieces.size(); ++id) {
    const std::string& piece = spec_.pieces[id];
    if (piece.empty()) continue;
    max_piece_bytes_ = std::max(max_piece_bytes_, piece.size());
    const uint64_t hash = Hash64(piece);
    size_t slot = hash & mask;
    while (piece_slots_[slot].id >= 0 &&
           spec_.pieces[static_cast<size_t>(piece_slots_[slot].id)] != piece) {
      slot = (slot + 1) & mask;
    }
    piece_slots_[slot] = {static_cast<uint32_t>(hash >> 32), static_cast<TokenId>(id)};
  }
}

bool Bpe::WordsEndBeforeMark() const {
  if (!Find(kSpaceMark)) return false;
  for (const std::string& piece : spec_.pieces) {
    for (size_t at = piece.find(kSpaceMark, 1); at != std::string::npos;
         at = piece.find(kSpaceMark, at + 1)) {
      if (!std::string_view(piece).substr(0, at).ends_with(kSpaceMark)) return false;
    }
  }
  return true;
}

void Bpe::BuildMergeTable(const std::vector<BpeSpec::Merge>& merges) {
  merge_slots_.assign(std::bit_ceil(merges.size() * 3 / 2 + 2), MergeSlot{});
  const size_t mask = merge_slots_.size() - 1;
  for (const BpeSpec::Merge& m : merges) {
    const uint64_t key = PairKey(m.left, m.right);
    size_t slot = MixPair(key) & mask;
    while (merge_slots_[slot].pair != UINT64_MAX && merge_slots_[slot].pair != key)
      slot = (slot + 1) & mask;
    merge_slots_[slot] = {key, {m.rank, m.result}};
  }
}

std::optional<TokenId> Bpe::Find(std::string_view piece) const {
  if (piece.empty() || piece.size() > max_piece_bytes_) return std::nullopt;
  const uint64_t hash = Hash64(piece);
  const size_t mask = piece_slots_.size() - 1;
  for (size_t slot = hash & mask; piece_slots_[slot].id >= 0; slot = (slot + 1) & mask) {
    const PieceSlot& s = piece_slots_[slot];
    if (s.tag == static_cast<uint32_t>(hash >> 32) &&
        spec_.pieces[static_cast<size_t>(s.id)] == piece)
      return s.id;
  }
  return std::nullopt;
}

Bpe::MergeTo Bpe::FindMerge(TokenId left, TokenId right) const {
  const uint64_t key = PairKey(left, right);
  const size_t mask = merge_slots_.size() - 1;
  for (size_t slot = MixPair(key) & mask;; slot = (slot + 1) & mask) {
    if (merge_slots_[slot].pair == key) return merge_slots_[slot].to;
    if (merge_slots_[slot].pair == UINT64_MAX) return {};
  }
}

void Bpe::AddSymbol(std::string_view symbol, TokenId id, Scratch* scratch, bool* after_unk) const {
  const bool unknown = id < 0 && !spec_.byte_tokens;
  if (id >= 0) {
    scratch->symbols.push_back(Scratch::Symbol{id});
  } else if (spec_.byte_tokens) {
    for (const char b : symbol) {
      scratch->symbols.push_back(
          Scratch::Symbol{(*spec_.byte_tokens)[static_cast<unsigned char>(b)]});
    }
  } else if (spec_.unk && !(spec_.fuse_unk && *after_unk)) {
    scratch->symbols.push_back(Scratch::Symbol{*spec_.unk});
  }
  *after_unk = unknown;
}

void Bpe::AddSymbols(std::string_view word, Scratch* scratch) const {
  scratch->symbols.clear();
  bool after_unk = false;
  for (size_t i = 0; i < word.size();) {
    const auto lead = static_cast<unsigned char>(word[i]);
    const size_t size = spec_.byte_symbols ? 1 : std::min(Utf8Length(lead), word.size() - i);
    const std::string_view symbol = word.substr(i, size);
    const TokenId id = size == 1 ? byte_symbol_[lead] : Find(symbol).value_or(-1);
    AddSymbol(symbol, id, scratch, &after_unk);
    i += size;
  }
  auto& symbols = scratch->symbols;
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    symbols[i].merge = FindMerge(symbols[i].id, symbols[i + 1].id);
}

// Symbols stay dense: a merge erases the right one.
void Bpe::MergeByScan(Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  while (symbols.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < symbols.size(); ++i) {
      if (symbols[i].merge.rank < symbols[best].merge.rank) best = i;
    }
    if (symbols[best].merge.rank == UINT32_MAX) return;
    symbols[best].id = symbols[best].merge.result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    symbols[best].merge =
        best + 1 < symbols.size() ? FindMerge(symbols[best].id, symbols[best + 1].id) : MergeTo{};
    if (best > 0) symbols[best - 1].merge = FindMerge(symbols[best - 1].id, symbols[best].id);
  }
}

// Symbols are a linked list in place; a candidate is stale when its symbol no longer has a merge of
// that rank.
void Bpe::MergeByHeap(Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  heap.clear();
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    auto& s = symbols[static_cast<size_t>(i)];
    s.previous = i - 1;
    s.next = i + 1 < count ? i + 1 : -1;
    if (s.merge.rank != UINT32_MAX) heap.push_back({s.merge.rank, static_cast<uint32_t>(i)});
  }
  std::make_heap(heap.begin(), heap.end());
  const auto rate = [&](int32_t i) {
    auto& s = symbols[static_cast<size_t>(i)];
    s.merge = s.next < 0 ? MergeTo{} : FindMerge(s.id, symbols[static_cast<size_t>(s.next)].id);
    if (s.merge.rank == UINT32_MAX) return;
    heap.push_back({s.merge.rank, static_cast<uint32_t>(i)});
    std::push_heap(heap.begin(), heap.end());
  };
  while (!heap.empty()) {
    const auto [rank, position] = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    auto& left = symbols[position];
    if (left.id < 0 || left.merge.rank != rank) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    left.id = left.merge.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0)
      symbols[static_cast<size_t>(left.next)].previous = static_cast<int32_t>(position);
    rate(static_cast<int32_t>(position));
    if (left.previous >= 0) rate(left.previous);
  }
  std::erase_if(symbols, [](const Scratch::Symbol& s) { return s.id < 0; });
}

// SentencePiece models take a whole text as one word. If no merge crosses the beginning of a word,
// splitting there gives the same tokens from short, cheap words.
void Bpe::Encode(std::string_view word, Scratch* scratch, std::vector<TokenId>* out) const {
  if (spec_.ignore_merges || !cut_before_mark_) return EncodeWord(word, scratch, out);
  size_t begin = 0;
  for (size_t at = 0; (at = word.find(kSpaceMark, at)) != std::string_view::npos;
       at += kSpaceMark.size()) {
    if (at == begin || word.substr(0, at).ends_with(kSpaceMark)) continue;
    EncodeWord(word.substr(begin, at - begin), scratch, out);
    begin = at;
  }
  EncodeWord(word.substr(begin), scratch, out);
}

void Bpe::EncodeWord(std::string_view word, Scratch* scratch, std::vector<TokenId>* out) const {
  if (word.empty()) return;
  const std::optional<TokenId> piece = Find(word);
  std::atomic<uint8_t>* whole = piece ? &whole_[static_cast<size_t>(*piece)] : nullptr;
  uint8_t known = kSeveralTokens;
  if (whole != nullptr) known = whole->load(std::memory_order_relaxed);
  if (piece && (spec_.ignore_merges || known == kOneToken)) {
    out->push_back(*piece);
    return;
  }
  AddSymbols(word, scratch);
  scratch->symbols.size() <= kScanSymbols ? MergeByScan(scratch) : MergeByHeap(scratch);
  for (const Scratch::Symbol& s : scratch->symbols) out->push_back(s.id);
  if (known == kUnknown) {
    const bool one = scratch->symbols.size() == 1 && scratch->symbols[0].id == *piece;
    whole->store(one ? kOneToken : kSeveralTokens, std::memory_order_relaxed);
  }
}

}  // namespace aisp
