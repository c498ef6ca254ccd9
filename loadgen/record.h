// The record of one request: written by the driver, read by metrics and reports. Plain data. Times
// are seconds since the start of the run, on one monotonic clock.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aisp::loadgen {

// kNotSent: the run was interrupted before.
enum class RequestStatus { kPending, kCompleted, kFailed, kCancelled, kNotSent };

// Numbers that the server returned for a request, by name; "a.b" for nested objects.
using ServerValues = std::vector<std::pair<std::string, double>>;

struct RequestRecord {
  RequestStatus status = RequestStatus::kPending;
  std::string reason;  // of a failure or cancellation
  int http_status = 0;
  std::string finish_reason;

  int64_t conversation = -1;  // -1: none
  int64_t turn = 0;

  double intended_s = 0;       // when it should have been sent
  double sent_s = -1;          // when the last attempt was sent; -1: never
  double first_s = -1;         // first chunk with output
  double last_s = -1;          // last chunk with output, or the finish reason
  double end_s = -1;           // when the status became terminal
  std::vector<float> gaps_ms;  // between the chunks with output

  int64_t asked_input_tokens = -1;  // -1: unknown (a text)
  int64_t asked_output_tokens = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;
  bool tokens_from_usage = false;
  int64_t chunks = 0;

  int retries = 0;                 // after refused connections and 503s
  int resent = 0;                  // on a new connection, since the kept-alive one was closed
  std::string route;               // x-aisp-route
  ServerValues server;             // usage.aisp
  std::vector<std::string> texts;  // per choice, if texts are kept

  double ttft_ms(bool from_sent) const {
    return 1e3 * (first_s - (from_sent ? sent_s : intended_s));
  }
  double e2el_ms(bool from_sent) const {
    return 1e3 * (last_s - (from_sent ? sent_s : intended_s));
  }
  // Per output token after the first; 0 if there is none.
  double tpot_ms() const {
    return output_tokens > 1 ? 1e3 * (last_s - first_s) / static_cast<double>(output_tokens - 1)
                             : 0;
  }
};

}  // namespace aisp::loadgen
