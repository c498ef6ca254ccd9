#include "constrain/token_trie.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <optional>

#include "text/utf8.h"

namespace aisp {
namespace {

// What `piece` spells inside a string, up to a quote, its end or an unfinished escape; nullopt for
// an invalid escape.
std::optional<SpelledToken> Spell(std::string_view piece, int32_t token) {
  static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  SpelledToken out{"", token, false};
  size_t i = 0;
  bool broken = false;
  auto unit = [&](size_t at, uint32_t* value) {
    const std::string_view escape = piece.substr(at, 6);
    const char* end = escape.data() + escape.size();
    broken = !std::string_view("\\u").starts_with(escape.substr(0, 2)) ||
             (escape.size() > 2 && std::from_chars(escape.data() + 2, end, *value, 16).ptr != end);
    return !broken && escape.size() == 6;
  };
  while (i < piece.size() && piece[i] != '"') {
    if (piece[i] != '\\') {
      out.text += piece[i++];
      continue;
    }
    if (i + 1 == piece.size()) return out;
    const size_t known = kFrom.find(piece[i + 1]);
    if (known != std::string_view::npos) {
      out.text += kTo[known];
      i += 2;
      continue;
    }
    uint32_t c = 0, low = 0;
    if (!unit(i, &c)) return broken ? std::nullopt : std::optional(out);
    i += 6;
    if (c >= 0xD800 && c < 0xDC00) {
      if (!unit(i, &low)) return broken ? std::nullopt : std::optional(out);
      i += 6;
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(c, &out.text);
  }
  out.closes = i < piece.size();
  return out;
}

}  // namespace

size_t TokenMask::Count() const {
  size_t count = 0;
  for (const uint32_t w : words_) count += static_cast<size_t>(std::popcount(w));
  return count;
}

// `sorted` by text. Keeps a stack of open nodes; a node's `next` is set when the first text outside
// its subtree comes.
void TokenTrie::Build(const std::vector<std::pair<std::string_view, int32_t>>& sorted,
                      std::vector<TrieNode>* nodes,
                      std::vector<std::pair<int32_t, int32_t>>* twins) {
  std::vector<uint32_t> open;
  std::string_view last;
  auto close = [&](size_t depth) {
    while (open.size() > depth) {
      (*nodes)[open.back()].next = static_cast<uint32_t>(nodes->size());
      open.pop_back();
    }
  };
  for (const auto& [text, token] : sorted) {
    size_t common = 0;
    while (common < std::min(last.size(), text.size()) && last[common] == text[common]) ++common;
    if (common == text.size() && !open.empty() && last.size() == text.size()) {
      TrieNode& same = (*nodes)[open.back()];
      twins->emplace_back(same.token, token);
      same.twins = true;
      continue;
    }
    close(common);
    for (size_t d = common; d < text.size(); ++d) {
      open.push_back(static_cast<uint32_t>(nodes->size()));
      nodes->push_back({0, d + 1 == text.size() ? token : -1, static_cast<uint16_t>(d + 1),
                        static_cast<uint8_t>(text[d]), false});
    }
    last = text;
  }
  close(0);
}

TokenTrie::TokenTrie(const std::vector<std::string>& pieces)
    : pieces_(pieces), vocabulary_(pieces.size()) {
  constexpr size_t kMaxTokenBytes = 1024;
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  code_points_.resize(pieces_.size(), 0);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].empty() || pieces_[i].size() > kMaxTokenBytes) continue;
    sorted.emplace_back(pieces_[i], static_cast<int32_t>(i));
    max_depth_ = std::max(max_depth_, static_cast<uint16_t>(pieces_[i].size()));
    size_t points = 0;
    for (const char c : pieces_[i]) points += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
    code_points_[i] = static_cast<uint8_t>(std::min<size_t>(points, 255));
  }
  std::sort(sorted.begin(), sorted.end());
  Build(sorted, &nodes_, &twins_);
  std::sort(twins_.begin(), twins_.end());
  first_.fill(-1);
  for (uint32_t i = 0; i < nodes_.size(); i = nodes_[i].next)
    first_[nodes_[i].byte] = static_cast<int32_t>(i);
  IndexQuotes();
  IndexTexts();
  constexpr size_t kShort = 17;
  short_.assign(kShort, TokenMask(vocabulary_));
  for (size_t i = 0; i < pieces_.size(); ++i) {
    for (size_t n = code_points_[i]; n < kShort; ++n) short_[n].Set(i);
    if (code_points_[i] >= kShort) long_.push_back(static_cast<int32_t>(i));
  }
  std::sort(long_.begin(), long_.end(),
            [this](int32_t a, int32_t b) { return CodePoints(a) > CodePoints(b); });
}

void TokenTrie::KeepShort(int32_t points, TokenMask* mask) const {
  if (points < static_cast<int32_t>(short_.size())) {
    const auto allowed = short_[static_cast<size_t>(std::max(points, 0))].words();
    for (size_t i = 0; i < allowed.size(); ++i) mask->words()[i] &= allowed[i];
    return;
  }
  for (const int32_t token : long_) {
    if (CodePoints(token) <= points) return;
    mask->Clear(static_cast<size_t>(token));
  }
}

std::shared_ptr<const TokenTrie> TokenTrie::Of(const Tokenizer& tokenizer, int32_t vocabulary) {
  std::vector<std::string> pieces(static_cast<size_t>(std::max(vocabulary, tokenizer.VocabSize())));
  for (int32_t id = 0; id < tokenizer.VocabSize(); ++id) {
    if (!tokenizer.IsSpecial(id))
      pieces[static_cast<size_t>(id)] = std::string(tokenizer.IdToPiece(id));
  }
  return std::make_shared<const TokenTrie>(pieces);
}

const TextMask& TokenTrie::KeepAnyText(std::unique_ptr<TextMask> mask) const {
  const std::lock_guard lock(any_text_mutex_);
  if (!any_text_owner_) {
    any_text_owner_ = std::move(mask);
    any_text_.store(any_text_owner_.get(), std::memory_order_release);
  }
  return *any_text_owner_;
}

void TokenTrie::SetTwins(int32_t token, TokenMask* mask) const {
  auto it = std::lower_bound(twins_.begin(), twins_.end(), std::make_pair(token, INT32_MIN));
  for (; it != twins_.end() && it->first == token; ++it) mask->Set(static_cast<size_t>(it->second));
}

void TokenTrie::AddTwins(int32_t token, std::vector<int32_t>* out) const {
  auto it = std::lower_bound(twins_.begin(), twins_.end(), std::make_pair(token, INT32_MIN));
  for (; it != twins_.end() && it->first == token; ++it) out->push_back(it->second);
}

bool TokenTrie::SpellOut(std::string_view text, std::vector<TokenId>* out) const {
  while (!text.empty()) {
    TokenId longest = -1;
    size_t length = 0;
    int32_t node = -1;
    for (size_t i = 0; i < text.size(); ++i) {
      node = Child(node, static_cast<uint8_t>(text[i]));
      if (node < 0) break;
      const TrieNode& at = nodes_[static_cast<size_t>(node)];
      if (at.token < 0) continue;
      longest = at.token;
      length = i + 1;
    }
    if (longest < 0) return false;
    out->push_back(longest);
    text.remove_prefix(length);
  }
  return true;
}

void TokenTrie::ClearBelow(int32_t node, TokenMask* mask) const {
  for (auto i = static_cast<uint32_t>(node); i < nodes_[static_cast<size_t>(node)].next; ++i) {
    if (nodes_[i].token < 0) continue;
    mask->Clear(static_cast<size_t>(nodes_[i].token));
    if (!nodes_[i].twins) continue;
    auto it =
        std::lower_bound(twins_.begin(), twins_.end(), std::make_pair(nodes_[i].token, INT32_MIN));
    for (; it != twins_.end() && it->first == nodes_[i].token; ++it)
      mask->Clear(static_cast<size_t>(it->second));
  }
}

int32_t TokenTrie::Child(int32_t node, uint8_t byte) const {
  if (node < 0) return first_[byte];
  const auto parent = static_cast<size_t>(node);
  for (uint32_t i = static_cast<uint32_t>(node) + 1; i < nodes_[parent].next; i = nodes_[i].next) {
    if (nodes_[i].byte == byte) return static_cast<int32_t>(i);
    if (nodes_[i].byte > byte) break;
  }
  return -1;
}

void TokenTrie::IndexQuotes() {
  // The trie of suffixes, and the map from text to node.
  std::vector<std::string_view> texts;
  for (const TrieNode& node : nodes_) {
    if (node.token < 0) continue;
    const std::string_view piece = pieces_[static_cast<size_t>(node.token)];
    for (size_t q = piece.find('"'); q != std::string_view::npos; q = piece.find('"', q + 1)) {
      if (q + 1 < piece.size()) texts.push_back(piece.substr(q + 1));
    }
  }
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  sorted.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) sorted.emplace_back(texts[i], static_cast<int32_t>(i));
  std::vector<std::pair<int32_t, int32_t>> none;
  Build(sorted, &suffixes_, &none);
  std::vector<int32_t> node_of(texts.size());
  for (size_t n = 0; n < suffixes_.size(); ++n) {
    if (suffixes_[n].token >= 0)
      node_of[static_cast<size_t>(suffixes_[n].token)] = static_cast<int32_t>(n);
  }
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    if (nodes_[n].byte != '"') continue;
    quote_nodes_.push_back(static_cast<int32_t>(n));
    quote_begin_.push_back(static_cast<uint32_t>(quote_suffixes_.size()));
    for (uint32_t i = n; i < nodes_[n].next; ++i) {
      if (nodes_[i].token < 0) continue;
      const std::string_view rest =
          std::string_view(pieces_[static_cast<size_t>(nodes_[i].token)]).substr(nodes_[n].depth);
      const auto at = std::lower_bound(texts.begin(), texts.end(), rest);
      const int32_t suffix = rest.empty() ? -1 : node_of[static_cast<size_t>(at - texts.begin())];
      quote_suffixes_.push_back({suffix, nodes_[i].token});
      if (!nodes_[i].twins) continue;
      for (const auto& [first, other] : twins_) {
        if (first == nodes_[i].token) quote_suffixes_.push_back({suffix, other});
      }
    }
  }
  quote_begin_.push_back(static_cast<uint32_t>(quote_suffixes_.size()));
}

void TokenTrie::IndexTexts() {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const std::string_view piece = pieces_[i];
    const size_t mark = piece.find_first_of("\"\\");
    if (mark == std::string_view::npos) continue;
    const auto token = static_cast<int32_t>(i);
    size_t quote = mark;
    if (piece[mark] == '\\') {
      auto spelled = Spell(piece, token);
      if (!spelled) continue;
      const size_t first = spelled->text.empty() ? 256 : static_cast<uint8_t>(spelled->text[0]);
      spelled_[first].push_back(std::move(*spelled));
      while (quote < piece.size() && piece[quote] != '"') quote += piece[quote] == '\\' ? 2 : 1;
    }
    const size_t comma = piece.find(',', quote);
    if (quote >= piece.size() || comma == std::string_view::npos) continue;
    const size_t next = piece.find_first_not_of(" \t\r\n", quote + 1);
    (piece[next] == ':' ? beyond_names_ : beyond_values_).push_back(token);
    const std::string_view behind = piece.substr(comma);
    const bool item = behind.find_first_of("]}") != std::string_view::npos ||
                      behind.find('"') != behind.rfind('"');
    if (item && piece[next] != ':') beyond_items_.push_back(token);
  }
}

std::span<const TokenTrie::Suffix> TokenTrie::BehindQuote(int32_t node) const {
  const auto it = std::lower_bound(quote_nodes_.begin(), quote_nodes_.end(), node);
  const auto i = static_cast<size_t>(it - quote_nodes_.begin());
  return std::span(quote_suffixes_).subspan(quote_begin_[i], quote_begin_[i + 1] - quote_begin_[i]);
}

}  // namespace aisp
