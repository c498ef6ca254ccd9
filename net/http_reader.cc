#include "net/http_reader.h"

#include <algorithm>
#include <charconv>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr size_t kMaxLine = 64 << 10;
constexpr size_t kMaxHeaders = 256;
constexpr size_t kMaxHead = 256 << 10;

}  // namespace

void HttpReader::Begin() {
  head_bytes_ = 0;
  BeginHead();
}

void HttpReader::BeginHead() {
  state_ = State::kHead;
  in_headers_ = false;
  status_ = 0;
  keep_alive_ = true;
  headers_.clear();
  left_ = 0;
}

void HttpReader::Feed(std::string_view bytes) {
  if (begin_ == input_.size()) {
    input_.clear();
    begin_ = 0;
  } else if (begin_ * 2 >= input_.size()) {
    input_.erase(0, begin_);
    begin_ = 0;
  }
  input_ += bytes;
}

std::string_view HttpReader::Header(std::string_view name) const {
  for (const auto& [key, value] : headers_) {
    if (EqualsIgnoreCaseAscii(key, name)) return value;
  }
  return {};
}

Result<bool> HttpReader::Line(std::string_view* line) {
  const size_t end = input_.find('\n', begin_);
  if (end == std::string::npos) {
    if (input_.size() - begin_ > kMaxLine) {
      return Unavailable("the answer has a line of more than " + std::to_string(kMaxLine) +
                         " bytes where HTTP has a short one");
    }
    return false;
  }
  *line = std::string_view(input_).substr(begin_, end - begin_);
  if (line->ends_with('\r')) line->remove_suffix(1);
  begin_ = end + 1;
  return true;
}

Result<bool> HttpReader::HeadLine(std::string_view* line) {
  AISP_ASSIGN_OR_RETURN(const bool whole, Line(line));
  if (!whole) return false;
  head_bytes_ += line->size() + 2;
  if (head_bytes_ > kMaxHead) {
    return Unavailable("the answer has more than " + std::to_string(kMaxHead) +
                       " bytes of heads and trailers");
  }
  return true;
}

Status HttpReader::ReadHeadLine(std::string_view line) {
  if (!in_headers_) {
    if (!line.starts_with("HTTP/1.") || line.size() < 12) {
      return Unavailable("the answer is not HTTP/1.1: " + Excerpt(line));
    }
    const auto status = ParseIntInRange(line.substr(9, 3), 100, 999);
    if (!status) return Unavailable("the answer has no status: " + Excerpt(line));
    status_ = static_cast<int>(*status);
    keep_alive_ = line[7] != '0';
    in_headers_ = true;
    return {};
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || headers_.size() >= kMaxHeaders) {
    return Unavailable("the answer has a broken head: " + Excerpt(line));
  }
  headers_.emplace_back(line.substr(0, colon), Trim(line.substr(colon + 1)));
  return {};
}

Status HttpReader::FrameBody() {
  const std::string_view connection = Header("Connection");
  if (EqualsIgnoreCaseAscii(connection, "close")) keep_alive_ = false;
  if (EqualsIgnoreCaseAscii(connection, "keep-alive")) keep_alive_ = true;
  if (status_ == 204 || status_ == 304) {
    state_ = State::kDone;
  } else if (ToLowerAscii(Header("Transfer-Encoding")).ends_with("chunked")) {
    state_ = State::kChunkSize;
  } else if (const auto length = Header("Content-Length"); !length.empty()) {
    const auto bytes = ParseIntInRange(length, 0, INT64_MAX);
    if (!bytes) return Unavailable("the answer has a broken Content-Length: " + Excerpt(length));
    left_ = static_cast<size_t>(*bytes);
    state_ = left_ > 0 ? State::kLength : State::kDone;
  } else {
    state_ = State::kUntilClose;
    keep_alive_ = false;
  }
  return {};
}

Result<HttpReader::Item> HttpReader::ReadHead() {
  for (;;) {
    std::string_view line;
    AISP_ASSIGN_OR_RETURN(const bool whole, HeadLine(&line));
    if (!whole) return Item{};
    if (!line.empty()) {
      AISP_RETURN_IF_ERROR(ReadHeadLine(line));
      continue;
    }
    if (!in_headers_) continue;  // an empty line before the answer is tolerated
    if (status_ < 200) {
      BeginHead();
      continue;
    }
    AISP_RETURN_IF_ERROR(FrameBody());
    return Item{Kind::kHead, {}};
  }
}

HttpReader::Item HttpReader::TakeBody(size_t limit) {
  const size_t bytes = std::min(limit, input_.size() - begin_);
  const Item item{Kind::kBody, std::string_view(input_).substr(begin_, bytes)};
  begin_ += bytes;
  return item;
}

Result<HttpReader::Item> HttpReader::Next() {
  for (;;) {
    std::string_view line;
    switch (state_) {
      case State::kHead:
        return ReadHead();
      case State::kDone:
        return Item{Kind::kEnd, {}};
      case State::kUntilClose:
        return begin_ == input_.size() ? Item{} : TakeBody(std::string::npos);
      case State::kLength:
      case State::kChunkData: {
        if (begin_ == input_.size()) return Item{};
        const Item item = TakeBody(left_);
        left_ -= item.body.size();
        if (left_ == 0) state_ = state_ == State::kLength ? State::kDone : State::kChunkEnd;
        return item;
      }
      case State::kChunkSize: {
        AISP_ASSIGN_OR_RETURN(const bool whole, Line(&line));
        if (!whole) return Item{};
        const auto parsed = std::from_chars(line.data(), line.data() + line.size(), left_, 16);
        if (parsed.ec != std::errc()) return Unavailable("a broken chunk: " + Excerpt(line));
        state_ = left_ > 0 ? State::kChunkData : State::kTrailer;
        break;
      }
      case State::kChunkEnd: {
        AISP_ASSIGN_OR_RETURN(const bool whole, Line(&line));
        if (!whole) return Item{};
        if (!line.empty()) return Unavailable("a chunk longer than it said: " + Excerpt(line));
        state_ = State::kChunkSize;
        break;
      }
      case State::kTrailer: {
        AISP_ASSIGN_OR_RETURN(const bool whole, HeadLine(&line));
        if (!whole) return Item{};
        if (line.empty()) state_ = State::kDone;
        break;
      }
    }
  }
}

Result<HttpReader::Item> HttpReader::AtEof() {
  if (state_ == State::kUntilClose || state_ == State::kDone) return Item{Kind::kEnd, {}};
  if (state_ == State::kHead)
    return Unavailable("the server closed the connection without an answer");
  return Unavailable("the server closed the connection in the middle of its answer");
}

}  // namespace aisp
