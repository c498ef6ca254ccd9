#include "constrain/plan_endings.h"

#include <algorithm>

namespace aisp {
namespace {

constexpr size_t kLongestCall = 16 << 10;  // bytes of a tool's shortest arguments
constexpr size_t kLongestToken = 24;       // bytes of a token that cuts a literal

}  // namespace

const PlanEndings::Found& PlanEndings::Find() const {
  std::call_once(once_, [this] {
    for (const AnswerPlan::Tool& tool : t_.plan.tools)
      found_.arguments.push_back(tool.arguments->NewMatcher()->FindEnding(kLongestCall));
    if (t_.plan.body != nullptr) found_.body = t_.plan.body->NewMatcher()->FindEnding(kLongestCall);
    found_.tail_known = t_.SpellOut(t_.plan.after + t_.plan.close, &found_.tail);
    FindCalls(&found_);
    for (size_t id = 0; id < t_.trie->vocabulary(); ++id) {
      const auto token = static_cast<TokenId>(id);
      const std::string& piece = t_.trie->piece(token);
      const auto may_end = [&piece](const std::string& marker) {
        return !marker.empty() && piece.find(marker.back()) != std::string::npos;
      };
      if (may_end(t_.plan.trigger) || (t_.MayThink() && may_end(t_.plan.think_open)))
        found_.openers.push_back(token);
    }
    for (const auto& [id, text] : t_.plan.markers) found_.openers.push_back(id);
  });
  return found_;
}

void PlanEndings::FindCalls(Found* out) const {
  const AnswerPlan& plan = t_.plan;
  for (size_t i = 0; i < plan.tools.size(); ++i) {
    const std::string call = plan.before + plan.tools[i].name + plan.middle;
    const auto first = Through(*out, plan.open + call, i);
    const auto another = Through(*out, plan.after + plan.separator + call, i);
    out->known = out->known && first && another;
    out->opening = std::max(out->opening, first.value_or(0));
    if (plan.parallel) out->another = std::max(out->another, another.value_or(0));
  }
  out->decides = plan.parallel && std::any_of(t_.crossings.begin(), t_.crossings.end(),
                                              [this](const PlanTables::Crossing& each) {
                                                return MayBeginAnother(each);
                                              });
}

// What follows the arguments in the token decides between the end and another call.
bool PlanEndings::MayBeginAnother(const PlanTables::Crossing& crossing) const {
  const std::string end = t_.plan.after + t_.plan.close;
  const std::string_view rest =
      std::string_view(t_.trie->piece(crossing.token)).substr(crossing.end);
  return std::any_of(t_.next.begin(), t_.next.end(), [&](const Literal& each) {
    if (each.to < 0) return false;
    const size_t same = static_cast<size_t>(
        std::mismatch(each.text.begin(), each.text.end(), end.begin(), end.end()).first -
        each.text.begin());
    const size_t common = std::min(rest.size(), each.text.size());
    return common > same && rest.substr(0, common) == std::string_view(each.text).substr(0, common);
  });
}

std::optional<size_t> PlanEndings::Through(const Found& found, std::string_view before,
                                           size_t tool) const {
  const size_t opening = LongestCut(before);
  if (!found.arguments[tool] || !found.tail_known || opening == 0) return std::nullopt;
  return opening + found.arguments[tool]->tokens.size() + found.tail.size();
}

// A token that ends within `text` may leave a remainder of more tokens than `text` has.
size_t PlanEndings::LongestCut(std::string_view text) const {
  size_t longest = 0;
  for (size_t cut = 0; cut < text.size() && cut <= kLongestToken; ++cut) {
    std::vector<TokenId> tokens;
    if (!t_.SpellOut(text.substr(cut), &tokens)) return 0;
    longest = std::max(longest, tokens.size());
  }
  return longest;
}

std::optional<PlanEndings::Ending> PlanEndings::Behind(std::string_view text,
                                                       std::optional<Ending> ending) const {
  std::vector<TokenId> tokens;
  if (!ending || !t_.SpellOut(text, &tokens)) return std::nullopt;
  ending->tokens.insert(ending->tokens.begin(), tokens.begin(), tokens.end());
  return ending;
}

std::optional<PlanEndings::Ending> PlanEndings::OfFree(size_t /*limit*/) const {
  const Found& found = Find();
  if (!found.known) return std::nullopt;
  Ending out;
  out.growth = t_.plan.trigger.empty() ? 0 : found.opening;
  if (t_.MayThink()) out.growth += LongestCut(t_.plan.think_close);
  return out;
}

std::optional<PlanEndings::Ending> PlanEndings::AfterThinking(size_t limit) const {
  const AnswerPlan& plan = t_.plan;
  if (plan.then == AnswerPlan::Then::kFree) return OfFree(limit);
  const Found& found = Find();
  if (plan.then == AnswerPlan::Then::kCalls)
    return OfLiterals({&t_.first, 0, t_.first.size(), 0, nullptr}, limit);
  auto out = Behind(t_.BodyOpening(), found.body);
  if (!out || plan.tools.empty()) return out;
  if (!found.known) return std::nullopt;
  out->growth = std::max(out->growth, found.opening);
  return out;
}

std::optional<PlanEndings::Ending> PlanEndings::OfThinking(size_t matched, size_t limit) const {
  auto out = Behind(std::string_view(t_.plan.think_close).substr(matched), AfterThinking(limit));
  if (out) out->growth += LongestCut(t_.plan.think_close);
  return out;
}

std::optional<PlanEndings::Ending> PlanEndings::AfterLiteral(const Literal& literal,
                                                             size_t limit) const {
  if (literal.to == Literal::kAfterThinking) return AfterThinking(limit);
  if (literal.to == Literal::kThinking) return OfThinking(0, limit);
  const Found& found = Find();
  if (literal.to == Literal::kBody) return found.body;
  if (literal.to == Literal::kEnd) return Ending{};
  auto out = found.arguments[static_cast<size_t>(literal.to)];
  if (!out || !found.tail_known) return std::nullopt;
  out->tokens.insert(out->tokens.end(), found.tail.begin(), found.tail.end());
  return out;
}

std::optional<PlanEndings::Ending> PlanEndings::OfLiterals(const Alternatives& at,
                                                           size_t limit) const {
  std::optional<Ending> best;
  size_t most = 0;
  if (at.body != nullptr) {
    best = at.body->FindEnding(limit);
    if (!best) return std::nullopt;
    most = best->tokens.size();
  }
  for (size_t i = at.low; i < at.high; ++i) {
    const Literal& each = (*at.list)[i];
    const std::string_view rest = std::string_view(each.text).substr(at.offset);
    const auto behind = AfterLiteral(each, limit);
    auto ending = Behind(rest, behind);
    if (!ending) return std::nullopt;
    most = std::max(most, LongestCut(rest) + behind->tokens.size());
    if (!best || ending->tokens.size() < best->tokens.size()) best = std::move(ending);
  }
  if (best && most > best->tokens.size())
    best->growth = std::max(best->growth, most - best->tokens.size());
  return best;
}

std::optional<PlanEndings::Ending> PlanEndings::OfArguments(Matcher* arguments,
                                                            size_t limit) const {
  const Found& found = Find();
  auto out = arguments->FindEnding(limit);
  if (!out || !found.tail_known || !found.known) return std::nullopt;
  out->tokens.insert(out->tokens.end(), found.tail.begin(), found.tail.end());
  if (found.decides) out->growth = std::max(out->growth, found.another);
  return out;
}

const std::vector<TokenId>& PlanEndings::openers() const { return Find().openers; }

}  // namespace aisp
