#include "server/constraint_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "constrain/grammar_constraint.h"
#include "constrain/json_constraint.h"
#include "constrain/json_masks.h"
#include "constrain/schema_compiler.h"
#include "constrain/text_constraint.h"
#include "frontend/answer_plan.h"
#include "proto/tenant.h"
#include "server/matcher_guide.h"

namespace aisp {
namespace {

// At least two, since one tenant may use all but one of them.
constexpr int kThreads = 2;

std::string ReasonsOf(const std::vector<Refusal>& refusals) {
  std::string out = "the JSON Schema cannot be enforced:";
  for (size_t i = 0; i < refusals.size() && i < 8; ++i) {
    const Refusal& r = refusals[i];
    out += (i > 0 ? "; " : " ") + r.keyword + " at '" + r.pointer + "': " + r.reason;
  }
  return out + ". \"strict\": false leaves out what can be left out";
}

}  // namespace

ConstraintPool::ConstraintPool(const Tokenizer* tokenizer, int32_t vocabulary, const Limits& limits)
    : tokenizer_(*tokenizer),
      vocabulary_(vocabulary),
      limits_(limits),
      runs_(std::make_shared<RunBook>(tokenizer)),
      waiting_({.waiting = limits.max_waiting, .long_of_one = kThreads - 1}) {}

ConstraintPool::~ConstraintPool() {
  waiting_.CloseAndClear();
  for (Thread& thread : threads_) thread.Join();
}

std::shared_ptr<const TokenTrie> ConstraintPool::Trie() {
  std::call_once(trie_once_, [this] {
    // The mask has one bit per logit: tokens beyond the vocabulary cannot be drawn, and rows
    // without a token must not be.
    std::vector<std::string> pieces(static_cast<size_t>(vocabulary_));
    for (int32_t id = 0; id < std::min(vocabulary_, tokenizer_.VocabSize()); ++id) {
      if (!tokenizer_.IsSpecial(id))
        pieces[static_cast<size_t>(id)] = std::string(tokenizer_.IdToPiece(id));
    }
    trie_ = std::make_shared<const TokenTrie>(pieces);
    WarmUp(trie_);
  });
  return trie_;
}

Result<std::shared_ptr<Constraint>> ConstraintPool::Compile(const v1::Constraint& constraint,
                                                            const std::string& tenant) {
  const auto timeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(limits_.compile_timeout);
  switch (constraint.kind()) {
    case v1::Constraint::REGEX:
      return MakePatternConstraint(constraint.text(), Trie(), timeout);
    case v1::Constraint::CHOICE:
      return MakeChoiceConstraint({constraint.choices().begin(), constraint.choices().end()},
                                  Trie());
    case v1::Constraint::GRAMMAR:
      return MakeGrammarConstraint(constraint.text(), Trie(), timeout);
    case v1::Constraint::CALLS: {
      PlanParts parts;
      parts.compile = [&](const v1::Constraint& part) { return Get(part, tenant); };
      parts.spelled = [this] {
        std::call_once(spelled_once_,
                       [this] { spelled_ = std::make_shared<const SpelledTokens>(Trie()); });
        return spelled_;
      };
      auto plan = ReadPlan(constraint.text(), tokenizer_, parts);
      if (!plan) return tl::unexpected(plan.error());
      return MakePlanConstraint(std::move(*plan), Trie());
    }
    case v1::Constraint::JSON_SCHEMA:
    case v1::Constraint::JSON_OBJECT:
      break;
    default:
      return InvalidArgument("a kind of constraint that this server does not know");
  }
  const bool object = constraint.kind() == v1::Constraint::JSON_OBJECT;
  SchemaOptions rules;
  rules.relaxed.assign(constraint.relaxed().begin(), constraint.relaxed().end());
  CompileLimits limits;
  limits.timeout = timeout;
  auto compiled = CompileSchema(object ? R"({"type":"object"})" : constraint.text(), rules, limits);
  if (!compiled) return InvalidArgument(compiled.error().message);
  if (compiled->grammar == nullptr) return InvalidArgument(ReasonsOf(compiled->refusals));
  if (!compiled->grammar->HasValues()) {
    return InvalidArgument("no value fits the JSON Schema; relax what contradicts itself in it");
  }
  return MakeJsonConstraint(std::move(compiled->grammar),
                            constraint.compact() ? Whitespace::kCompact : Whitespace::kFlexible,
                            Trie());
}

std::shared_ptr<Constraint> ConstraintPool::Find(const Hash128& key, const std::string& text,
                                                 const std::string* tenant) {
  const std::lock_guard lock(mutex_);
  const auto known = by_key_.find(key);
  if (known == by_key_.end() || known->second->text != text) return nullptr;
  if (tenant != nullptr) {
    kept_.splice(kept_.begin(), kept_, known->second);
    known->second->tenant = *tenant;
  }
  return known->second->constraint;
}

// The least recently used entry of the tenant with the most; never the newest entry. Ties go to the
// tenant whose entry was used least recently.
std::list<ConstraintPool::Kept>::iterator ConstraintPool::OneOfWhoHasMost() {
  std::unordered_map<std::string, double> has;  // sum of the shares of both limits
  for (const Kept& each : kept_) {
    has[each.tenant] += 1.0 / static_cast<double>(limits_.max_kept) +
                        static_cast<double>(each.bytes()) / static_cast<double>(limits_.max_bytes);
  }
  auto found = std::prev(kept_.end());
  for (auto it = std::next(kept_.begin()); it != kept_.end(); ++it) {
    if (has[it->tenant] >= has[found->tenant]) found = it;
  }
  return found;
}

// Constraints grow as masks are computed, so sizes are queried anew each time.
void ConstraintPool::Trim() {
  size_t bytes = 0;
  for (const Kept& each : kept_) bytes += each.bytes();
  while (kept_.size() > 1 && (kept_.size() > limits_.max_kept || bytes > limits_.max_bytes)) {
    const auto forgotten = OneOfWhoHasMost();
    bytes -= std::min(bytes, forgotten->bytes());
    by_key_.erase(forgotten->key);
    kept_.erase(forgotten);
  }
}

bool ConstraintPool::Keeps(const v1::Constraint& constraint) {
  const std::string text = constraint.SerializeAsString();
  return Find(HashBytes(text), text, nullptr) != nullptr;
}

Result<std::shared_ptr<Constraint>> ConstraintPool::Get(const v1::Constraint& constraint,
                                                        const std::string& tenant) {
  const std::string text = constraint.SerializeAsString();
  const Hash128 key = HashBytes(text);
  if (auto known = Find(key, text, &tenant)) return known;
  AISP_ASSIGN_OR_RETURN(std::shared_ptr<Constraint> compiled, Compile(constraint, tenant));
  // Computes the ending's data here rather than on an engine thread.
  if (constraint.force_finish()) compiled->NewMatcher()->FindEnding(kLongestEnding);
  const std::lock_guard lock(mutex_);
  const auto known = by_key_.find(key);
  if (known != by_key_.end()) {
    if (known->second->text == text) return known->second->constraint;
    return compiled;  // a different text with the same hash is cached
  }
  kept_.push_front({key, text, compiled, tenant});
  by_key_[key] = kept_.begin();
  Trim();
  return compiled;
}

std::shared_ptr<DrawGuide> ConstraintPool::MakeGuide(std::shared_ptr<Constraint> constraint,
                                                     MatcherGuide::Rules rules) {
  return std::make_shared<MatcherGuide>(std::move(constraint), static_cast<size_t>(vocabulary_),
                                        std::move(rules), runs_);
}

Result<std::shared_ptr<DrawGuide>> ConstraintPool::Guide(const v1::GenerateRequest& request,
                                                         OnGuide later) {
  const v1::Constraint& wanted = request.sampling().constraint();
  MatcherGuide::Rules rules;
  rules.stops.assign(request.stop_token_ids().begin(), request.stop_token_ids().end());
  rules.most = wanted.force_finish() ? request.max_new_tokens() : 0;
  rules.scope = request.cache_salt();
  const std::string text = wanted.SerializeAsString();
  const TenantShare tenant = TenantFromWire(request.tenant());
  if (auto known = Find(HashBytes(text), text, &tenant.name))
    return MakeGuide(std::move(known), std::move(rules));
  std::call_once(threads_once_, [this] {
    for (int i = 0; i < kThreads; ++i) {
      threads_.emplace_back(
          fmt::format("grammars-{}", i),
          [this] {
            while (waiting_.RunNext()) continue;
          },
          Thread::Priority::kBackground);
    }
  });
  const bool taken = waiting_.TryPush(
      0,
      [this, wanted, name = tenant.name, rules = std::move(rules),
       later = std::move(later)]() mutable {
        auto compiled = Get(wanted, name);
        if (!compiled) return later(tl::unexpected(compiled.error()));
        later(MakeGuide(std::move(*compiled), std::move(rules)));
      },
      tenant);
  if (!taken) {
    return ResourceExhausted(std::to_string(limits_.max_waiting) +
                             " constraints wait to be compiled; try again shortly");
  }
  return std::shared_ptr<DrawGuide>();
}

size_t ConstraintPool::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

}  // namespace aisp
