#include "frontend/spelled_arguments.h"

#include <algorithm>
#include <utility>

#include "answer/python_arguments.h"
#include "answer/xml_arguments.h"

namespace aisp {
namespace {

bool MeansOther(std::string_view piece) {
  return piece.substr(0, piece.size() - 1).find('"') != std::string_view::npos ||
         piece.find("\\/") != std::string_view::npos;
}

bool NeedsEscape(std::string_view piece) {
  return std::any_of(piece.begin(), piece.end(), [](char c) {
    return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
  });
}

// Tokens that hold a byte no name may contain, and a trie of those where the first such byte is
// `end`, which ends the name.
SpelledTokens::Some Beyond(const TokenTrie& all, bool (*is_name)(std::string_view), char end) {
  std::vector<std::string> pieces(all.vocabulary());
  TokenMask mask(all.vocabulary());
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string& piece = all.piece(static_cast<TokenId>(id));
    const auto other = std::find_if(piece.begin(), piece.end(), [is_name](const char& c) {
      return !is_name({&c, 1});
    });
    if (other == piece.end()) continue;
    mask.Set(id);
    if (*other == end) pieces[id] = piece;
  }
  return {std::make_shared<const TokenTrie>(pieces), std::move(mask)};
}

bool IsPartOfPythonName(std::string_view text) { return IsPythonName("_" + std::string(text)); }

SpelledTokens::Some Those(const TokenTrie& all, bool (*is)(std::string_view)) {
  std::vector<std::string> pieces(all.vocabulary());
  TokenMask mask(all.vocabulary());
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string& piece = all.piece(static_cast<TokenId>(id));
    if (piece.empty() || !is(piece)) continue;
    pieces[id] = piece;
    mask.Set(id);
  }
  return {std::make_shared<const TokenTrie>(pieces), std::move(mask)};
}

// A position in the arguments, in both spellings.
template <typename Spelling>
struct Place {
  Spelling spelling;
  size_t calls = 0;  // the matcher's AdvanceBytes calls up to here
};

template <typename Spelling>
class SpelledMatcher final : public Matcher {
 public:
  SpelledMatcher(std::unique_ptr<Matcher> json, std::shared_ptr<const SpelledTokens> tokens,
                 Spelling spelling)
      : json_(std::move(json)), tokens_(std::move(tokens)), at_{std::move(spelling)} {}

  bool Advance(TokenId token) override {
    if (token < 0 || static_cast<size_t>(token) >= tokens_->all->vocabulary()) return false;
    const std::string& piece = tokens_->all->piece(token);
    return !piece.empty() && AdvanceBytes(piece) == piece.size();
  }

  size_t AdvanceBytes(std::string_view bytes) override {
    Place<Spelling> next = at_;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (Take(bytes[i], &next)) continue;
      Restore(at_);
      return i;
    }
    history_.push_back(std::exchange(at_, std::move(next)));
    return bytes.size();
  }

  void Rewind(size_t count) override {
    for (; count > 0 && !history_.empty(); --count) {
      at_ = std::move(history_.back());
      history_.pop_back();
    }
    Restore(at_);
  }

  bool IsWhole() override { return at_.spelling.done(); }
  std::string Forced(size_t /*limit*/) override { return ""; }

  void Mask(TokenMask* mask) override {
    if (const SpelledTokens::Some* other = InString(mask)) {
      for (size_t i = 0; i < mask->words().size(); ++i) mask->words()[i] &= ~other->mask.words()[i];
      return Walk(*other->trie, mask);
    }
    std::fill(mask->words().begin(), mask->words().end(), 0u);
    if (!IsWhole()) Walk(*tokens_->all, mask);
  }

 private:
  // Inside strings and names most tokens are allowed as in JSON: sets `mask` from the JSON matcher
  // and returns the exceptions to be checked one by one. Null: elsewhere.
  const SpelledTokens::Some* InString(TokenMask* mask);

  bool Step(Spelling* spelling, char c, std::string* json);
  bool Feed(std::string_view json) {
    if (json.empty()) return true;
    if (json_->AdvanceBytes(json) != json.size()) return false;
    ++calls_;
    return true;
  }
  bool MayFollow(std::string_view json) {
    if (!Feed(json)) return false;
    json_->Rewind(1);
    --calls_;
    return true;
  }

  // False when `c` may not follow; Restore must then undo what the JSON matcher consumed.
  bool Take(char c, Place<Spelling>* place) {
    std::string json;
    if (!Step(&place->spelling, c, &json) || !Feed(json)) return false;
    place->calls = calls_;
    return true;
  }

  void Restore(const Place<Spelling>& place) {
    json_->Rewind(calls_ - place.calls);
    calls_ = place.calls;
  }

  // Sets the tokens of `trie` that may follow.
  void Walk(const TokenTrie& trie, TokenMask* mask) {
    const auto nodes = trie.nodes();
    std::vector<Place<Spelling>> path = {at_};
    for (size_t i = 0; i < nodes.size();) {
      path.resize(nodes[i].depth, at_);
      Restore(path.back());
      Place<Spelling> next = path.back();
      if (!Take(static_cast<char>(nodes[i].byte), &next)) {
        Restore(path.back());
        i = nodes[i].next;
        continue;
      }
      path.push_back(std::move(next));
      trie.SetTokens(nodes[i++], mask);
    }
    Restore(at_);
  }

  void ClearAt(std::string_view text, TokenMask* mask) const {
    int32_t node = -1;
    for (const char c : text) {
      node = tokens_->all->Child(node, static_cast<uint8_t>(c));
      if (node < 0) return;
    }
    tokens_->all->ClearBelow(node, mask);
  }

  const std::unique_ptr<Matcher> json_;
  const std::shared_ptr<const SpelledTokens> tokens_;
  size_t calls_ = 0;  // json_->AdvanceBytes calls, minus rewinds
  Place<Spelling> at_;
  std::vector<Place<Spelling>> history_;
};

template <>
bool SpelledMatcher<PythonArguments>::Step(PythonArguments* spelling, char c, std::string* json) {
  return spelling->Step(c, json);
}

template <>
const SpelledTokens::Some* SpelledMatcher<PythonArguments>::InString(TokenMask* mask) {
  if (at_.spelling.in_key()) {
    json_->Mask(mask);
    return &tokens_->in_python_names;
  }
  if (!at_.spelling.in_text()) return nullptr;
  json_->Mask(mask);
  if (at_.spelling.in_escape()) ClearAt("/", mask);
  return &tokens_->in_strings;
}

template <>
bool SpelledMatcher<XmlArguments>::Step(XmlArguments* spelling, char c, std::string* json) {
  XmlArguments::Ask ask = XmlArguments::Ask::kNothing;
  if (!spelling->Step(c, json, &ask)) return false;
  if (ask == XmlArguments::Ask::kNothing) return true;
  // The JSON matcher must first consume what precedes the byte.
  if (!Feed(std::exchange(*json, {}))) return false;
  if (ask == XmlArguments::Ask::kWhole) return MayFollow("}") || MayFollow(",");
  if (!MayFollow("\"")) spelling->SayHeld(json);
  return true;
}

template <>
const SpelledTokens::Some* SpelledMatcher<XmlArguments>::InString(TokenMask* mask) {
  if (at_.spelling.in_json_text() || at_.spelling.in_key()) {
    json_->Mask(mask);
    return at_.spelling.in_key() ? &tokens_->in_tag_names : &tokens_->in_strings;
  }
  if (!at_.spelling.in_text()) return nullptr;
  // Any token that does not continue the end marker turns the held bytes into text.
  std::string held;
  XmlArguments(at_.spelling).SayHeld(&held);
  if (Feed(held)) {
    json_->Mask(mask);
  } else {
    std::fill(mask->words().begin(), mask->words().end(), 0u);
  }
  Restore(at_);
  const std::string_view rest = at_.spelling.rest();
  if (rest.size() == XmlArguments::kEnd.size()) return &tokens_->in_texts;
  ClearAt(rest, mask);
  int32_t node = -1;
  for (const char c : rest) {
    node = tokens_->all->Child(node, static_cast<uint8_t>(c));
    if (node < 0) break;
    const TrieNode& end = tokens_->all->nodes()[static_cast<size_t>(node)];
    if (end.token < 0) continue;
    if (Advance(end.token)) {
      Rewind(1);
      tokens_->all->SetTokens(end, mask);
    }
  }
  return &tokens_->in_texts;
}

template <typename Spelling>
class SpelledConstraint final : public Constraint {
 public:
  SpelledConstraint(std::shared_ptr<Constraint> json, std::shared_ptr<const SpelledTokens> tokens,
                    Spelling spelling)
      : json_(std::move(json)), tokens_(std::move(tokens)), spelling_(std::move(spelling)) {}
  std::unique_ptr<Matcher> NewMatcher() override {
    return std::make_unique<SpelledMatcher<Spelling>>(json_->NewMatcher(), tokens_, spelling_);
  }
  size_t bytes() const override { return json_->bytes(); }

 private:
  const std::shared_ptr<Constraint> json_;
  const std::shared_ptr<const SpelledTokens> tokens_;
  const Spelling spelling_;
};

}  // namespace

SpelledTokens::SpelledTokens(std::shared_ptr<const TokenTrie> trie)
    : all(std::move(trie)),
      in_strings(Those(*all, MeansOther)),
      in_texts(Those(*all, NeedsEscape)),
      in_python_names(Beyond(*all, IsPartOfPythonName, '=')),
      in_tag_names(Beyond(*all, IsXmlName, '>')) {}

std::shared_ptr<Constraint> SpellArguments(CallFormat::Body body, std::shared_ptr<Constraint> json,
                                           std::shared_ptr<const SpelledTokens> tokens,
                                           const std::vector<std::string>& texts) {
  if (body == CallFormat::Body::kPythonic) {
    return std::make_shared<SpelledConstraint<PythonArguments>>(
        std::move(json), std::move(tokens), PythonArguments(PythonArguments::Spelling::kOne));
  }
  XmlArguments::Names names =
      std::make_shared<const std::set<std::string, std::less<>>>(texts.begin(), texts.end());
  return std::make_shared<SpelledConstraint<XmlArguments>>(std::move(json), std::move(tokens),
                                                           XmlArguments(std::move(names)));
}

bool SpellsArguments(CallFormat::Body body) {
  return body == CallFormat::Body::kPythonic || body == CallFormat::Body::kXml;
}

bool CanName(CallFormat::Body body, std::string_view parameter) {
  return body == CallFormat::Body::kPythonic ? IsPythonName(parameter) : IsXmlName(parameter);
}

std::string_view NamePattern(CallFormat::Body body) {
  return body == CallFormat::Body::kPythonic ? "^[A-Za-z_][A-Za-z0-9_.-]*$"
                                             : R"(^[^<>"\\\s\u0000-\u0020]+$)";
}

}  // namespace aisp
