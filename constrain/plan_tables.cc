#include "constrain/plan_tables.h"

#include <algorithm>

namespace aisp {

PlanTables::PlanTables(AnswerPlan p, std::shared_ptr<const TokenTrie> t)
    : plan(std::move(p)), trie(std::move(t)), any(trie->vocabulary()) {
  BuildLiterals();
  IndexTokens();
}

void PlanTables::BuildLiterals() {
  const auto sort = [](Literals* list) {
    std::sort(list->begin(), list->end(),
              [](const Literal& a, const Literal& b) { return a.text < b.text; });
  };
  for (size_t i = 0; i < plan.tools.size(); ++i) {
    const auto to = static_cast<int32_t>(i);
    const std::string call = plan.before + plan.tools[i].name + plan.middle;
    begin.push_back({plan.open + call, to});
    if (!plan.trigger.empty()) {
      triggered.push_back({(plan.open + call).substr(plan.trigger.size()), to});
    }
    if (plan.parallel) next.push_back({plan.after + plan.separator + call, to});
  }
  next.push_back({plan.after + plan.close, Literal::kEnd});
  if (!plan.think_close.empty()) {
    think_close.push_back({plan.think_close, Literal::kAfterThinking});
  }
  if (plan.then == AnswerPlan::Then::kBody && !plan.body_open.empty())
    begin.push_back({plan.body_open, Literal::kBody});
  first = begin;
  if (!plan.after_thinking.empty()) {
    for (const Literal& each : begin) first.push_back({plan.after_thinking + each.text, each.to});
  }
  if (MayThink()) {
    begin.push_back({plan.think_open, Literal::kThinking});
  }
  for (Literals* list : {&begin, &first, &triggered, &next}) sort(list);
  trigger = Marker(plan.trigger);
  opened = Marker(plan.think_open);
  thought = Marker(plan.think_close);
}

bool PlanTables::MayFollowArguments(std::string_view rest) const {
  if (rest.find_first_not_of(" \t\r\n") == std::string_view::npos) return true;
  return std::any_of(next.begin(), next.end(), [rest](const Literal& each) {
    if (each.text.empty()) return false;
    const size_t common = std::min(rest.size(), each.text.size());
    return rest.substr(0, common) == std::string_view(each.text).substr(0, common);
  });
}

bool PlanTables::SpellOut(std::string_view text, std::vector<TokenId>* out) const {
  size_t plain = 0;
  for (size_t at = 0; at < text.size();) {
    const auto marker = std::find_if(
        plan.markers.begin(), plan.markers.end(),
        [rest = text.substr(at)](const auto& each) { return rest.starts_with(each.second); });
    if (marker == plan.markers.end()) {
      ++at;
      continue;
    }
    if (!trie->SpellOut(text.substr(plain, at - plain), out)) return false;
    out->push_back(marker->first);
    plain = at += marker->second.size();
  }
  return trie->SpellOut(text.substr(plain), out);
}

void PlanTables::IndexTokens() {
  for (size_t id = 0; id < trie->vocabulary(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string& piece = trie->piece(token);
    if (piece.empty()) continue;
    any.Set(id);
    const char end = plan.arguments_end;
    for (size_t at = piece.find(end); at != std::string::npos && at + 1 < piece.size();
         at = piece.find(end, at + 1)) {
      if (!MayFollowArguments(std::string_view(piece).substr(at + 1))) continue;
      crossings.push_back({token, at + 1});
      break;
    }
    if (!plan.trigger.empty() && trigger.MayEndInside(piece)) past_trigger.push_back(token);
    if (MayThink() && opened.MayEndInside(piece)) past_open.push_back(token);
    if (!plan.think_close.empty() && thought.MayEndInside(piece)) past_thought.push_back(token);
  }
}

}  // namespace aisp
