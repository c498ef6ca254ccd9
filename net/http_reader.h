// HttpReader: the bytes of HTTP/1.1 answers into heads and pieces of bodies, for clients that are
// called back. Sans I/O: Feed what arrived, then take items until kMore. Interim answers (1xx) are
// skipped; chunk lines are bounded, and heads, interim ones and trailers together. One thread at a
// time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/result.h"
#include "net/http_server.h"

namespace aisp {

class HttpReader {
 public:
  enum class Kind { kMore, kHead, kBody, kEnd };
  struct Item {
    Kind kind = Kind::kMore;
    std::string_view body;  // of kBody; valid until the next call
  };

  // Forgets the answer before; bytes that were fed and not consumed stay.
  void Begin();
  void Feed(std::string_view bytes);
  // kHead once, kBody as often as there is some, kEnd once. UNAVAILABLE for what is no HTTP; it
  // stays so.
  Result<Item> Next();
  // The connection was closed: kEnd if the answer ends so, else an error.
  Result<Item> AtEof();

  // From kHead on.
  int status() const { return status_; }
  const HttpHeaders& headers() const { return headers_; }
  // First value by case-insensitive name, "" when absent.
  std::string_view Header(std::string_view name) const;
  // From kEnd on: another request may be sent on this connection.
  bool keep_alive() const { return keep_alive_ && begin_ == input_.size(); }

 private:
  enum class State {
    kHead,
    kLength,
    kUntilClose,
    kChunkSize,
    kChunkData,
    kChunkEnd,
    kTrailer,
    kDone
  };

  // The next line without its end; false when it is not there yet.
  Result<bool> Line(std::string_view* line);
  // The same, of a head or trailer.
  Result<bool> HeadLine(std::string_view* line);
  void BeginHead();
  Result<Item> ReadHead();
  Status ReadHeadLine(std::string_view line);
  Status FrameBody();
  Item TakeBody(size_t limit);

  std::string input_;
  size_t begin_ = 0;  // of what was not consumed
  State state_ = State::kHead;
  bool in_headers_ = false;
  int status_ = 0;
  bool keep_alive_ = true;
  HttpHeaders headers_;
  size_t left_ = 0;  // of the body or of the chunk
  size_t head_bytes_ = 0;
};

}  // namespace aisp
