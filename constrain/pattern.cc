#include "constrain/pattern.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "constrain/pattern_parser.h"

namespace aisp {
namespace {

using Kind = PatternNode::Kind;

constexpr int32_t kMaxUnrolled = 64;
constexpr int32_t kMaxDepth = 2000;

constexpr size_t kMaxClasses = 16;

// What precedes a position, as far as ^, \b and look-behind need it: nothing, or a character of
// class n - 1 (CharacterClasses).
using Before = size_t;
constexpr Before kStart = 0;

bool HasAssertion(const PatternNode& node) {
  if (node.kind == Kind::kBegin || node.kind == Kind::kEnd || node.kind == Kind::kBoundary ||
      node.kind == Kind::kLookAhead || node.kind == Kind::kLookBehind) {
    return true;
  }
  for (const PatternNode& child : node.children) {
    if (HasAssertion(child)) return true;
  }
  return false;
}

bool AsksBefore(const PatternNode& node) {
  if (node.kind == Kind::kBegin || node.kind == Kind::kBoundary || node.kind == Kind::kLookBehind)
    return true;
  for (const PatternNode& child : node.children) {
    if (AsksBefore(child)) return true;
  }
  return false;
}

// The set of a look-behind of one character.
std::optional<CharSet> OneCharacter(const PatternNode& node) {
  if (node.kind == Kind::kSet) return node.set;
  if (node.kind == Kind::kSequence && node.children.size() == 1)
    return OneCharacter(node.children[0]);
  if (node.kind != Kind::kChoice) return std::nullopt;
  CharSet all;
  for (const PatternNode& child : node.children) {
    const auto one = OneCharacter(child);
    if (!one) return std::nullopt;
    all = all.Union(*one);
  }
  return all;
}

// The number of code points in a match. -1: unbounded.
struct Width {
  int64_t min = 0, max = 0;
};

Width WidthOf(const PatternNode& node) {
  Width out;
  switch (node.kind) {
    case Kind::kSet:
      return {1, 1};
    case Kind::kSequence:
      for (const PatternNode& child : node.children) {
        const Width one = WidthOf(child);
        out.min += one.min;
        out.max = out.max < 0 || one.max < 0 ? -1 : out.max + one.max;
      }
      return out;
    case Kind::kChoice:
      out = WidthOf(node.children[0]);
      for (const PatternNode& child : node.children) {
        const Width one = WidthOf(child);
        out.min = std::min(out.min, one.min);
        out.max = out.max < 0 || one.max < 0 ? -1 : std::max(out.max, one.max);
      }
      return out;
    case Kind::kRepeat: {
      const Width one = WidthOf(node.children[0]);
      out.min = one.min * node.min;
      out.max = one.max == 0 ? 0 : one.max < 0 || node.max < 0 ? -1 : one.max * node.max;
      // Clamped, since widths of nested repetitions would overflow.
      out.min = std::min(out.min, int64_t{1} << 31);
      if (out.max > int64_t{1} << 31) out.max = -1;
      return out;
    }
    default:
      return out;
  }
}

// Whether the matches of `node` depend on its own text only: its assertions look at nothing outside
// it.
bool IsLocal(const PatternNode& node) {
  if (!HasAssertion(node)) return true;
  if (node.kind == Kind::kChoice || node.kind == Kind::kRepeat)
    return std::all_of(node.children.begin(), node.children.end(), IsLocal);
  if (node.kind != Kind::kSequence) return false;
  int64_t before = 0, behind = WidthOf(node).min;
  for (const PatternNode& child : node.children) {
    const Width own = WidthOf(child);
    behind -= own.min;
    if (child.kind == Kind::kLookAhead || child.kind == Kind::kLookBehind) {
      const Width asked = WidthOf(child.children[0]);
      const int64_t there = child.kind == Kind::kLookAhead ? behind : before;
      if (HasAssertion(child.children[0]) || asked.max < 0 || asked.max > there) return false;
    } else if (!IsLocal(child)) {
      return false;
    }
    before += own.min;
  }
  return true;
}

// Code points that no assertion of a pattern distinguishes.
class CharacterClasses {
 public:
  explicit CharacterClasses(const PatternNode& node) : sets_{CharSet::Any()} {
    Split(WordCharacters());
    Visit(node);
  }

  bool TooMany() const { return sets_.size() > kMaxClasses; }
  size_t size() const { return sets_.size(); }
  const CharSet& SetOf(Before before) const { return sets_[before - 1]; }
  // Of sets that were split by.
  bool IsIn(Before before, const CharSet& set) const {
    return before != kStart && !SetOf(before).Intersect(set).empty();
  }

 private:
  void Split(const CharSet& by) {
    std::vector<CharSet> out;
    const CharSet others = by.Complement();
    for (const CharSet& set : sets_) {
      for (const CharSet& part : {set.Intersect(by), set.Intersect(others)}) {
        if (!part.empty()) out.push_back(part);
      }
    }
    sets_ = std::move(out);
  }
  void Visit(const PatternNode& node) {
    const auto one = node.kind == Kind::kLookBehind ? OneCharacter(node.children[0]) : std::nullopt;
    if (one && !TooMany()) Split(*one);
    for (const PatternNode& child : node.children) Visit(child);
  }

  std::vector<CharSet> sets_;
};

// The rest of the pattern: the language of what may follow, given what precedes. Computed once per
// answer.
struct Rest {
  bool asks = false;  // the answer depends on what precedes
  std::function<TermId(Before)> make;
  std::vector<std::optional<TermId>> memo = {};

  TermId Get(Before before) {
    const size_t at = asks ? before : kStart;
    if (memo.size() <= at) memo.resize(at + 1);
    if (!memo[at]) {
      const TermId made = make(before);
      memo[at] = made;
    }
    return *memo[at];
  }
};

class Compiler {
 public:
  Compiler(const PatternNode& pattern, Languages* languages) : l_(*languages), classes_(pattern) {
    if (classes_.TooMany()) status_ = Unimplemented("look-behind of that many kinds of characters");
  }

  // Texts that `node` matches after `before`, followed by `rest`.
  TermId Compile(const PatternNode& node, Before before, Rest* rest) {
    if (!status_ || l_.Exhausted()) return Languages::kNothing;
    const Nested nested(&depth_);
    if (depth_ > kMaxDepth) {
      status_ = ResourceExhausted(
          "the pattern's assertions stand too deep in repetitions; repeat less, or leave them out");
      return Languages::kNothing;
    }
    if (!HasAssertion(node)) return Consume(node, before, rest);
    switch (node.kind) {
      case Kind::kSequence:
        return Sequence(node, before, rest);
      case Kind::kChoice: {
        std::vector<TermId> parts;
        parts.reserve(node.children.size());
        for (const PatternNode& child : node.children) {
          parts.push_back(Compile(child, before, rest));
        }
        return l_.Union(parts);
      }
      case Kind::kRepeat:
        return IsLocal(node.children[0]) && WidthOf(node.children[0]).min > 0
                   ? Rounds(node, before, rest)
                   : Unroll(node, before, rest);
      case Kind::kBegin:
        return before == kStart ? rest->Get(before) : Languages::kNothing;
      case Kind::kEnd:
        return l_.Intersect({Languages::kEmptyText, rest->Get(before)});
      case Kind::kBoundary:
        return l_.Intersect({Boundary(before, node.negated), rest->Get(before)});
      case Kind::kLookAhead: {
        Rest anything{false, [](Before) { return Languages::kAnyText; }, {}};
        const TermId ahead = Compile(node.children[0], before, &anything);
        return l_.Intersect({node.negated ? l_.Not(ahead) : ahead, rest->Get(before)});
      }
      case Kind::kLookBehind: {
        const auto one = OneCharacter(node.children[0]);
        if (!one) {
          status_ = Unimplemented(
              "look-behind of other than one character cannot be enforced here, only behind what "
              "begins with the text");
          return Languages::kNothing;
        }
        return classes_.IsIn(before, *one) != node.negated ? rest->Get(before)
                                                           : Languages::kNothing;
      }
      case Kind::kSet:
        break;
    }
    return Languages::kNothing;
  }

  // Any text, followed by `rest`.
  TermId Anywhere(Rest* rest) {
    const TermId any = Languages::kAnyText;
    if (!rest->asks) return l_.Concat(any, rest->Get(kStart));
    std::vector<TermId> ways = {rest->Get(kStart)};
    for (Before b = 1; b <= classes_.size(); ++b) {
      ways.push_back(l_.Concat(any, l_.Concat(l_.Set(classes_.SetOf(b)), rest->Get(b))));
    }
    return l_.Union(ways);
  }

  const Status& status() const { return status_; }

 private:
  // The matches of `node`, which has no assertions, followed by `rest`, which may depend on how
  // they end.
  TermId Consume(const PatternNode& node, Before before, Rest* rest) {
    const TermId part = Plain(node);
    if (!rest->asks) return l_.Concat(part, rest->Get(before));
    std::vector<TermId> ways;
    if (l_.AcceptsEmpty(part)) ways.push_back(rest->Get(before));
    for (Before b = 1; b <= classes_.size(); ++b) {
      const TermId ending = EndingIn(node, classes_.SetOf(b));
      if (ending != Languages::kNothing) ways.push_back(l_.Concat(ending, rest->Get(b)));
    }
    return l_.Union(ways);
  }

  // The matches of `node`, which has no assertions, that end with a character in `last`. Built from
  // its parts: an intersection with "anything ending so" would stay in the terms and double them
  // with each part of the pattern, although it can never match.
  TermId EndingIn(const PatternNode& node, const CharSet& last) {
    std::vector<TermId> ways;
    switch (node.kind) {
      case Kind::kSet:
        return l_.Set(node.set.Intersect(last));
      case Kind::kChoice:
        for (const PatternNode& child : node.children) ways.push_back(EndingIn(child, last));
        return l_.Union(ways);
      case Kind::kRepeat: {
        if (node.max == 0) return Languages::kNothing;
        const PatternNode& body = node.children[0];
        const int32_t max = node.max < 0 ? Languages::kUnbounded : node.max - 1;
        const TermId before = l_.Repeat(Plain(body), std::max(node.min - 1, 0), max);
        return l_.Concat(before, EndingIn(body, last));
      }
      case Kind::kSequence: {
        std::vector<TermId> parts;
        parts.reserve(node.children.size());
        for (const PatternNode& child : node.children) parts.push_back(Plain(child));
        // Child i is the last non-empty one: those after it match the empty text.
        for (size_t i = parts.size(); i-- > 0;) {
          TermId way = EndingIn(node.children[i], last);
          for (size_t k = i; k-- > 0;) way = l_.Concat(parts[k], way);
          ways.push_back(way);
          if (!l_.AcceptsEmpty(parts[i])) break;
        }
        return l_.Union(ways);
      }
      default:
        return Languages::kNothing;
    }
  }

  TermId Plain(const PatternNode& node) {
    std::vector<TermId> parts;
    switch (node.kind) {
      case Kind::kSet:
        return l_.Set(node.set);
      case Kind::kSequence: {
        TermId out = Languages::kEmptyText;
        for (size_t i = node.children.size(); i-- > 0;)
          out = l_.Concat(Plain(node.children[i]), out);
        return out;
      }
      case Kind::kChoice:
        for (const PatternNode& child : node.children) parts.push_back(Plain(child));
        return l_.Union(parts);
      case Kind::kRepeat:
        return l_.Repeat(Plain(node.children[0]), node.min, node.max);
      default:
        return Languages::kNothing;
    }
  }

  // What follows each child is one Rest: the children before it ask for it repeatedly.
  TermId Sequence(const PatternNode& node, Before before, Rest* rest) {
    const size_t count = node.children.size();
    std::vector<Rest> from(count + 1);  // the children from there on, and `rest`
    from[count] = {rest->asks, [rest](Before b) { return rest->Get(b); }, {}};
    for (size_t i = count; i-- > 0;) {
      from[i] = {from[i + 1].asks || AsksBefore(node.children[i]),
                 [&, i](Before b) {
                   const size_t end = b == kStart ? LookBehindFrom(node, i) : count;
                   return end < count ? Behind(node, i, end, &from[end + 1])
                                      : Compile(node.children[i], b, &from[i + 1]);
                 },
                 {}};
    }
    return from[0].Get(before);
  }

  // The index of a look-behind of several characters, if children from `i` to it have no
  // assertions; else the number of children.
  static size_t LookBehindFrom(const PatternNode& node, size_t i) {
    const size_t count = node.children.size();
    while (i < count && !HasAssertion(node.children[i])) ++i;
    const bool found = i < count && node.children[i].kind == Kind::kLookBehind;
    return found && !OneCharacter(node.children[i].children[0]) ? i : count;
  }

  // Children from `i` to `end`, starting at the text's beginning, then a look-behind, then `rest`:
  // all the text that it looks at is known.
  TermId Behind(const PatternNode& node, size_t i, size_t end, Rest* rest) {
    const PatternNode& seen = node.children[end].children[0];
    if (HasAssertion(seen)) {
      status_ = Unimplemented("an assertion inside look-behind cannot be enforced");
      return Languages::kNothing;
    }
    TermId read = Languages::kEmptyText;
    for (size_t k = end; k-- > i;) read = l_.Concat(Plain(node.children[k]), read);
    const TermId ends = l_.Concat(Languages::kAnyText, Plain(seen));
    read = l_.Intersect({read, node.children[end].negated ? l_.Not(ends) : ends});
    if (!rest->asks) return l_.Concat(read, rest->Get(kStart));
    std::vector<TermId> ways;
    if (l_.AcceptsEmpty(read)) ways.push_back(rest->Get(kStart));
    for (Before b = 1; b <= classes_.size(); ++b) {
      const TermId last = l_.Concat(Languages::kAnyText, l_.Set(classes_.SetOf(b)));
      ways.push_back(l_.Concat(l_.Intersect({read, last}), rest->Get(b)));
    }
    return l_.Union(ways);
  }

  // A repetition of a non-empty child that depends on its own text only.
  TermId Rounds(const PatternNode& node, Before before, Rest* rest) {
    if (node.max == 0) return rest->Get(before);
    const PatternNode& body = node.children[0];
    Rest end{false, [](Before) { return Languages::kEmptyText; }, {}};
    const TermId once = Compile(body, kStart, &end);
    if (!rest->asks) return l_.Concat(l_.Repeat(once, node.min, node.max), rest->Get(before));
    const int32_t max = node.max < 0 ? Languages::kUnbounded : node.max - 1;
    const TermId before_last = l_.Repeat(once, std::max(node.min - 1, 0), max);
    const TermId some = l_.Concat(before_last, Compile(body, kStart, rest));
    return node.min > 0 ? some : l_.Union({some, rest->Get(before)});
  }

  // A repetition with an assertion inside, unrolled.
  TermId Unroll(const PatternNode& node, Before before, Rest* rest) {
    const PatternNode& body = node.children[0];
    if (node.max < 0 || node.max > kMaxUnrolled) {
      status_ = Unimplemented("an assertion inside a repetition cannot be enforced");
      return Languages::kNothing;
    }
    const auto max = static_cast<size_t>(node.max), min = static_cast<size_t>(node.min);
    std::vector<Rest> from(max + 1);  // by number of rounds done
    from[max] = {rest->asks, [rest](Before b) { return rest->Get(b); }, {}};
    for (size_t i = max; i-- > 0;) {
      from[i] = {from[i + 1].asks || AsksBefore(body),
                 [&, i](Before b) {
                   const TermId more = Compile(body, b, &from[i + 1]);
                   return i < min ? more : l_.Union({more, rest->Get(b)});
                 },
                 {}};
    }
    return from[0].Get(before);
  }

  // What may follow at a word boundary (negated: elsewhere).
  TermId Boundary(Before before, bool negated) {
    const bool word_follows = classes_.IsIn(before, WordCharacters()) == negated;
    const TermId word = l_.Concat(l_.Set(WordCharacters()), Languages::kAnyText);
    return word_follows ? word : l_.Not(word);
  }

  struct Nested {
    explicit Nested(int32_t* depth) : depth_(depth) { ++*depth_; }
    ~Nested() { --*depth_; }
    int32_t* depth_;
  };

  Languages& l_;
  CharacterClasses classes_;
  Status status_;
  int32_t depth_ = 0;  // nested calls of Compile: bounds the stack
};

Result<TermId> CompileWith(std::string_view pattern, bool anywhere, Languages* languages) {
  AISP_ASSIGN_OR_RETURN(const PatternNode node, ParsePattern(pattern));
  Compiler compiler(node, languages);
  Rest end{
      false, [&](Before) { return anywhere ? Languages::kAnyText : Languages::kEmptyText; }, {}};
  Rest body{AsksBefore(node), [&](Before b) { return compiler.Compile(node, b, &end); }, {}};
  const TermId out = anywhere ? compiler.Anywhere(&body) : body.Get(kStart);
  if (!compiler.status()) return tl::unexpected(compiler.status().error());
  if (languages->TimedOut()) {
    return ResourceExhausted(
        "the pattern takes longer to compile than --grammar-compile-timeout allows; simplify it");
  }
  if (languages->Exhausted()) return ResourceExhausted("the pattern needs too many states");
  return out;
}

}  // namespace

Result<TermId> CompilePattern(std::string_view pattern, Languages* languages) {
  return CompileWith(pattern, true, languages);
}

Result<TermId> CompileWholePattern(std::string_view pattern, Languages* languages) {
  return CompileWith(pattern, false, languages);
}

}  // namespace aisp
