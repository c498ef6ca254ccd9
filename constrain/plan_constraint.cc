#include "constrain/plan_constraint.h"

#include <algorithm>

#include "constrain/plan_endings.h"
#include "constrain/plan_tables.h"

namespace aisp {
namespace {

enum class Phase : uint8_t { kThinking, kFree, kLiteral, kArguments, kBody, kEnd };

// A matcher and the number of AdvanceBytes calls it has had.
struct Part {
  std::unique_ptr<Matcher> matcher;
  size_t calls = 0;
};

struct Place {
  Phase phase = Phase::kEnd;
  bool at_start = true;    // kFree: only blanks so far
  bool may_think = false;  // kFree
  const Literals* list = nullptr;
  size_t low = 0, high = 0, offset = 0;  // kLiteral: the alternatives left, and the position in
                                         // them
  size_t matched = 0;                    // kThinking, kFree: matched bytes of the marker
  size_t opening = 0;                    // kFree: matched bytes of think_open
  int64_t thought = 0;                   // tokens
  std::shared_ptr<Part> part;            // kArguments, kBody; kLiteral: a parallel body
  size_t calls = 0;                      // of the part up to here
};

struct PlanShared {
  PlanTables tables;
  PlanEndings endings{&tables};
  PlanShared(AnswerPlan plan, std::shared_ptr<const TokenTrie> trie)
      : tables(std::move(plan), std::move(trie)) {}
};

class PlanMatcher final : public Matcher {
 public:
  explicit PlanMatcher(std::shared_ptr<const PlanShared> shared)
      : shared_(std::move(shared)), s_(&shared_->tables) {
    if (s_->plan.think_is_open && !s_->plan.think_close.empty()) {
      at_.phase = Phase::kThinking;
    } else if (s_->plan.then == AnswerPlan::Then::kBody) {
      EnterBody(s_->begin, &at_);
    } else if (s_->plan.then == AnswerPlan::Then::kCalls) {
      Enter(s_->begin, &at_);
    } else {
      AfterThinking(&at_);
      at_.may_think = s_->MayThink();
    }
  }

  bool Advance(TokenId token) override {
    for (const auto& [id, text] : s_->plan.markers) {
      if (id == token) return Take(text, /*control=*/true) == text.size();
    }
    if (token < 0 || static_cast<size_t>(token) >= s_->trie->vocabulary()) return false;
    const std::string& piece = s_->trie->piece(token);
    return !piece.empty() && AdvanceBytes(piece) == piece.size();
  }

  size_t AdvanceBytes(std::string_view bytes) override { return Take(bytes, /*control=*/false); }

  void Rewind(size_t count) override {
    for (; count > 0 && !history_.empty(); --count) {
      at_ = std::move(history_.back());
      history_.pop_back();
      Restore(at_);
    }
  }

  bool IsWhole() override {
    switch (at_.phase) {
      case Phase::kThinking:
        return s_->plan.then == AnswerPlan::Then::kFree;
      case Phase::kFree:
      case Phase::kEnd:
        return true;
      case Phase::kBody:
        return at_.part->matcher->IsWhole();
      case Phase::kLiteral:
        if (at_.part != nullptr && at_.part->matcher->IsWhole()) return true;
        return std::any_of(at_.list->begin() + static_cast<ptrdiff_t>(at_.low),
                           at_.list->begin() + static_cast<ptrdiff_t>(at_.high),
                           [this](const Literal& each) {
                             return each.to == Literal::kEnd && each.text.size() == at_.offset;
                           });
      case Phase::kArguments:
        break;
    }
    return false;
  }

  void Mask(TokenMask* mask) override {
    std::fill(mask->words().begin(), mask->words().end(), 0u);
    switch (at_.phase) {
      case Phase::kThinking:
        if (Exhausted(at_)) return LiteralMask(ForcedClose(at_), mask);
        return FreeMask(mask);
      case Phase::kFree:
        return FreeMask(mask);
      case Phase::kLiteral:
        return LiteralMask(at_, mask);
      case Phase::kBody:
        return at_.part->matcher->Mask(mask);
      case Phase::kArguments:
        at_.part->matcher->Mask(mask);
        for (const PlanTables::Crossing& each : s_->crossings) Judge(each.token, mask);
        return;
      case Phase::kEnd:
        return;
    }
  }

  std::optional<Ending> FindEnding(size_t limit) override {
    const PlanEndings& endings = shared_->endings;
    switch (at_.phase) {
      case Phase::kThinking:
        return endings.OfThinking(at_.matched, limit);
      case Phase::kFree:
        return endings.OfFree(limit);
      case Phase::kLiteral:
        return endings.OfLiterals({at_.list, at_.low, at_.high, at_.offset,
                                   at_.part == nullptr ? nullptr : at_.part->matcher.get()},
                                  limit);
      case Phase::kArguments:
        return endings.OfArguments(at_.part->matcher.get(), limit);
      case Phase::kBody:
        return at_.part->matcher->FindEnding(limit);
      case Phase::kEnd:
        break;
    }
    return Ending{};
  }

  bool KeepWhole(TokenMask* mask) override {
    if (at_.phase != Phase::kFree) return false;
    for (const TokenId token : shared_->endings.openers()) {
      if (!mask->Has(static_cast<size_t>(token)) || !Advance(token)) continue;
      const bool free = at_.phase == Phase::kFree;
      Rewind(1);
      if (!free) mask->Clear(static_cast<size_t>(token));
    }
    return true;
  }

  std::string Forced(size_t limit) override {
    if (at_.phase == Phase::kArguments || at_.phase == Phase::kBody) {
      return at_.part->matcher->Forced(limit);
    }
    const Place place = Exhausted(at_) ? ForcedClose(at_) : at_;
    if (place.phase != Phase::kLiteral || place.part != nullptr || IsWhole()) return "";
    const std::string& low = (*place.list)[place.low].text;
    const std::string& high = (*place.list)[place.high - 1].text;
    size_t end = place.offset;
    while (end < low.size() && end < high.size() && low[end] == high[end]) ++end;
    return low.substr(place.offset, std::min(end - place.offset, limit));
  }

 private:
  // A control token is not text of a body.
  size_t Take(std::string_view bytes, bool control) {
    if (control && at_.phase == Phase::kBody) return 0;
    Place next = at_;
    if (control && next.phase == Phase::kLiteral) next.part = nullptr;
    const bool thinks = next.phase == Phase::kThinking;
    size_t done = 0;
    while (done < bytes.size()) {
      const size_t taken = Step(&next, bytes.substr(done));
      if (taken == 0) {
        Restore(at_);
        return done;
      }
      done += taken;
    }
    if (thinks && next.phase == Phase::kThinking) ++next.thought;
    history_.push_back(std::move(at_));
    at_ = std::move(next);
    return bytes.size();
  }

  bool Exhausted(const Place& place) const {
    return place.phase == Phase::kThinking && s_->plan.think_budget >= 0 &&
           place.thought >= s_->plan.think_budget;
  }

  Place ForcedClose(const Place& place) const {
    Place forced = place;
    forced.phase = Phase::kLiteral;
    forced.list = &s_->think_close;
    forced.low = 0;
    forced.high = 1;
    forced.offset = place.matched;
    return forced;
  }

  void AfterThinking(Place* place) const {
    switch (s_->plan.then) {
      case AnswerPlan::Then::kFree:
        place->phase = Phase::kFree;
        place->matched = 0;
        place->at_start = true;
        return;
      case AnswerPlan::Then::kCalls:
        return Enter(s_->first, place);
      case AnswerPlan::Then::kBody:
        return EnterBody(s_->first, place);
    }
  }

  // Enters a body in parallel with the texts that lead elsewhere.
  void EnterBody(const Literals& list, Place* place) const {
    Enter(list, place);
    if (!s_->plan.body_open.empty()) return;
    place->part = NewPart(*s_->plan.body);
    if (list.empty()) place->phase = Phase::kBody;
  }

  static std::shared_ptr<Part> NewPart(Constraint& constraint) {
    return std::make_shared<Part>(Part{constraint.NewMatcher(), 0});
  }

  static void Enter(const Literals& list, Place* place) {
    place->phase = Phase::kLiteral;
    place->list = &list;
    place->low = 0;
    place->high = list.size();
    place->offset = 0;
    place->part = nullptr;
    place->calls = 0;
  }

  // The shared part may be ahead of this place, so it is rewound.
  static void Restore(const Place& place) {
    if (place.part == nullptr) return;
    place.part->matcher->Rewind(place.part->calls - place.calls);
    place.part->calls = place.calls;
  }

  static bool Feed(Place* place, std::string_view bytes) {
    if (place->part->matcher->AdvanceBytes(bytes) != bytes.size()) return false;
    place->calls = ++place->part->calls;
    return true;
  }

  // Consumes bytes from the front of `bytes`; 0: they may not follow.
  size_t Step(Place* place, std::string_view bytes) {
    if (Exhausted(*place)) *place = ForcedClose(*place);
    switch (place->phase) {
      case Phase::kThinking:
        place->matched = s_->thought.Next(place->matched, bytes[0]);
        if (place->matched == s_->plan.think_close.size()) AfterThinking(place);
        return 1;
      case Phase::kFree:
        return StepFree(place, bytes[0]);
      case Phase::kLiteral:
        return StepLiteral(place, bytes[0]) ? 1 : 0;
      case Phase::kBody:
        return Feed(place, bytes) ? bytes.size() : 0;
      case Phase::kArguments:
        return StepArguments(place, bytes);
      case Phase::kEnd:
        break;
    }
    return 0;
  }

  size_t StepFree(Place* place, char byte) const {
    const AnswerPlan& plan = s_->plan;
    const bool blank = byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
    const bool first = place->at_start;
    if (first && place->may_think) {
      place->opening = s_->opened.Next(place->opening, byte);
      if (place->opening == plan.think_open.size()) {
        place->phase = Phase::kThinking;
        place->matched = 0;
        return 1;
      }
    }
    if (!plan.trigger.empty() && (first || !plan.trigger_at_start)) {
      place->matched = s_->trigger.Next(place->matched, byte);
      if (place->matched == plan.trigger.size()) {
        Enter(s_->triggered, place);
        return 1;
      }
    }
    if (!blank && place->opening == 0 && place->matched == 0) place->at_start = false;
    return 1;
  }

  bool StepLiteral(Place* place, char byte) {
    const Literals& list = *place->list;
    const size_t at = place->offset;
    if (place->part != nullptr && !Feed(place, {&byte, 1})) place->part = nullptr;
    const auto fits = [&](const Literal& each) {
      return each.text.size() > at && each.text[at] == byte;
    };
    while (place->low < place->high && !fits(list[place->low])) ++place->low;
    while (place->low < place->high && !fits(list[place->high - 1])) --place->high;
    if (place->low == place->high) {
      place->phase = Phase::kBody;
      return place->part != nullptr;
    }
    ++place->offset;
    // A complete literal sorts before those that continue.
    const Literal& done = list[place->low];
    if (done.text.size() == place->offset) Arrive(done.to, place);
    return true;
  }

  // At the end of a literal.
  void Arrive(int32_t to, Place* place) const {
    if (to == Literal::kAfterThinking) return AfterThinking(place);
    place->part = nullptr;
    if (to == Literal::kThinking) {
      place->phase = Phase::kThinking;
      place->matched = 0;
    } else if (to == Literal::kBody) {
      place->phase = Phase::kBody;
      place->part = NewPart(*s_->plan.body);
    } else if (to >= 0) {
      place->phase = Phase::kArguments;
      place->part = NewPart(*s_->plan.tools[static_cast<size_t>(to)].arguments);
    } else if (place->low + 1 == place->high) {
      place->phase = Phase::kEnd;
    }
    place->calls = 0;
  }

  // Up to the next byte that may end the arguments.
  size_t StepArguments(Place* place, std::string_view bytes) {
    const size_t end = bytes.find(s_->plan.arguments_end);
    const size_t size = end == std::string_view::npos ? bytes.size() : end + 1;
    if (!Feed(place, bytes.substr(0, size))) return 0;
    if (end != std::string_view::npos && place->part->matcher->IsWhole()) {
      Enter(s_->next, place);
      if (place->list->size() == 1 && place->list->front().text.empty()) place->phase = Phase::kEnd;
    }
    return size;
  }

  // Sets the token if it may follow, else clears it.
  void Judge(TokenId token, TokenMask* mask) {
    if (Advance(token)) {
      Rewind(1);
      mask->Set(static_cast<size_t>(token));
    } else {
      mask->Clear(static_cast<size_t>(token));
    }
  }

  // For tokens in which `marker` ends early, checks what follows it.
  void JudgePast(const Marker& marker, size_t matched, const std::vector<TokenId>& tokens,
                 TokenMask* mask) {
    for (const TokenId token : tokens) {
      const std::string& piece = s_->trie->piece(token);
      size_t at = matched;
      for (size_t i = 0; i + 1 < piece.size(); ++i) {
        at = marker.Next(at, piece[i]);
        if (at != marker.text().size()) continue;
        Judge(token, mask);
        break;
      }
    }
  }

  void FreeMask(TokenMask* mask) {
    mask->Join(s_->any);
    const bool thinking = at_.phase == Phase::kThinking;
    if (thinking) {
      JudgePast(s_->thought, at_.matched, s_->past_thought, mask);
    } else {
      JudgePast(s_->trigger, at_.matched, s_->past_trigger, mask);
      if (at_.may_think && at_.at_start) JudgePast(s_->opened, at_.opening, s_->past_open, mask);
    }
    // Of control tokens only those with a meaning here.
    for (const auto& [id, text] : s_->plan.markers) {
      const bool closes = thinking && text == s_->plan.think_close;
      const bool opens = !thinking && !s_->plan.trigger.empty() &&
                         (s_->plan.trigger.starts_with(text) || text == s_->plan.trigger);
      const bool thinks = !thinking && at_.may_think && at_.at_start && text == s_->plan.think_open;
      if (closes || opens || thinks || (s_->plan.free_markers && !thinking)) Judge(id, mask);
    }
  }

  void LiteralMask(const Place& place, TokenMask* mask) {
    if (place.part != nullptr) place.part->matcher->Mask(mask);
    for (size_t i = place.low; i < place.high; ++i) {
      const Literal& literal = (*place.list)[i];
      const std::string_view rest = std::string_view(literal.text).substr(place.offset);
      if (rest.empty()) continue;
      const bool marked = MarkerMask(rest, mask);
      if (marked && place.part == nullptr) continue;
      int32_t node = -1;
      size_t depth = 0;
      while (depth < rest.size()) {
        node = s_->trie->Child(node, static_cast<uint8_t>(rest[depth]));
        if (node < 0) break;
        ++depth;
        if (!marked) s_->trie->SetTokens(s_->trie->nodes()[static_cast<size_t>(node)], mask);
      }
      if (node >= 0 && depth == rest.size() && literal.to != Literal::kEnd)
        Beyond(place, rest, node, mask);
    }
  }

  // Handles a control token that continues the text.
  bool MarkerMask(std::string_view rest, TokenMask* mask) const {
    for (const auto& [id, text] : s_->plan.markers) {
      if (!rest.starts_with(text)) continue;
      mask->Set(static_cast<size_t>(id));
      return true;
    }
    return false;
  }

  // Tokens that continue past the end of the literal (`node`): what follows the literal decides,
  // whatever a parallel body would allow.
  void Beyond(const Place& from, std::string_view rest, int32_t node, TokenMask* mask) {
    const auto nodes = s_->trie->nodes();
    const TrieNode& end = nodes[static_cast<size_t>(node)];
    std::vector<Place> path = {from};
    for (const char byte : rest) Step(&path.front(), {&byte, 1});
    s_->trie->ClearBelow(node, mask);
    s_->trie->SetTokens(end, mask);
    for (size_t i = static_cast<size_t>(node) + 1; i < end.next;) {
      const char byte = static_cast<char>(nodes[i].byte);
      path.resize(static_cast<size_t>(nodes[i].depth - end.depth));
      Restore(path.back());
      Place next = path.back();
      if (Step(&next, {&byte, 1}) == 0) {
        i = nodes[i].next;
        continue;
      }
      path.push_back(std::move(next));
      s_->trie->SetTokens(nodes[i++], mask);
    }
    Restore(from);
  }

  const std::shared_ptr<const PlanShared> shared_;
  const PlanTables* const s_;
  Place at_;
  std::vector<Place> history_;
};

class PlanConstraint final : public Constraint {
 public:
  explicit PlanConstraint(std::shared_ptr<const PlanShared> shared) : shared_(std::move(shared)) {}
  std::unique_ptr<Matcher> NewMatcher() override { return std::make_unique<PlanMatcher>(shared_); }
  size_t bytes() const override {
    const PlanTables& tables = shared_->tables;
    size_t bytes = tables.crossings.size() * sizeof(PlanTables::Crossing) + tables.any.size() / 8;
    for (const AnswerPlan::Tool& tool : tables.plan.tools) bytes += tool.arguments->bytes();
    if (tables.plan.body != nullptr) bytes += tables.plan.body->bytes();
    return bytes;
  }

 private:
  std::shared_ptr<const PlanShared> shared_;
};

}  // namespace

Result<std::shared_ptr<Constraint>> MakePlanConstraint(AnswerPlan plan,
                                                       std::shared_ptr<const TokenTrie> trie) {
  const bool calls = plan.then == AnswerPlan::Then::kCalls || !plan.trigger.empty() ||
                     (plan.then == AnswerPlan::Then::kBody && !plan.tools.empty());
  if (calls && plan.tools.empty()) return InvalidArgument("calls without a tool to call");
  if (calls && (plan.before + plan.middle).empty())
    return InvalidArgument("calls without a text that tells them");
  if (!(plan.open + plan.before).starts_with(plan.trigger))
    return InvalidArgument("a trigger that does not begin a call");
  if (plan.then == AnswerPlan::Then::kBody && plan.body == nullptr)
    return InvalidArgument("a body without a constraint");
  return std::make_shared<PlanConstraint>(
      std::make_shared<const PlanShared>(std::move(plan), std::move(trie)));
}

}  // namespace aisp
