#include "net/http_head.h"

#include <algorithm>
#include <utility>

#include "common/strings.h"
#include "net/http_message.h"

namespace aisp {
namespace {

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7F;
}

bool IsTokenChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsDigits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string_view TrimBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool HttpHeadScanner::Refuse(std::string why) {
  error_ = std::move(why);
  return false;
}

size_t HttpHeadScanner::Scan(std::string_view bytes) {
  while (error_.empty() && scanned_ < bytes.size()) {
    const char c = bytes[scanned_];
    const bool after_cr = scanned_ > line_begin_ && bytes[scanned_ - 1] == '\r';
    if (after_cr != (c == '\n')) {
      Refuse(c == '\n' ? "a line of the head ends with LF alone; HTTP wants CR LF"
                       : "a CR stands in the head where no line ends");
      break;
    }
    ++scanned_;
    if (c != '\n') {
      if (c != '\r' && IsControl(c)) Refuse("the head holds a control byte");
      continue;
    }
    const std::string_view line = bytes.substr(line_begin_, scanned_ - line_begin_ - 2);
    line_begin_ = scanned_;
    // Empty lines before a request are allowed.
    if (line.empty() && !first_line_) return scanned_;
    if (!line.empty()) ScanLine(line);
  }
  return 0;
}

bool HttpHeadScanner::ScanLine(std::string_view line) {
  if (!std::exchange(first_line_, false)) return ScanField(line);
  http_1_0_ = line.ends_with("HTTP/1.0");
  if (line.front() == ' ' || line.find('\t') != std::string_view::npos ||
      line.find("  ") != std::string_view::npos) {
    return Refuse("the request line must be METHOD TARGET VERSION with one space between them");
  }
  return true;
}

bool HttpHeadScanner::ScanField(std::string_view line) {
  if (++fields_ > kMaxFields) {
    status_ = 431;
    return Refuse("the request's head has more than " + std::to_string(kMaxFields) + " fields");
  }
  if (line.size() > kMaxFieldBytes) {
    status_ = 431;
    return Refuse("a field of the request's head is longer than " + std::to_string(kMaxFieldBytes) +
                  " bytes");
  }
  if (line.front() == ' ' || line.front() == '\t') {
    return Refuse("a field of the head is folded over two lines, which HTTP/1.1 has given up");
  }
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  if (colon == std::string_view::npos || name.empty() ||
      !std::all_of(name.begin(), name.end(), IsTokenChar)) {
    return Refuse("a field of the head is not NAME: VALUE: " + Excerpt(line));
  }
  const std::string_view value = TrimBlanks(line.substr(colon + 1));
  if (!TakeSingle(name, value)) return false;
  if (has_length_ && has_encoding_) {
    return Refuse("Content-Length and Transfer-Encoding exclude each other");
  }
  return true;
}

// Checks the fields that may appear only once.
bool HttpHeadScanner::TakeSingle(std::string_view name, std::string_view value) {
  const auto again = [&](std::string_view field, bool* has) {
    if (!EqualsIgnoreCaseAscii(name, field) || !std::exchange(*has, true)) return false;
    Refuse(std::string(field) + " stands there twice");
    return true;
  };
  if (again("Host", &has_host_) || again("Authorization", &has_authorization_) ||
      again("X-Api-Key", &has_api_key_) || again("Content-Length", &has_length_) ||
      again("Transfer-Encoding", &has_encoding_)) {
    return false;
  }
  if (EqualsIgnoreCaseAscii(name, "host") && !IsHostText(value)) {
    return Refuse("Host is no name or address: " + Excerpt(value));
  }
  if (EqualsIgnoreCaseAscii(name, "content-length") && !IsDigits(value)) {
    return Refuse("Content-Length is no number: " + Excerpt(value));
  }
  if (EqualsIgnoreCaseAscii(name, "transfer-encoding")) {
    if (!EqualsIgnoreCaseAscii(value, "chunked")) {
      return Refuse("the only Transfer-Encoding known here is chunked, not " + Excerpt(value));
    }
    if (http_1_0_) return Refuse("HTTP/1.0 has no Transfer-Encoding");
  }
  return true;
}

std::string HttpHeadScanner::RefuseTrailers(std::string_view bytes) {
  HttpHeadScanner scanner;
  scanner.first_line_ = false;
  scanner.Scan(bytes);
  return scanner.error_.empty() ? "" : "behind the last chunk: " + scanner.error_;
}

std::string HttpHeadScanner::RefuseExtension(std::string_view extension) {
  if (std::none_of(extension.begin(), extension.end(), IsControl)) return "";
  return "a chunk's extension holds a control byte";
}

}  // namespace aisp
