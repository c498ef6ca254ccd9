// HttpHeadScanner: checks a request's head before the parser and refuses whatever two programs
// could read differently (RFC 9112, request smuggling): a bare CR or LF, NUL and other control
// bytes, folded lines, a space before the colon, a repeated or listed Content-Length, any
// Transfer-Encoding other than one "chunked", both together, a repeated or malformed Host, and a
// repeated key. Extensions and trailers of a chunked body follow the same rules.
//
// Sans I/O, one object per head. Linear work however the bytes arrive. One thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace aisp {

class HttpHeadScanner {
 public:
  // `bytes`: everything received so far. Returns the size of the head including its final empty
  // line; 0 when more is needed or the head is refused (see error()).
  size_t Scan(std::string_view bytes);
  const std::string& error() const { return error_; }
  // HTTP status for the refusal.
  int status() const { return status_; }

  // Checks the trailers of a chunked body; `bytes` begin after the last chunk's line. Returns why
  // they are refused, or "".
  static std::string RefuseTrailers(std::string_view bytes);
  // Checks a chunk extension, the text after the size. Returns why it is refused, or "".
  static std::string RefuseExtension(std::string_view extension);

  // Limit because a parsed field takes many times its bytes.
  static constexpr size_t kMaxFields = 256;
  // Limit of a field's line; the parser counts names and values in 16 bits and throws beyond.
  static constexpr size_t kMaxFieldBytes = 65'530;

 private:
  bool ScanLine(std::string_view line);
  bool ScanField(std::string_view line);
  bool TakeSingle(std::string_view name, std::string_view value);
  bool Refuse(std::string why);

  size_t line_begin_ = 0;  // start of the incomplete line
  size_t scanned_ = 0;     // bytes already scanned
  bool first_line_ = true;
  bool http_1_0_ = false;
  bool has_host_ = false;
  bool has_authorization_ = false;
  bool has_api_key_ = false;
  bool has_length_ = false;
  bool has_encoding_ = false;
  size_t fields_ = 0;
  int status_ = 400;
  std::string error_;
};

}  // namespace aisp
