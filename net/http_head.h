// HttpHeadScanner: looks at the bytes of a request's head before the parser does, and refuses what
// two programs could read in two ways (RFC 9112, request smuggling): a bare CR or LF, NUL and other
// control bytes, folded lines, a space before the colon, a doubled or listed Content-Length, any
// Transfer-Encoding but one "chunked", and both at once; a doubled or malformed Host, and a key
// that is said twice. What a chunked body has beside its chunks is held to the same rules.
//
// Sans I/O, one head each. Work is linear however the bytes arrive. One thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace aisp {

class HttpHeadScanner {
 public:
  // `bytes`: everything that has arrived, the same bytes as the call before and more. The size of
  // the head with the empty line that ends it; 0 while more is needed or when error() says why it
  // is refused.
  size_t Scan(std::string_view bytes);
  const std::string& error() const { return error_; }
  // The HTTP status of the refusal.
  int status() const { return status_; }

  // Of a chunked body: `bytes` begin with the lines behind the last chunk, with the empty one that
  // ends them. Why they are refused; "" when they are not.
  static std::string RefuseTrailers(std::string_view bytes);
  // Of a chunk: what stands behind its size. Why it is refused; "" when it is not.
  static std::string RefuseExtension(std::string_view extension);

  // More are refused: each takes many times its bytes once it is parsed.
  static constexpr size_t kMaxFields = 256;
  // Of a field's line; the parser counts names and values in 16 bits, and throws beyond.
  static constexpr size_t kMaxFieldBytes = 65'530;

 private:
  bool ScanLine(std::string_view line);
  bool ScanField(std::string_view line);
  bool TakeSingle(std::string_view name, std::string_view value);
  bool Refuse(std::string why);

  size_t line_begin_ = 0;  // of the line that is not whole yet
  size_t scanned_ = 0;     // bytes of it that were looked at
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
