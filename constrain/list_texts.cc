#include "constrain/list_texts.h"

#include <algorithm>

namespace aisp {
namespace {

class Search {
 public:
  Search(Automaton* automaton, size_t limit) : automaton_(*automaton), limit_(limit) {}

  // False: too many.
  bool Add(int32_t state, int32_t min_more, int32_t max_more) {
    if (automaton_.Accepts(state) && min_more <= 0) {
      if (found_.size() == limit_) return false;
      found_.push_back(text_);
    }
    if (++looked_ > kMaxLooked) return false;
    const std::bitset<256> bytes = automaton_.BytesOf(state);
    for (size_t b = 0; b < bytes.size(); ++b) {
      if (!bytes[b]) continue;
      const int32_t next = automaton_.Step(state, static_cast<uint8_t>(b));
      const int32_t point = (b & 0xC0) != 0x80 ? 1 : 0;
      if (next == Automaton::kDead || (max_more != -1 && max_more < point)) continue;
      const int32_t max = max_more == -1 ? -1 : max_more - point;
      if (!automaton_.CanFinish(next, min_more - point, max)) continue;
      text_.push_back(static_cast<char>(b));
      if (!Add(next, min_more - point, max)) return false;
      text_.pop_back();
    }
    return true;
  }

  std::vector<std::string> Take() { return std::move(found_); }

 private:
  static constexpr size_t kMaxLooked = 10'000;
  Automaton& automaton_;
  size_t limit_, looked_ = 0;
  std::string text_;
  std::vector<std::string> found_;
};

}  // namespace

std::optional<std::vector<std::string>> ListTexts(Automaton* automaton, int32_t state,
                                                  int32_t min_more, int32_t max_more,
                                                  size_t limit) {
  Search search(automaton, limit);
  if (!search.Add(state, min_more, max_more)) return std::nullopt;
  return search.Take();
}

}  // namespace aisp
