#include "net/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <mutex>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/log.h"

namespace aisp {
namespace {

constexpr Duration kPeriod = std::chrono::seconds(10);
constexpr Duration kBeforeAbort = std::chrono::seconds(1);
// The libraries may quote long texts of a peer.
constexpr size_t kMaxTextBytes = 512;

// Rate-limited log of one library, for any thread.
class Teller {
 public:
  explicit Teller(const char* event) : event_(event) {}
  void Say(std::string_view text, std::string_view file, int line) {
    const size_t slash = file.rfind('/');
    const std::string where =
        std::string(file.substr(slash == std::string_view::npos ? 0 : slash + 1)) + ":" +
        std::to_string(line);
    const std::lock_guard lock(mutex_);
    throttle_.Log(clock_.Now(), LogLevel::kWarning, event_,
                  {{"text", text.substr(0, kMaxTextBytes)}, {"at", where}});
  }

 private:
  const char* const event_;
  const SteadyClock clock_;
  std::mutex mutex_;
  LogThrottle throttle_{kPeriod};
};

// Never destroyed: the libraries' threads outlive main.
Teller& OfGrpc() {
  static Teller& teller = *new Teller("gRPC says");
  return teller;
}
Teller& OfProtobuf() {
  static Teller& teller = *new Teller("Protobuf says");
  return teller;
}

// gRPC logs before it aborts.
void OnGrpc(gpr_log_func_args* args) { OfGrpc().Say(args->message, args->file, args->line); }

void OnProtobuf(google::protobuf::LogLevel level, const char* file, int line,
                const std::string& text) {
  if (level >= google::protobuf::LOGLEVEL_FATAL) {
    LogError("Protobuf fails", {{"text", text}, {"at", file}, {"line", line}});
    FlushLog(kBeforeAbort);
    return;
  }
  if (level >= google::protobuf::LOGLEVEL_WARNING) OfProtobuf().Say(text, file, line);
}

}  // namespace

void TakeLibraryLogs() {
  gpr_set_log_function(OnGrpc);
  google::protobuf::SetLogHandler(OnProtobuf);
}

}  // namespace aisp
