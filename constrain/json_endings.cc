#include "constrain/json_endings.h"

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

constexpr size_t kMaxLeast = 4096;         // bytes of a minimal value
constexpr size_t kMaxNumberSearch = 4000;  // prefixes visited
constexpr size_t kMaxTexts = 16;           // tried at one position
constexpr size_t kFewTexts = 4;            // of members, which may be many

void Escape(std::string_view text, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20) {
      out->append("\\u00");
      out->push_back(kHex[byte >> 4]);
      out->push_back(kHex[byte & 15]);
      continue;
    }
    if (c == '"' || c == '\\') out->push_back('\\');
    out->push_back(c);
  }
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  Escape(text, &out);
  out.push_back('"');
  return out;
}

// Completes `begun` to a number of the spec, in as few bytes as possible.
std::optional<std::string> FinishNumber(const NumberSpec& spec, const std::string& begun) {
  NumberSyntax syntax = NumberSyntax::kStart;
  for (const char c : begun) syntax = NextSyntax(syntax, c);
  struct Place {
    std::string more;
    NumberSyntax syntax;
  };
  std::vector<Place> places = {{"", syntax}};
  for (size_t i = 0; i < places.size() && places.size() < kMaxNumberSearch; ++i) {
    const Place at = places[i];
    if (IsWhole(at.syntax) && spec.Accepts(begun + at.more)) return at.more;
    for (const char c : std::string_view("0123456789-.e")) {
      const NumberSyntax next = NextSyntax(at.syntax, c);
      if (next == NumberSyntax::kInvalid) continue;
      if (spec.CanBegin(begun + at.more + c)) places.push_back({at.more + c, next});
    }
  }
  return std::nullopt;
}

void Shorten(std::optional<std::string>* best, std::optional<std::string> other) {
  if (other && other->size() <= kMaxLeast && (!*best || other->size() < (*best)->size()))
    *best = std::move(other);
}

bool Shorter(const std::string& a, const std::string& b) { return a.size() < b.size(); }

}  // namespace

JsonEndings::JsonEndings(JsonMachine* machine, std::shared_ptr<const TokenTrie> trie)
    : machine_(*machine), g_(machine->grammar()), trie_(std::move(trie)) {}

const std::string* JsonEndings::LeastOf(TypeId type) const {
  const auto& least = least_[static_cast<size_t>(type)];
  return least ? &*least : nullptr;
}

const std::string* JsonEndings::LeastOf(const std::vector<ValueWay>& ways, uint8_t done) const {
  const std::string* best = nullptr;
  int most = -1;
  for (const ValueWay& way : ways) {
    const std::string* least = LeastOf(way.type);
    if (least == nullptr) continue;
    const int fulfils = __builtin_popcount(way.done & done);
    if (fulfils < most || (fulfils == most && least->size() >= best->size())) continue;
    best = least;
    most = fulfils;
  }
  return best;
}

std::optional<std::string> JsonEndings::LeastOf(const ObjectShape& shape) const {
  std::string out = "{";
  int32_t count = 0;
  uint8_t done = 0;
  // First required members, then those that fulfil an obligation, then any until there are enough.
  for (int pass = 0; pass < 3; ++pass) {
    for (const NameSlot& name : shape.names) {
      if (name.ways.empty() || name.required != (pass == 0)) continue;
      const auto missing = static_cast<uint8_t>(shape.obligations & ~done);
      uint8_t fulfils = 0;
      for (const ValueWay& way : name.ways) fulfils |= way.done & missing;
      if (pass == 1 && fulfils == 0) continue;
      if (pass == 2 && count >= shape.min) break;
      if (pass == 2 && fulfils == 0 && (name.ways[0].done & shape.obligations) != 0) continue;
      const std::string* least = LeastOf(name.ways, missing);
      if (least == nullptr && pass == 0) return std::nullopt;
      if (least == nullptr) continue;
      if (out.size() > 1) out.push_back(',');
      out += Quoted(name.text) + ":" + *least;
      ++count;
      done |= fulfils;
    }
  }
  for (const NameClass& names : shape.classes) {
    for (int i = 0; i < 26 && (count < shape.min || done != shape.obligations); ++i) {
      if (!names.automaton->IsAnyText(names.automaton->start())) break;
      const std::string* least =
          LeastOf(names.ways, static_cast<uint8_t>(shape.obligations & ~done));
      if (least == nullptr) break;
      if (out.size() > 1) out.push_back(',');
      out += std::string("\"") + static_cast<char>('a' + i) + "\":" + *least;
      ++count;
    }
  }
  if (count < shape.min) return std::nullopt;
  return out + "}";
}

std::optional<std::string> JsonEndings::LeastOf(const ArrayShape& shape) const {
  std::string out = "[";
  RuleCounts counts = {};
  const auto wanted = [&] {
    uint8_t bits = 0;
    for (size_t r = 0; r < shape.rules.size(); ++r) {
      if (counts[r] < shape.rules[r].min) bits |= static_cast<uint8_t>(1u << r);
    }
    return bits;
  };
  for (size_t i = 0; i < static_cast<size_t>(shape.min) || wanted() != 0; ++i) {
    const std::string* least = LeastOf(shape.At(i), wanted());
    if (least == nullptr || out.size() + least->size() > kMaxLeast) return std::nullopt;
    if (i > 0) out.push_back(',');
    out += *least;
    for (const ValueWay& way : shape.At(i)) {
      if (LeastOf(way.type) != least) continue;
      for (size_t r = 0; r < shape.rules.size(); ++r) counts[r] += way.done >> r & 1;
      break;
    }
  }
  return out + "]";
}

std::optional<std::string> JsonEndings::LeastOf(const JsonTypeShapes& type) {
  std::optional<std::string> best;
  if (type.null) Shorten(&best, "null");
  if ((type.bools & 2) != 0) Shorten(&best, "true");
  if ((type.bools & 1) != 0) Shorten(&best, "false");
  for (const NumberSpec& spec : type.numbers) Shorten(&best, FinishNumber(spec, ""));
  for (const StringShape& string : type.strings) {
    const auto text = string.automaton->Shortest(string.automaton->start(), string.min);
    if (text) Shorten(&best, Quoted(*text));
  }
  for (const int32_t shape : type.objects)
    Shorten(&best, LeastOf(g_.objects[static_cast<size_t>(shape)]));
  for (const int32_t shape : type.arrays)
    Shorten(&best, LeastOf(g_.arrays[static_cast<size_t>(shape)]));
  return best;
}

// Least fixed point: values are built from known values. Known values do not change, so each round
// looks only at types without one.
void JsonEndings::FindLeast() {
  if (std::exchange(found_, true)) return;
  least_.resize(g_.types.size());
  for (bool more = true; more;) {
    more = false;
    for (size_t t = 0; t < g_.types.size(); ++t) {
      if (least_[t]) continue;
      least_[t] = LeastOf(g_.types[t]);
      more = more || least_[t].has_value();
    }
  }
  FindSizes();
}

size_t JsonEndings::TokensOf(const std::optional<std::string>& text) const {
  std::vector<TokenId> tokens;
  return text && trie_->SpellOut(*text, &tokens) ? tokens.size() : 0;
}

size_t JsonEndings::MostOf(const std::vector<ValueWay>& ways, bool spread) const {
  size_t most = 0, least = SIZE_MAX;
  for (const ValueWay& way : ways) {
    const auto type = static_cast<size_t>(way.type);
    most = std::max(most, most_[type]);
    if (size_[type] > 0) least = std::min(least, size_[type]);
  }
  return spread ? most - std::min(most, least) : most;
}

void JsonEndings::FindSizes() {
  for (size_t t = 0; t < least_.size(); ++t) {
    size_.push_back(TokensOf(least_[t]));
    size_t& most = most_.emplace_back(size_[t]);
    for (const int32_t shape : g_.types[t].objects)
      most = std::max(most, TokensOf(LeastOf(g_.objects[static_cast<size_t>(shape)])));
    for (const int32_t shape : g_.types[t].arrays)
      most = std::max(most, TokensOf(LeastOf(g_.arrays[static_cast<size_t>(shape)])));
    for (const StringShape& string : g_.types[t].strings) {
      const auto text = string.automaton->Shortest(string.automaton->start(), string.min);
      if (text) most = std::max(most, TokensOf(Quoted(*text)));
    }
  }
  for (const ObjectShape& shape : g_.objects) {
    size_t& out = object_growth_.emplace_back(0);
    for (const NameSlot& name : shape.names)
      out = std::max(out, MostOf(name.ways, /*spread=*/name.required));
    for (const NameClass& names : shape.classes)
      out = std::max(out, MostOf(names.ways, /*spread=*/false));
  }
  for (const ArrayShape& shape : g_.arrays) {
    size_t& growth = array_growth_.emplace_back(MostOf(shape.rest, /*spread=*/false));
    size_t& spread = array_spread_.emplace_back(MostOf(shape.rest, /*spread=*/true));
    for (const auto& ways : shape.prefix) {
      growth = std::max(growth, MostOf(ways, /*spread=*/false));
      spread = std::max(spread, MostOf(ways, /*spread=*/true));
    }
  }
}

// The machine accepts no byte that leads nowhere, so one byte at a time suffices.
JsonEndings::Texts JsonEndings::NextOfEscape(const Scalar& scalar) {
  using enum Scalar::Escape;
  switch (scalar.escape) {
    case kBackslash:
      return {"n", "\"", "\\", "/", "t", "r", "b", "f", "u"};
    case kLowBackslash:
      return {"\\"};
    case kLowU:
      return {"u"};
    default:
      return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f"};
  }
}

JsonEndings::Texts JsonEndings::NextOfName(const JsonState& at) {
  const Scalar& scalar = *at.scalar;
  const size_t depth = scalar.text == nullptr ? 0 : scalar.text->length;
  Texts required, others;
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    const ScalarAlt& alt = scalar.alts[i];
    if (alt.name_class != nullptr) {
      const auto more = alt.automaton->Shortest(alt.state, 0);
      if (!more) continue;
      // The name may be used already.
      for (const char* tail : {"", "a", "b", "c", "aa", "ab"}) {
        others.emplace_back();
        Escape(*more + tail, &others.back());
        others.back().push_back('"');
      }
      continue;
    }
    const ObjectShape& shape = machine_.Object(at.top->alts[alt.alt]);
    for (int32_t n = alt.lo; n < alt.hi; ++n) {
      if ((alt.allowed[n / 64] >> (n % 64) & 1) == 0) continue;
      const NameSlot& name = shape.names[static_cast<size_t>(n)];
      Texts& list = name.required ? required : others;
      list.emplace_back();
      Escape(std::string_view(name.text).substr(depth), &list.back());
      list.back().push_back('"');
    }
  }
  std::stable_sort(required.begin(), required.end(), Shorter);
  std::stable_sort(others.begin(), others.end(), Shorter);
  required.insert(required.end(), others.begin(), others.end());
  return required;
}

JsonEndings::Texts JsonEndings::NextOfScalar(const JsonState& at, Arena* arena) {
  const Scalar& scalar = *at.scalar;
  if (scalar.escape != Scalar::Escape::kNone) return NextOfEscape(scalar);
  Texts out;
  switch (scalar.kind) {
    case Scalar::Kind::kName:
      return NextOfName(at);
    case Scalar::Kind::kWord: {
      static constexpr std::string_view kWords[] = {"true", "false", "null"};
      return {std::string(kWords[scalar.word].substr(scalar.word_at))};
    }
    case Scalar::Kind::kString:
      for (size_t i = 0; i < scalar.num_alts; ++i) {
        const ScalarAlt& alt = scalar.alts[i];
        const auto more = alt.automaton->Shortest(alt.state, alt.string->min - alt.length);
        if (!more) continue;
        out.emplace_back();
        Escape(*more, &out.back());
        out.back().push_back('"');
      }
      break;
    case Scalar::Kind::kNumber: {
      const std::string begun = TextOf(scalar.text);
      for (size_t i = 0; i < scalar.num_alts; ++i) {
        auto more = FinishNumber(*scalar.alts[i].number, begun);
        if (more && !more->empty()) out.push_back(std::move(*more));
        JsonState end;
        // What follows a number ends it.
        if (more && more->empty() && machine_.EndNumber(at, arena, &end)) return Next(end, arena);
      }
      break;
    }
  }
  std::stable_sort(out.begin(), out.end(), Shorter);
  return out;
}

JsonEndings::Texts JsonEndings::NextValue(const Level& level) const {
  Texts useful, out;
  for (size_t s = 0; s < level.num_slots; ++s) {
    const Slot& slot = level.slots[s];
    const std::string* least = LeastOf(slot.type);
    if (least == nullptr) continue;
    bool helps = false;
    if (level.kind == Level::Kind::kArray) {
      const ContainerAlt& alt = level.alts[slot.alt];
      const ArrayShape& shape = machine_.Array(alt);
      for (size_t r = 0; r < shape.rules.size(); ++r)
        helps = helps || ((slot.done >> r & 1) != 0 && alt.counts[r] < shape.rules[r].min);
    }
    (helps ? useful : out).push_back(*least);
  }
  std::stable_sort(useful.begin(), useful.end(), Shorter);
  std::stable_sort(out.begin(), out.end(), Shorter);
  useful.insert(useful.end(), out.begin(), out.end());
  return useful;
}

void JsonEndings::AddMembers(const Level& level, const ContainerAlt& alt, Texts* wanted,
                             Texts* possible) const {
  const ObjectShape& shape = machine_.Object(alt);
  const auto missing = static_cast<uint8_t>(shape.obligations & ~alt.done);
  const bool few = level.count < static_cast<uint32_t>(shape.min);
  for (size_t n = 0; n < shape.names.size() && wanted->size() < kFewTexts; ++n) {
    const NameSlot& name = shape.names[n];
    if (name.ways.empty() || (alt.seen[n / 64] >> (n % 64) & 1) != 0) continue;
    if (alt.missing > 0 && !name.required) continue;
    bool fulfils = false;
    for (const ValueWay& way : name.ways) fulfils = fulfils || (way.done & missing) != 0;
    const std::string* least = LeastOf(name.ways, missing);
    if (least == nullptr) continue;
    const bool wants = alt.missing > 0 || fulfils || (missing == 0 && few);
    if (wants || possible->size() < kFewTexts)
      (wants ? wanted : possible)->push_back(Quoted(name.text) + ":" + *least);
  }
  if (!wanted->empty()) return;
  for (const NameClass& names : shape.classes) {
    const std::string* least = LeastOf(names.ways, missing);
    const auto text = names.automaton->Shortest(names.automaton->start(), 0);
    if (least == nullptr || !text) continue;
    for (const char* tail : {"", "a", "b", "c", "d", "e", "f", "g"})
      possible->push_back(Quoted(*text + tail) + ":" + *least);
  }
}

JsonEndings::Texts JsonEndings::NextMember(const Level& level) const {
  Texts wanted, possible;
  for (size_t i = 0; i < level.num_alts; ++i) AddMembers(level, level.alts[i], &wanted, &possible);
  std::stable_sort(wanted.begin(), wanted.end(), Shorter);
  std::stable_sort(possible.begin(), possible.end(), Shorter);
  wanted.insert(wanted.end(), possible.begin(), possible.end());
  return wanted;
}

JsonEndings::Texts JsonEndings::Next(const JsonState& at, Arena* arena) {
  if (at.scalar != nullptr) return NextOfScalar(at, arena);
  const Level& level = *at.top;
  if (level.at == Level::At::kColon) return {":"};
  if (level.at == Level::At::kValue) return NextValue(level);
  const bool object = level.kind == Level::Kind::kObject;
  Texts out;
  if (level.at != Level::At::kName) {
    out.push_back(object ? "}" : "]");
    Level next = level;
    if (!object && machine_.NextItem(level, &next, arena)) {
      for (const std::string& value : NextValue(next))
        out.push_back((level.at == Level::At::kAfter ? "," : "") + value);
    }
  }
  if (object) {
    for (const std::string& member : NextMember(level))
      out.push_back((level.at == Level::At::kAfter ? "," : "") + member);
  }
  return out;
}

bool JsonEndings::Take(const std::string& text, Arena* arena, JsonState* at) {
  const JsonState before = *at;
  for (const char c : text) {
    JsonState next;
    if (machine_.Step(*at, static_cast<uint8_t>(c), arena, &next)) {
      *at = next;
      continue;
    }
    *at = before;
    return false;
  }
  return true;
}

size_t JsonEndings::GrowthAt(const JsonState& state) const {
  constexpr int kLevels = 3;
  size_t growth = 0;
  const Level* level = state.top;
  for (int i = 0; i < kLevels && level != nullptr; ++i, level = level->below) {
    // The awaited value has its minimal form in the ending; another choice adds the difference.
    size_t most = 0, least = SIZE_MAX;
    for (size_t s = 0; s < level->num_slots && i == 0; ++s) {
      const auto type = static_cast<size_t>(level->slots[s].type);
      most = std::max(most, most_[type]);
      if (size_[type] > 0) least = std::min(least, size_[type]);
    }
    growth = std::max(growth, most - std::min(most, least));
    for (size_t a = 0; a < level->num_alts; ++a) {
      const auto shape = static_cast<size_t>(level->alts[a].shape);
      if (level->kind == Level::Kind::kObject) {
        growth = std::max(growth, object_growth_[shape]);
        continue;
      }
      // The item being read counts.
      const bool wanted =
          static_cast<int64_t>(level->count) + (i > 0 ? 1 : 0) < g_.arrays[shape].min;
      growth = std::max(growth, wanted ? array_spread_[shape] : array_growth_[shape]);
    }
    if (level->kind == Level::Kind::kRoot) break;
  }
  // One token may open two values, and an escape or a name needs a few more tokens.
  return 2 * growth + 8;
}

std::optional<Matcher::Ending> JsonEndings::Find(const JsonState& state, size_t limit) {
  FindLeast();
  Arena arena;
  JsonState at = state;
  std::string text;
  while (!machine_.IsWhole(at)) {
    const Texts next = Next(at, &arena);
    const size_t tried = std::min(next.size(), kMaxTexts);
    size_t i = 0;
    while (i < tried && !Take(next[i], &arena, &at)) ++i;
    if (i == tried || text.size() + next[i].size() > limit) return std::nullopt;
    text += next[i];
  }
  Matcher::Ending out;
  if (!trie_->SpellOut(text, &out.tokens)) return std::nullopt;
  out.growth = GrowthAt(state);
  return out;
}

}  // namespace aisp
