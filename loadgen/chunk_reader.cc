#include "loadgen/chunk_reader.h"

#include <charconv>

namespace aisp::loadgen {
namespace {

constexpr int kMaxDepth = 64;

void AppendUtf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::optional<uint32_t> Hex4(std::string_view text) {
  uint32_t value = 0;
  if (text.size() < 4) return std::nullopt;
  const char* const end = text.data() + 4;
  const auto parsed = std::from_chars(end - 4, end, value, 16);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

// Every function returns false when the text is no JSON; the position is then of no use.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool AtEnd() {
    Space();
    return at_ == end_;
  }
  char Peek() {
    Space();
    return at_ == end_ ? '\0' : *at_;
  }
  bool Take(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }

  // The inside of a string, escapes left as they are.
  bool String(std::string_view* raw) {
    if (!Take('"')) return false;
    const char* from = at_;
    for (; at_ != end_; ++at_) {
      if (*at_ == '"') {
        *raw = {from, static_cast<size_t>(at_ - from)};
        ++at_;
        return true;
      }
      if (*at_ != '\\') continue;
      ++at_;
      if (at_ == end_) return false;
    }
    return false;
  }
  // A number, true, false or null, as it stands.
  bool Word(std::string_view* word) {
    Space();
    const char* from = at_;
    while (at_ != end_ &&
           ((*at_ >= '0' && *at_ <= '9') || (*at_ >= 'a' && *at_ <= 'z') ||
            (*at_ >= 'A' && *at_ <= 'Z') || *at_ == '-' || *at_ == '+' || *at_ == '.')) {
      ++at_;
    }
    *word = {from, static_cast<size_t>(at_ - from)};
    return at_ != from;
  }
  bool Integer(int64_t* value) {
    if (Peek() != '-' && (Peek() < '0' || Peek() > '9')) return Skip();
    std::string_view word;
    if (!Word(&word)) return false;
    std::from_chars(word.data(), word.data() + word.size(), *value);
    return true;
  }
  bool Skip(int depth = 0) {
    std::string_view ignored;
    if (depth > kMaxDepth) return false;
    switch (Peek()) {
      case '"':
        return String(&ignored);
      case '{':
        return Object([&](std::string_view) { return Skip(depth + 1); });
      case '[':
        return Array([&] { return Skip(depth + 1); });
      default:
        return Word(&ignored);
    }
  }
  // Calls `member` at each value; it must consume it. Anything but an object is skipped.
  template <typename Fn>
  bool Object(Fn member) {
    if (Peek() != '{') return Skip();
    ++at_;
    if (Take('}')) return true;
    do {
      std::string_view key;
      if (!String(&key) || !Take(':') || !member(key)) return false;
    } while (Take(','));
    return Take('}');
  }
  template <typename Fn>
  bool Array(Fn element) {
    if (Peek() != '[') return Skip();
    ++at_;
    if (Take(']')) return true;
    do {
      if (!element()) return false;
    } while (Take(','));
    return Take(']');
  }
  // A string into `raw`; null and others are skipped.
  bool Text(std::string_view* raw) { return Peek() == '"' ? String(raw) : Skip(); }

 private:
  void Space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  const char* at_;
  const char* end_;
};

// A list that is not empty.
bool ReadPresence(Scanner* scan, bool* present) {
  return scan->Array([&] {
    *present = true;
    return scan->Skip();
  });
}

bool ReadDelta(Scanner* scan, ChunkChoice* choice) {
  return scan->Object([&](std::string_view key) {
    if (key == "content") return scan->Text(&choice->raw_text);
    if (key == "reasoning_content" || key == "reasoning") {
      std::string_view raw;
      const bool read = scan->Text(&raw);
      choice->has_output |= !raw.empty();
      return read;
    }
    if (key == "tool_calls") return ReadPresence(scan, &choice->has_output);
    return scan->Skip();
  });
}

bool ReadChoice(Scanner* scan, Chunk* chunk) {
  ChunkChoice choice;
  const bool read = scan->Object([&](std::string_view key) {
    if (key == "index") return scan->Integer(&choice.index);
    if (key == "text") return scan->Text(&choice.raw_text);
    if (key == "delta") return ReadDelta(scan, &choice);
    if (key == "finish_reason") return scan->Text(&choice.finish_reason);
    if (key == "token_ids") return ReadPresence(scan, &choice.has_output);
    return scan->Skip();
  });
  choice.has_output |= !choice.raw_text.empty();
  chunk->choices.push_back(choice);
  return read;
}

bool ReadUsage(Scanner* scan, Chunk* chunk) {
  if (scan->Peek() != '{') return scan->Skip();
  ChunkUsage usage;
  const bool read = scan->Object([&](std::string_view key) {
    if (key == "prompt_tokens") return scan->Integer(&usage.prompt_tokens);
    if (key == "completion_tokens") return scan->Integer(&usage.completion_tokens);
    if (key != "prompt_tokens_details") return scan->Skip();
    return scan->Object([&](std::string_view detail) {
      return detail == "cached_tokens" ? scan->Integer(&usage.cached_tokens) : scan->Skip();
    });
  });
  chunk->usage = usage;
  return read;
}

bool ReadError(Scanner* scan, Chunk* chunk) {
  if (scan->Peek() == 'n') return scan->Skip();
  chunk->is_error = true;
  if (scan->Peek() == '"') return scan->String(&chunk->raw_error);
  return scan->Object([&](std::string_view key) {
    return key == "message" ? scan->Text(&chunk->raw_error) : scan->Skip();
  });
}

}  // namespace

bool ReadChunk(std::string_view json, Chunk* chunk) {
  chunk->choices.clear();
  chunk->usage.reset();
  chunk->is_error = false;
  chunk->raw_error = {};
  std::string_view object, message;
  Scanner scan(json);
  if (scan.Peek() != '{') return false;
  const bool read = scan.Object([&](std::string_view key) {
    if (key == "choices") return scan.Array([&] { return ReadChoice(&scan, chunk); });
    if (key == "usage") return ReadUsage(&scan, chunk);
    if (key == "error") return ReadError(&scan, chunk);
    if (key == "object") return scan.Text(&object);
    if (key == "message") return scan.Text(&message);
    return scan.Skip();
  });
  // The error object of older servers stands at the top.
  if (object == "error") {
    chunk->is_error = true;
    chunk->raw_error = message;
  }
  return read && scan.AtEnd();
}

std::string UnescapeJson(std::string_view raw) {
  std::string out;
  out.reserve(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\' || i + 1 == raw.size()) {
      out.push_back(raw[i]);
      continue;
    }
    const char c = raw[++i];
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    if (const size_t at = kEscapes.find(c); at != std::string_view::npos) {
      out.push_back(kMeant[at]);
      continue;
    }
    auto unit = c == 'u' ? Hex4(raw.substr(i + 1)) : std::nullopt;
    if (!unit) {
      out.append({'\\', c});
      continue;
    }
    i += 4;
    if (*unit >= 0xD800 && *unit < 0xDC00 && raw.substr(i + 1, 2) == "\\u") {
      const auto low = Hex4(raw.substr(i + 3));
      if (low && *low >= 0xDC00 && *low < 0xE000) {
        unit = 0x10000 + ((*unit - 0xD800) << 10) + (*low - 0xDC00);
        i += 6;
      }
    }
    AppendUtf8(*unit >= 0xD800 && *unit < 0xE000 ? 0xFFFD : *unit, &out);
  }
  return out;
}

}  // namespace aisp::loadgen
