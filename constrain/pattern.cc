#include "constrain/pattern.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "constrain/pattern_parser.h"

namespace aisp {
namespace {

using Kind = PatternNode::Kind;

constexpr int32_t kMaxUnrolled = 64;
constexpr int32_t kMaxDepth = 2000;

// What stands before a position, as far as ^ and \b ask.
enum Before : uint8_t { kStart, kAfterWord, kAfterOther };

bool HasAssertion(const PatternNode& node) {
  if (node.kind == Kind::kBegin || node.kind == Kind::kEnd || node.kind == Kind::kBoundary ||
      node.kind == Kind::kLookAhead) {
    return true;
  }
  for (const PatternNode& child : node.children) {
    if (HasAssertion(child)) return true;
  }
  return false;
}

bool AsksBefore(const PatternNode& node) {
  if (node.kind == Kind::kBegin || node.kind == Kind::kBoundary) return true;
  for (const PatternNode& child : node.children) {
    if (AsksBefore(child)) return true;
  }
  return false;
}

// The rest of the pattern: the language of what may follow, given what stands before. Computed once
// for each answer.
struct Rest {
  bool asks = false;  // the answer depends on what stands before
  std::function<TermId(Before)> make;
  std::array<std::optional<TermId>, 3> memo = {};

  TermId Get(Before before) {
    auto& slot = memo[asks ? before : kStart];
    if (!slot) slot = make(before);
    return *slot;
  }
};

class Compiler {
 public:
  explicit Compiler(Languages* languages) : l_(*languages) {}

  // Texts that `node` matches at a position behind `before`, and then `rest`.
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
        return Unroll(node, before, rest);
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
      case Kind::kSet:
        break;
    }
    return Languages::kNothing;
  }

  // Any text, and then `rest`.
  TermId Anywhere(Rest* rest) {
    const TermId any = Languages::kAnyText;
    if (!rest->asks) return l_.Concat(any, rest->Get(kStart));
    const TermId word = l_.Set(WordCharacters()), other = l_.Set(WordCharacters().Complement());
    return l_.Union({rest->Get(kStart), l_.Concat(any, l_.Concat(word, rest->Get(kAfterWord))),
                     l_.Concat(any, l_.Concat(other, rest->Get(kAfterOther)))});
  }

  const Status& status() const { return status_; }

 private:
  // What `node`, which asserts nothing, matches, and then `rest`, which may want to know how that
  // ended.
  TermId Consume(const PatternNode& node, Before before, Rest* rest) {
    const TermId part = Plain(node);
    if (!rest->asks) return l_.Concat(part, rest->Get(before));
    const CharSet& word = WordCharacters();
    std::vector<TermId> ways;
    if (l_.AcceptsEmpty(part)) ways.push_back(rest->Get(before));
    for (const bool in_word : {true, false}) {
      const TermId ending = EndingIn(node, in_word ? word : word.Complement());
      if (ending == Languages::kNothing) continue;
      ways.push_back(l_.Concat(ending, rest->Get(in_word ? kAfterWord : kAfterOther)));
    }
    return l_.Union(ways);
  }

  // What `node`, which asserts nothing, matches with its last character in `last`. Said by its
  // parts: an intersection with "anything and then such a character" would stay in the terms, and
  // what can never match would double them with each part of the pattern.
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
        // Child i is the last that matches anything: those behind it match the empty text.
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

  // What follows each child is one Rest: the children before it ask for it again and again.
  TermId Sequence(const PatternNode& node, Before before, Rest* rest) {
    const size_t count = node.children.size();
    std::vector<Rest> from(count + 1);  // the children from there on, and `rest`
    from[count] = {rest->asks, [rest](Before b) { return rest->Get(b); }, {}};
    for (size_t i = count; i-- > 0;) {
      from[i] = {from[i + 1].asks || AsksBefore(node.children[i]),
                 [&, i](Before b) { return Compile(node.children[i], b, &from[i + 1]); },
                 {}};
    }
    return from[0].Get(before);
  }

  // A repetition with an assertion inside: written out.
  TermId Unroll(const PatternNode& node, Before before, Rest* rest) {
    const PatternNode& body = node.children[0];
    if (node.max < 0 || node.max > kMaxUnrolled) {
      status_ = Unimplemented("an assertion inside a repetition cannot be enforced");
      return Languages::kNothing;
    }
    const auto max = static_cast<size_t>(node.max), min = static_cast<size_t>(node.min);
    std::vector<Rest> from(max + 1);  // so many are done
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

  // What may follow at a word boundary (or, negated, where there is none).
  TermId Boundary(Before before, bool negated) {
    const bool word_follows = (before == kAfterWord) == negated;
    const TermId word = l_.Concat(l_.Set(WordCharacters()), Languages::kAnyText);
    return word_follows ? word : l_.Not(word);
  }

  struct Nested {
    explicit Nested(int32_t* depth) : depth_(depth) { ++*depth_; }
    ~Nested() { --*depth_; }
    int32_t* depth_;
  };

  Languages& l_;
  Status status_;
  int32_t depth_ = 0;  // calls of Compile under way: bounds the stack
};

Result<TermId> CompileWith(std::string_view pattern, bool anywhere, Languages* languages) {
  AISP_ASSIGN_OR_RETURN(const PatternNode node, ParsePattern(pattern));
  Compiler compiler(languages);
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
