#include "hub/attempts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr int kMostInARow = 5;
constexpr int kMostInAll = 200;
constexpr int64_t kLongestWaitMs = 8000;
constexpr int64_t kLongestRetryAfterS = 60;

bool IsTransient(Code code) {
  return code == Code::kUnavailable || code == Code::kDeadlineExceeded;
}

std::string TokenAdvice(const HubOptions& options) {
  return options.token.empty()
             ? "no token was sent: set HF_TOKEN"
             : "the token (HF_TOKEN or HF_HOME/token) does not allow it, or has expired";
}

}  // namespace

void StopSign::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

Status StopSign::Wait(int64_t ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return stopped(); });
  if (stopped()) return Fail(Code::kCancelled, "stopped");
  return {};
}

Status Attempts::Next(const Error& error, bool progressed, int64_t retry_after_s) {
  if (!IsTransient(error.code)) return tl::unexpected(error);
  if (progressed) in_a_row_ = 0;
  ++in_a_row_;
  ++total_;
  if (in_a_row_ >= kMostInARow || total_ >= kMostInAll) {
    return Fail(error.code, fmt::format("{} (tried {} times); what has come is kept, and the next "
                                        "try goes on from there",
                                        error.message, total_));
  }
  const int64_t backoff =
      std::min(kLongestWaitMs, static_cast<int64_t>(options_.backoff_ms) << (in_a_row_ - 1));
  return stop_->Wait(std::max(backoff, 1000 * std::min(retry_after_s, kLongestRetryAfterS)));
}

Error ErrorOf(const HubReply& reply, const std::string& what, const HubOptions& options) {
  const std::string why = reply.Header("x-error-code");
  const std::string said = reply.Header("x-error-message");
  std::string text = fmt::format("{}: {} answers {}", what, options.endpoint, reply.status);
  if (!why.empty()) text += " " + Excerpt(why, 40);
  if (!said.empty()) text += " (" + Excerpt(said, 200) + ")";
  switch (reply.status) {
    case 401:
      return {
          Code::kUnauthenticated,
          text + "; there is no such model, or it is private or gated: " + TokenAdvice(options)};
    case 403:
      return {Code::kPermissionDenied,
              text + "; a gated model's terms have to be accepted on its page first; " +
                  TokenAdvice(options)};
    case 404:
      if (why == "RevisionNotFound")
        text += "; the model has no such branch, tag or commit";
      else if (why != "EntryNotFound")
        text += "; there is no such model, revision or file (a private model needs HF_TOKEN)";
      return {Code::kNotFound, text};
    default: {
      const bool busy = reply.status == 408 || reply.status == 429 || reply.status >= 500;
      return {busy ? Code::kUnavailable : Code::kFailedPrecondition, text};
    }
  }
}

int64_t RetryAfter(const HubReply& reply) {
  const auto seconds = ParseIntInRange(reply.Header("retry-after"), 0, 1 << 20);
  return seconds ? *seconds : 0;
}

}  // namespace aisp
