#include "constrain/grammar.h"

#include <algorithm>
#include <map>
#include <optional>

#include "constrain/grammar_text.h"

namespace aisp {
namespace {

using Kind = GrammarNode::Kind;

constexpr size_t kMaxProductions = 50'000;
constexpr int kMaxDepth = 500;
constexpr TermId kUnknown = -1, kOpen = -2, kNotRegular = -3;

tl::unexpected<Error> TooSlow() {
  return ResourceExhausted(
      "the grammar takes longer to compile than --grammar-compile-timeout allows; simplify it");
}

class Compiler {
 public:
  Compiler(GrammarText text, Grammar* out) : text_(std::move(text)), g_(*out) {}

  Status Compile() {
    for (const auto& [name, body] : text_.rules) {
      regular_[name] = kUnknown;
      rules_[name] = NewRule();
    }
    spaced_ = !text_.ignored.empty();
    if (spaced_) MakeGap();
    for (const auto& [name, body] : text_.rules) {
      const int32_t rule = rules_[name];
      // Ignored text may stand between the terminals of a rule, but not inside a terminal.
      in_terminal_ = spaced_ && IsTerminalName(name);
      if (const auto language = RegularRule(name, 0)) {
        Add(rule, {Terminal(*language)});
      } else {
        AddBody(rule, body, 0);
      }
      if (!error_.empty()) return InvalidArgument("the grammar: " + error_);
      if (g_.languages.TimedOut()) return TooSlow();
      if (g_.languages.Exhausted() || g_.productions.size() > kMaxProductions)
        return ResourceExhausted("the grammar needs more productions or states than one may have");
    }
    g_.root = rules_[text_.root];
    if (spaced_) {
      const int32_t start = NewRule();
      Add(start, {Rule(gap_), Rule(g_.root)});
      g_.root = start;
    }
    return Reduce();
  }

 private:
  static GrammarSymbol Rule(int32_t rule) { return {false, rule}; }
  static bool IsTerminalName(const std::string& name) {
    return std::none_of(name.begin(), name.end(), [](char c) { return c >= 'a' && c <= 'z'; }) ||
           name.starts_with('%');
  }
  int32_t NewRule() {
    g_.of_rule.emplace_back();
    return static_cast<int32_t>(g_.of_rule.size()) - 1;
  }
  void Add(int32_t rule, std::vector<GrammarSymbol> symbols) {
    g_.of_rule[static_cast<size_t>(rule)].push_back(static_cast<int32_t>(g_.productions.size()));
    g_.productions.push_back({rule, std::move(symbols)});
  }

  GrammarSymbol Terminal(TermId language) {
    const auto [it, fresh] =
        terminals_.try_emplace(language, static_cast<int32_t>(g_.terminals.size()));
    if (fresh) {
      g_.terminals.push_back(std::make_unique<Automaton>(&g_.languages, language));
      if (error_.empty() && !Automaton::IsNarrow(&g_.languages, language) &&
          !g_.languages.Exhausted())
        error_ = "a part without recursion needs more states than one may have";
    }
    return {true, it->second};
  }

  // Makes the ignored text, any number of times.
  void MakeGap() {
    gap_ = NewRule();
    Add(gap_, {});
    for (const std::string& name : text_.ignored) Add(gap_, {Rule(gap_), Rule(rules_[name])});
  }

  std::optional<TermId> RegularRule(const std::string& name, int depth) {
    const auto known = regular_.find(name);
    if (known == regular_.end()) {
      if (error_.empty()) error_ = "rule '" + name + "' is used and not defined";
      return std::nullopt;
    }
    if (spaced_ && !IsTerminalName(name)) return std::nullopt;
    if (known->second == kUnknown && depth < kMaxDepth) {
      known->second = kOpen;
      const auto language = Regular(text_.rules[name], depth + 1);
      regular_[name] = language.value_or(kNotRegular);
    }
    const TermId language = regular_[name];
    return language >= 0 ? std::optional(language) : std::nullopt;
  }

  std::optional<TermId> Regular(const GrammarNode& node, int depth) {
    if (node.kind == Kind::kLanguage) return node.language;
    if (node.kind == Kind::kRule) return RegularRule(node.name, depth);
    std::vector<TermId> parts;
    for (const GrammarNode& child : node.children) {
      const auto part = Regular(child, depth + 1);
      if (!part) return std::nullopt;
      parts.push_back(*part);
    }
    if (node.kind == Kind::kChoice) return g_.languages.Union(parts);
    if (node.kind == Kind::kRepeat) return g_.languages.Repeat(parts[0], node.min, node.max);
    TermId all = Languages::kEmptyText;
    for (size_t i = parts.size(); i > 0; --i) all = g_.languages.Concat(parts[i - 1], all);
    return all;
  }

  GrammarSymbol Lower(const GrammarNode& node, int depth) {
    const bool leaf = node.kind == Kind::kLanguage || node.kind == Kind::kRule;
    if (leaf || !spaced_ || in_terminal_) {
      if (const auto language = Regular(node, depth)) {
        const GrammarSymbol terminal = Terminal(*language);
        if (!spaced_ || in_terminal_) return terminal;
        const int32_t rule = NewRule();
        Add(rule, {terminal, Rule(gap_)});
        return Rule(rule);
      }
    }
    if (node.kind == Kind::kRule) return Rule(rules_[node.name]);
    const int32_t rule = NewRule();
    AddBody(rule, node, depth + 1);
    return Rule(rule);
  }

  void AddBody(int32_t rule, const GrammarNode& node, int depth) {
    if (g_.productions.size() > kMaxProductions || !error_.empty()) return;
    switch (node.kind) {
      case Kind::kChoice:
        for (const GrammarNode& child : node.children) AddBody(rule, child, depth);
        break;
      case Kind::kSequence: {
        std::vector<GrammarSymbol> symbols;
        symbols.reserve(node.children.size());
        for (const GrammarNode& child : node.children) symbols.push_back(Lower(child, depth));
        Add(rule, std::move(symbols));
        break;
      }
      case Kind::kRepeat:
        AddRepeat(rule, node, depth);
        break;
      default:
        Add(rule, {Lower(node, depth)});
    }
  }

  void AddRepeat(int32_t rule, const GrammarNode& node, int depth) {
    const GrammarSymbol item = Lower(node.children[0], depth);
    std::vector<GrammarSymbol> symbols(static_cast<size_t>(node.min), item);
    int32_t more = NewRule();
    symbols.push_back(Rule(more));
    Add(rule, std::move(symbols));
    Add(more, {});
    if (node.max < 0) {
      Add(more, {Rule(more), item});
      return;
    }
    for (int32_t i = node.min; i < node.max; ++i) {
      const int32_t next = NewRule();
      Add(more, {item, Rule(next)});
      Add(next, {});
      more = next;
    }
  }

  // The rules with a production of which all symbols satisfy the condition: terminals by `holds`,
  // rules by previous results. Looks at each symbol once.
  template <typename Holds>
  std::vector<bool> RulesThat(const Holds& holds) const {
    std::vector<bool> out(g_.of_rule.size(), false);
    std::vector<size_t> open(g_.productions.size(), 0);
    std::vector<std::vector<size_t>> awaiting(g_.of_rule.size());
    std::vector<size_t> ready;
    for (size_t p = 0; p < g_.productions.size(); ++p) {
      for (const GrammarSymbol& s : g_.productions[p].symbols) {
        if (s.terminal && holds(*g_.terminals[static_cast<size_t>(s.index)])) continue;
        ++open[p];
        if (!s.terminal) awaiting[static_cast<size_t>(s.index)].push_back(p);
      }
      if (open[p] == 0) ready.push_back(p);
    }
    for (size_t i = 0; i < ready.size(); ++i) {
      const auto rule = static_cast<size_t>(g_.productions[ready[i]].rule);
      if (out[rule]) continue;
      out[rule] = true;
      for (const size_t p : awaiting[rule]) {
        if (--open[p] == 0) ready.push_back(p);
      }
    }
    return out;
  }

  // Removes what can never be completed, and finds nullable rules.
  Status Reduce() {
    auto live = [](const Automaton& a) { return a.start() != Automaton::kDead; };
    const std::vector<bool> finite = RulesThat(live);
    g_.nullable = RulesThat([&](const Automaton& a) { return live(a) && a.Accepts(a.start()); });
    auto completes = [&](const GrammarSymbol& s) {
      const auto i = static_cast<size_t>(s.index);
      return s.terminal ? live(*g_.terminals[i]) : finite[i];
    };
    for (auto& productions : g_.of_rule) {
      std::erase_if(productions, [&](int32_t i) {
        const auto& symbols = g_.productions[static_cast<size_t>(i)].symbols;
        return !std::all_of(symbols.begin(), symbols.end(), completes);
      });
    }
    if (!finite[static_cast<size_t>(g_.root)]) {
      if (g_.languages.HasCutSearch())
        return ResourceExhausted("an end of the grammar is behind more states than are looked at");
      return InvalidArgument("no text fits the grammar");
    }
    FindFollowers(FirstBytes());
    return {};
  }

  bool MayBeEmpty(const GrammarSymbol& s) const {
    const auto i = static_cast<size_t>(s.index);
    return s.terminal ? g_.terminals[i]->Accepts(g_.terminals[i]->start()) : g_.nullable[i];
  }
  // Calls `look` for all remaining productions until nothing changes.
  template <typename Look>
  void UntilStable(const Look& look) const {
    for (bool changed = true; changed;) {
      changed = false;
      for (const auto& productions : g_.of_rule) {
        for (const int32_t p : productions)
          changed = look(g_.productions[static_cast<size_t>(p)]) || changed;
      }
    }
  }
  static bool Join(const std::bitset<256>& from, std::bitset<256>* to) {
    const std::bitset<256> before = *to;
    *to |= from;
    return *to != before;
  }

  // By rule.
  std::vector<std::bitset<256>> FirstBytes() const {
    std::vector<std::bitset<256>> out(g_.of_rule.size());
    UntilStable([&](const Production& production) {
      bool changed = false;
      for (const GrammarSymbol& s : production.symbols) {
        changed = Join(FirstOf(s, out), &out[static_cast<size_t>(production.rule)]) || changed;
        if (!MayBeEmpty(s)) break;
      }
      return changed;
    });
    return out;
  }
  const std::bitset<256>& FirstOf(const GrammarSymbol& s,
                                  const std::vector<std::bitset<256>>& first) const {
    const auto i = static_cast<size_t>(s.index);
    return s.terminal ? g_.terminals[i]->BytesOf(g_.terminals[i]->start()) : first[i];
  }

  void FindFollowers(const std::vector<std::bitset<256>>& first) {
    g_.behind_rule.resize(g_.of_rule.size());
    g_.behind_terminal.resize(g_.terminals.size());
    UntilStable([&](const Production& production) {
      bool changed = false;
      std::bitset<256> behind = g_.behind_rule[static_cast<size_t>(production.rule)];
      for (size_t i = production.symbols.size(); i-- > 0;) {
        const GrammarSymbol& s = production.symbols[i];
        auto& own = s.terminal ? g_.behind_terminal : g_.behind_rule;
        changed = Join(behind, &own[static_cast<size_t>(s.index)]) || changed;
        behind = MayBeEmpty(s) ? behind | FirstOf(s, first) : FirstOf(s, first);
      }
      return changed;
    });
  }

  GrammarText text_;
  Grammar& g_;
  std::map<std::string, TermId> regular_;
  std::map<std::string, int32_t> rules_;
  std::map<TermId, int32_t> terminals_;
  int32_t gap_ = 0;
  bool spaced_ = false, in_terminal_ = false;
  std::string error_;
};

}  // namespace

Result<std::unique_ptr<Grammar>> CompileGrammar(std::string_view text,
                                                std::chrono::milliseconds timeout) {
  auto out = std::make_unique<Grammar>();
  out->languages.SetDeadline(Deadline(timeout));
  AISP_ASSIGN_OR_RETURN(GrammarText read, ReadGrammar(text, &out->languages));
  if (auto done = Compiler(std::move(read), out.get()).Compile(); !done)
    return tl::unexpected(done.error());
  if (out->languages.TimedOut()) return TooSlow();
  out->languages.SetDeadline({});
  return out;
}

}  // namespace aisp
