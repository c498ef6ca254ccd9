// HttpReader: parses HTTP/1.1 answers for asynchronous clients. Sans I/O: Feed what arrived, then
// take items until kMore. Interim answers (1xx) are skipped. Chunk lines are bounded, as are heads,
// interim heads and trailers together. One thread at a time.
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
    std::string_view body;  // for kBody; valid until the next call
  };

  // Starts the next answer; bytes that were fed and not consumed remain.
  void Begin();
  void Feed(std::string_view bytes);
  // kHead once, kBody as long as there is data, kEnd once. UNAVAILABLE, permanently, if not HTTP.
  Result<Item> Next();
  // The connection was closed: kEnd if that ends the answer, else an error.
  Result<Item> AtEof();

  // Valid from kHead on.
  int status() const { return status_; }
  const HttpHeaders& headers() const { return headers_; }
  // First value by case-insensitive name; "" when absent.
  std::string_view Header(std::string_view name) const;
  // Valid from kEnd on: whether the connection can be reused.
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

  // The next line without its end; false when it is incomplete.
  Result<bool> Line(std::string_view* line);
  // The same for a line of a head or trailer.
  Result<bool> HeadLine(std::string_view* line);
  void BeginHead();
  Result<Item> ReadHead();
  Status ReadHeadLine(std::string_view line);
  Status FrameBody();
  Item TakeBody(size_t limit);

  std::string input_;
  size_t begin_ = 0;  // start of the unconsumed input
  State state_ = State::kHead;
  bool in_headers_ = false;
  int status_ = 0;
  bool keep_alive_ = true;
  HttpHeaders headers_;
  size_t left_ = 0;  // bytes left of the body or chunk
  size_t head_bytes_ = 0;
};

}  // namespace aisp
