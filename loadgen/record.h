// What is known about one request: filled in by the driver, read by metrics and reports. Plain
// data. Times are seconds since the start of the run, on one monotonic clock.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aisp::loadgen {

// kNotSent: the run was interrupted before its turn.
enum class RequestStatus { kPending, kCompleted, kFailed, kCancelled, kNotSent };

// Numbers that the server said about one request, by name; "a.b" for a number within an object.
using ServerValues = std::vector<std::pair<std::string, double>>;

struct RequestRecord {
  RequestStatus status = RequestStatus::kPending;
  std::string reason;  // of a failure or of a cancel
  int http_status = 0;
  std::string finish_reason;

  int64_t conversation = -1;  // -1: none
  int64_t turn = 0;

  double intended_s = 0;       // when it should have been sent
  double sent_s = -1;          // when it was, the last attempt; -1: never
  double first_s = -1;         // first chunk with output
  double last_s = -1;          // last chunk with output, or the finish reason
  double end_s = -1;           // terminal
  std::vector<float> gaps_ms;  // between the chunks with output

  int64_t asked_input_tokens = -1;  // -1: not known, a text
  int64_t asked_output_tokens = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;
  bool tokens_from_usage = false;
  int64_t chunks = 0;

  int retries = 0;                 // refused connections and 503s tried again
  int resent = 0;                  // on a new connection, since a kept-alive one was gone
  std::string route;               // x-aisp-route
  ServerValues server;             // usage.aisp
  std::vector<std::string> texts;  // of each choice, when texts are kept

  double ttft_ms(bool from_sent) const {
    return 1e3 * (first_s - (from_sent ? sent_s : intended_s));
  }
  double e2el_ms(bool from_sent) const {
    return 1e3 * (last_s - (from_sent ? sent_s : intended_s));
  }
  // Per output token after the first; 0 when there is none.
  double tpot_ms() const {
    return output_tokens > 1 ? 1e3 * (last_s - first_s) / static_cast<double>(output_tokens - 1)
                             : 0;
  }
};

}  // namespace aisp::loadgen
