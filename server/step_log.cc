#include "server/step_log.h"

#include <fmt/format.h>

#include <cctype>
#include <cerrno>
#include <system_error>
#include <utility>

namespace aisp {

Result<std::unique_ptr<StepLog>> StepLog::Open(const std::string& folder,
                                               const std::string& worker) {
  std::string name = worker;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
  }
  const std::string path = fmt::format("{}/{}.csv", folder, name);
  File file(std::fopen(path.c_str(), "we"));
  if (file == nullptr) {
    return NotFound(
        fmt::format("worker.step_log: {}: {}", path, std::generic_category().message(errno)));
  }
  return std::unique_ptr<StepLog>(new StepLog(std::move(file)));
}

StepLog::StepLog(File file) : file_(std::move(file)) {
  std::fputs(
      "end_ms,device_ms,launch_to_end_ms,prompt_tokens,prompt_positions,rows,row_positions\n",
      file_.get());
}

void StepLog::OnStep(const StepTiming& t, Instant end) {
  const std::string line = fmt::format("{:.3f},{:.4f},{:.4f},{},{},{},{}\n", ToMs(end - Instant{0}),
                                       ToMs(t.device), ToMs(t.duration), t.prefill_tokens,
                                       t.prefill_context, t.decode_rows, t.decode_context);
  std::fputs(line.c_str(), file_.get());
}

}  // namespace aisp
