#include "constrain/text_constraint.h"

#include <mutex>
#include <unordered_map>

#include "common/strings.h"
#include "constrain/automaton.h"
#include "constrain/growth_bound.h"
#include "constrain/pattern.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr size_t kMaxMasks = 512;

struct Shared {
  explicit Shared(std::shared_ptr<const TokenTrie> t) : trie(std::move(t)) {}

  // Cached per state; bounded.
  const TokenMask& MaskOf(int32_t state) {
    const auto known = masks.find(state);
    if (known != masks.end()) return known->second;
    if (masks.size() >= kMaxMasks) masks.clear();
    TokenMask mask(trie->vocabulary());
    const auto nodes = trie->nodes();
    std::vector<int32_t> states(trie->max_depth() + 1u, state);
    for (uint32_t i = 0; i < nodes.size();) {
      const TrieNode& node = nodes[i];
      const int32_t next = automaton->Step(states[node.depth - 1u], node.byte);
      if (next == Automaton::kDead) {
        i = node.next;
        continue;
      }
      states[node.depth] = next;
      trie->SetTokens(node, &mask);
      ++i;
    }
    if (!languages.MayGrow()) return cut = std::move(mask);
    return masks.emplace(state, std::move(mask)).first->second;
  }

  std::shared_ptr<const TokenTrie> trie;
  Languages languages;
  std::unique_ptr<Automaton> automaton;
  std::unordered_map<int32_t, TokenMask> masks;
  TokenMask cut;  // cut short by GrowthBound, so not cached
  std::mutex mutex;
};

class TextMatcher : public Matcher {
 public:
  explicit TextMatcher(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), state_(shared_->automaton->start()) {}

  bool Advance(TokenId token) override {
    if (token < 0 || static_cast<size_t>(token) >= shared_->trie->vocabulary()) return false;
    const std::string& piece = shared_->trie->piece(token);
    return !piece.empty() && AdvanceBytes(piece) == piece.size();
  }

  size_t AdvanceBytes(std::string_view bytes) override {
    const std::lock_guard lock(shared_->mutex);
    int32_t state = state_;
    for (size_t i = 0; i < bytes.size(); ++i) {
      state = shared_->automaton->Step(state, static_cast<uint8_t>(bytes[i]));
      if (state == Automaton::kDead) return i;
    }
    history_.push_back(state_);
    state_ = state;
    return bytes.size();
  }

  void Rewind(size_t count) override {
    for (; count > 0 && !history_.empty(); --count) {
      state_ = history_.back();
      history_.pop_back();
    }
  }

  bool IsWhole() override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->automaton->Accepts(state_);
  }

  void Mask(TokenMask* mask) override {
    const std::lock_guard lock(shared_->mutex);
    const GrowthBound bound(&shared_->languages);
    *mask = shared_->MaskOf(state_);
  }

  std::optional<Ending> FindEnding(size_t limit) override {
    const std::lock_guard lock(shared_->mutex);
    const GrowthBound bound(&shared_->languages);
    const auto text = shared_->automaton->Shortest(state_, 0);
    Ending out;
    if (!text || text->size() > limit || !shared_->trie->SpellOut(*text, &out.tokens))
      return std::nullopt;
    // Where another branch of the pattern leads is unknown before it is taken.
    constexpr size_t kGrowth = 8;
    out.growth = kGrowth;
    return out;
  }

  std::string Forced(size_t limit) override {
    const std::lock_guard lock(shared_->mutex);
    const GrowthBound bound(&shared_->languages);
    std::string out;
    for (int32_t state = state_; out.size() < limit && !shared_->automaton->Accepts(state);) {
      int only = -1;
      const Automaton::Row& row = shared_->automaton->RowOf(state);
      for (int byte = 0; byte < 256; ++byte) {
        if (row[static_cast<size_t>(byte)] != Automaton::kDead) only = only == -1 ? byte : -2;
      }
      if (only < 0) break;
      out.push_back(static_cast<char>(only));
      state = row[static_cast<size_t>(only)];
    }
    return out;
  }

 private:
  std::shared_ptr<Shared> shared_;
  int32_t state_;
  std::vector<int32_t> history_;
};

class TextConstraint : public Constraint {
 public:
  explicit TextConstraint(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::unique_ptr<Matcher> NewMatcher() override { return std::make_unique<TextMatcher>(shared_); }
  size_t bytes() const override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->masks.size() * shared_->trie->vocabulary() / 8 +
           shared_->languages.size() * 100;
  }

 private:
  std::shared_ptr<Shared> shared_;
};

Result<std::shared_ptr<Constraint>> Finish(std::shared_ptr<Shared> shared, TermId language) {
  shared->automaton = std::make_unique<Automaton>(&shared->languages, language);
  if (shared->languages.TimedOut()) {
    return ResourceExhausted(
        "the constraint takes longer to compile than --grammar-compile-timeout allows; simplify "
        "it");
  }
  shared->languages.SetDeadline({});
  if (shared->automaton->start() == Automaton::kDead) {
    if (shared->languages.HasCutSearch())
      return ResourceExhausted("an end of the pattern is behind more states than are looked at");
    return InvalidArgument("no text matches");
  }
  return std::make_shared<TextConstraint>(std::move(shared));
}

}  // namespace

Result<std::shared_ptr<Constraint>> MakePatternConstraint(std::string_view pattern,
                                                          std::shared_ptr<const TokenTrie> trie,
                                                          std::chrono::milliseconds timeout) {
  auto shared = std::make_shared<Shared>(std::move(trie));
  shared->languages.SetDeadline(Deadline(timeout));
  AISP_ASSIGN_OR_RETURN(const TermId language, CompileWholePattern(pattern, &shared->languages));
  if (!Automaton::IsNarrow(&shared->languages, language) && !shared->languages.TimedOut())
    return ResourceExhausted("the pattern needs more states than one may have");
  return Finish(std::move(shared), language);
}

Result<std::shared_ptr<Constraint>> MakeChoiceConstraint(const std::vector<std::string>& choices,
                                                         std::shared_ptr<const TokenTrie> trie) {
  auto shared = std::make_shared<Shared>(std::move(trie));
  std::vector<std::u32string> texts;
  for (const std::string& choice : choices) {
    if (!IsValidUtf8(choice)) return InvalidArgument("a choice that is not valid UTF-8");
    texts.push_back(ToUtf32(choice));
  }
  return Finish(shared, shared->languages.Literals(std::move(texts)));
}

}  // namespace aisp
