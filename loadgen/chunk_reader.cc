#include "loadgen/chunk_reader.h"

#include <charconv>

#include "loadgen/json_scanner.h"

namespace aisp::loadgen {
namespace {

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

// Whether a list is non-empty.
bool ReadPresence(JsonScanner* scan, bool* present) {
  return scan->Array([&] {
    *present = true;
    return scan->Skip();
  });
}

bool ReadIds(JsonScanner* scan, ChunkChoice* choice) {
  return scan->Array([&] {
    int64_t id = 0;
    choice->has_output = true;
    const bool read = scan->Integer(&id);
    choice->token_ids.push_back(static_cast<int32_t>(id));
    return read;
  });
}

bool ReadDelta(JsonScanner* scan, ChunkChoice* choice) {
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

bool ReadChoice(JsonScanner* scan, Chunk* chunk) {
  ChunkChoice choice;
  const bool read = scan->Object([&](std::string_view key) {
    if (key == "index") return scan->Integer(&choice.index);
    if (key == "text") return scan->Text(&choice.raw_text);
    if (key == "delta") return ReadDelta(scan, &choice);
    if (key == "finish_reason") return scan->Text(&choice.finish_reason);
    if (key == "token_ids") return ReadIds(scan, &choice);
    return scan->Skip();
  });
  choice.has_output |= !choice.raw_text.empty();
  chunk->choices.push_back(std::move(choice));
  return read;
}

bool ReadUsage(JsonScanner* scan, Chunk* chunk) {
  if (scan->Peek() != '{') return scan->Skip();
  ChunkUsage usage;
  const bool read = scan->Object([&](std::string_view key) {
    if (key == "prompt_tokens") return scan->Integer(&usage.prompt_tokens);
    if (key == "completion_tokens") return scan->Integer(&usage.completion_tokens);
    if (key == "aisp") return scan->Raw(&usage.raw_aisp);
    if (key != "prompt_tokens_details") return scan->Skip();
    return scan->Object([&](std::string_view detail) {
      return detail == "cached_tokens" ? scan->Integer(&usage.cached_tokens) : scan->Skip();
    });
  });
  chunk->usage = usage;
  return read;
}

bool ReadNumbersOf(JsonScanner* scan, const std::string& prefix, int depth,
                   std::vector<std::pair<std::string, double>>* out) {
  return scan->Object([&](std::string_view key) {
    const char next = scan->Peek();
    if (next == '{' && depth < kMaxJsonDepth) {
      return ReadNumbersOf(scan, prefix + std::string(key) + ".", depth + 1, out);
    }
    if (next != '-' && (next < '0' || next > '9')) return scan->Skip();
    std::string_view word;
    if (!scan->Word(&word)) return false;
    double value = 0;
    if (std::from_chars(word.data(), word.data() + word.size(), value).ec == std::errc()) {
      out->emplace_back(prefix + std::string(key), value);
    }
    return true;
  });
}

bool ReadError(JsonScanner* scan, Chunk* chunk) {
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
  JsonScanner scan(json);
  if (scan.Peek() != '{') return false;
  const bool read = scan.Object([&](std::string_view key) {
    if (key == "choices") return scan.Array([&] { return ReadChoice(&scan, chunk); });
    if (key == "usage") return ReadUsage(&scan, chunk);
    if (key == "error") return ReadError(&scan, chunk);
    if (key == "object") return scan.Text(&object);
    if (key == "message") return scan.Text(&message);
    return scan.Skip();
  });
  // Older servers put the error object at the top level.
  if (object == "error") {
    chunk->is_error = true;
    chunk->raw_error = message;
  }
  return read && scan.AtEnd();
}

std::vector<std::pair<std::string, double>> ReadNumbers(std::string_view json) {
  std::vector<std::pair<std::string, double>> out;
  JsonScanner scan(json);
  if (!ReadNumbersOf(&scan, "", 0, &out)) out.clear();
  return out;
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
