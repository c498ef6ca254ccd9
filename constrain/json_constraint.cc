#include "constrain/json_constraint.h"

#include <mutex>

#include "constrain/growth_bound.h"
#include "constrain/json_endings.h"
#include "constrain/json_masks.h"

namespace aisp {
namespace {

struct Shared {
  std::unique_ptr<JsonGrammar> grammar;
  std::shared_ptr<const TokenTrie> trie;
  JsonMachine machine;
  JsonMasks masks;
  JsonEndings endings;
  std::mutex mutex;

  Shared(std::unique_ptr<JsonGrammar> g, Whitespace whitespace, std::shared_ptr<const TokenTrie> t)
      : grammar(std::move(g)),
        trie(std::move(t)),
        machine(grammar.get(), whitespace),
        masks(&machine, trie),
        endings(&machine, trie) {}
};

class JsonMatcher : public Matcher {
 public:
  explicit JsonMatcher(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    const std::lock_guard lock(shared_->mutex);
    state_ = shared_->machine.Start(&arena_);
  }

  bool Advance(TokenId token) override {
    if (token < 0 || static_cast<size_t>(token) >= shared_->trie->vocabulary()) return false;
    const std::string& piece = shared_->trie->piece(token);
    return !piece.empty() && AdvanceBytes(piece) == piece.size();
  }

  size_t AdvanceBytes(std::string_view bytes) override {
    const std::lock_guard lock(shared_->mutex);
    const Before before{state_, arena_.mark()};
    for (size_t i = 0; i < bytes.size(); ++i) {
      const JsonState from = state_;
      if (shared_->machine.Step(from, static_cast<uint8_t>(bytes[i]), &arena_, &state_)) continue;
      state_ = before.state;
      arena_.Reset(before.mark);
      return i;
    }
    history_.push_back(before);
    return bytes.size();
  }

  void Rewind(size_t count) override {
    for (; count > 0 && !history_.empty(); --count) {
      state_ = history_.back().state;
      arena_.Reset(history_.back().mark);
      history_.pop_back();
    }
  }

  bool IsWhole() override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->machine.IsWhole(state_);
  }

  void Mask(TokenMask* mask) override {
    const std::lock_guard lock(shared_->mutex);
    const GrowthBound bound(&shared_->grammar->languages);
    shared_->masks.Compute(state_, &arena_, mask);
  }

  std::optional<Ending> FindEnding(size_t limit) override {
    const std::lock_guard lock(shared_->mutex);
    const GrowthBound bound(&shared_->grammar->languages);
    return shared_->endings.Find(state_, limit);
  }

  std::string Forced(size_t limit) override {
    const std::lock_guard lock(shared_->mutex);
    const GrowthBound bound(&shared_->grammar->languages);
    const Arena::Mark mark = arena_.mark();
    std::string out;
    JsonState at = state_;
    while (out.size() < limit && !shared_->machine.IsWhole(at)) {
      const int only = OnlyByte(at);
      JsonState next;
      if (only < 0 || !shared_->machine.Step(at, static_cast<uint8_t>(only), &arena_, &next)) break;
      at = next;
      out.push_back(static_cast<char>(only));
    }
    arena_.Reset(mark);
    return out;
  }

 private:
  struct Before {
    JsonState state;
    Arena::Mark mark;
  };

  // The only byte that may follow, -1 when there are several. Blanks between tokens, and escapes of
  // characters that need none, are always possible and therefore not counted.
  int OnlyByte(const JsonState& at) {
    int only = -1, escape = -1;
    for (int byte = 0; byte < 256; ++byte) {
      const bool blank = byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
      if (blank && at.scalar == nullptr) continue;
      JsonState next;
      const Arena::Mark mark = arena_.mark();
      const bool taken = shared_->machine.Step(at, static_cast<uint8_t>(byte), &arena_, &next);
      arena_.Reset(mark);
      if (!taken) continue;
      if (byte == '\\') {
        escape = byte;
        continue;
      }
      if (only >= 0) return -1;
      only = byte;
    }
    return only >= 0 ? only : escape;
  }

  std::shared_ptr<Shared> shared_;
  Arena arena_;
  JsonState state_;
  std::vector<Before> history_;
};

class JsonConstraint : public Constraint {
 public:
  explicit JsonConstraint(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::unique_ptr<Matcher> NewMatcher() override { return std::make_unique<JsonMatcher>(shared_); }
  size_t bytes() const override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->masks.bytes() + shared_->grammar->languages.size() * 100 +
           shared_->grammar->types.size() * 500;
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::shared_ptr<Constraint> MakeJsonConstraint(std::unique_ptr<JsonGrammar> grammar,
                                               Whitespace whitespace,
                                               std::shared_ptr<const TokenTrie> trie) {
  return std::make_shared<JsonConstraint>(
      std::make_shared<Shared>(std::move(grammar), whitespace, std::move(trie)));
}

}  // namespace aisp
