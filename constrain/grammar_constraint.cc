#include "constrain/grammar_constraint.h"

#include <algorithm>
#include <mutex>

#include "constrain/earley.h"
#include "constrain/grammar_masks.h"
#include "constrain/growth_bound.h"

namespace aisp {
namespace {

struct Shared {
  std::unique_ptr<Grammar> grammar;
  std::unique_ptr<GrammarMasks> masks;
  std::shared_ptr<const TokenTrie> trie;
  std::mutex mutex;
};

class GrammarMatcher : public Matcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)), earley_(shared_->grammar.get()) {
    const std::lock_guard lock(shared_->mutex);
    at_ = earley_.Start();
  }

  bool Advance(TokenId token) override {
    if (token < 0 || static_cast<size_t>(token) >= shared_->trie->vocabulary()) return false;
    const std::string& piece = shared_->trie->piece(token);
    return !piece.empty() && AdvanceBytes(piece) == piece.size();
  }

  size_t AdvanceBytes(std::string_view bytes) override {
    const std::lock_guard lock(shared_->mutex);
    const Before before{at_, earley_.size()};
    for (size_t i = 0; i < bytes.size(); ++i) {
      const EarleySet* next = earley_.Step(*at_, static_cast<uint8_t>(bytes[i]));
      if (next == nullptr) {
        at_ = before.at;
        earley_.Reset(before.size);
        return i;
      }
      at_ = next;
    }
    at_ = earley_.Narrowed(*at_);
    history_.push_back(before);
    return bytes.size();
  }

  void Rewind(size_t count) override {
    for (; count > 0 && !history_.empty(); --count) {
      at_ = history_.back().at;
      earley_.Reset(history_.back().size);
      history_.pop_back();
    }
  }

  bool IsWhole() override { return at_->whole; }

  void Mask(TokenMask* mask) override {
    const std::lock_guard lock(shared_->mutex);
    const GrowthBound bound(&shared_->grammar->languages);
    shared_->masks->Compute(*at_, mask);
  }

  std::string Forced(size_t limit) override {
    const std::lock_guard lock(shared_->mutex);
    const size_t size = earley_.size();
    std::string out;
    const EarleySet* at = at_;
    while (at != nullptr && out.size() < limit && !at->whole && at->first.count() == 1) {
      size_t byte = 0;
      while (!at->first.test(byte)) ++byte;
      at = earley_.Step(*at, static_cast<uint8_t>(byte));
      if (at != nullptr) out.push_back(static_cast<char>(byte));
    }
    earley_.Reset(size);
    return out;
  }

 private:
  struct Before {
    const EarleySet* at;
    size_t size;
  };

  std::shared_ptr<Shared> shared_;
  Earley earley_;
  const EarleySet* at_ = nullptr;
  std::vector<Before> history_;
};

class GrammarConstraint : public Constraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::unique_ptr<Matcher> NewMatcher() override {
    return std::make_unique<GrammarMatcher>(shared_);
  }
  size_t bytes() const override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->masks->bytes() + shared_->grammar->languages.size() * 200 +
           shared_->grammar->productions.size() * 100;
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

Result<std::shared_ptr<Constraint>> MakeGrammarConstraint(std::string_view grammar,
                                                          std::shared_ptr<const TokenTrie> trie,
                                                          std::chrono::milliseconds timeout) {
  auto shared = std::make_shared<Shared>();
  AISP_ASSIGN_OR_RETURN(shared->grammar, CompileGrammar(grammar, timeout));
  shared->trie = std::move(trie);
  shared->masks = std::make_unique<GrammarMasks>(shared->grammar.get(), shared->trie);
  constexpr std::chrono::milliseconds kMostOfPreparing{250};
  const Deadline end(std::min(kMostOfPreparing, timeout / 4));
  shared->masks->Prepare([&end] { return end.Passed(); });
  return std::make_shared<GrammarConstraint>(std::move(shared));
}

}  // namespace aisp
