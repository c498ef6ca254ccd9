#include "commands/commands.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/version.h"
#include "config/command_line.h"

namespace aisp {

int ReportUsageError(std::string_view command, std::string_view message) {
  std::fprintf(stderr, "aisp%s%.*s: %.*s\n", command.empty() ? "" : " ",
               static_cast<int>(command.size()), command.data(), static_cast<int>(message.size()),
               message.data());
  return 2;
}

int ReportUnexpectedArgument(std::string_view command, const std::string& argument) {
  return ReportUsageError(command, "unexpected argument '" + argument +
                                       "'; settings are flags, as --port 8000, and switches take "
                                       "their value behind '=', as --prefix-cache=false");
}

int ReportFailure(std::string_view message) {
  std::fprintf(stderr, "aisp: %.*s\n", static_cast<int>(message.size()), message.data());
  return 1;
}

int FinishOutput(int code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0) return code;
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return code;
  std::fprintf(stderr, "aisp: the output could not be written whole%s%s\n", reason != 0 ? ": " : "",
               reason != 0 ? std::strerror(reason) : "");
  return code != 0 ? code : 1;
}

bool AnswerCommonFlags(const CommandLine& line, const std::string& help) {
  if (line.help) {
    std::fputs(help.c_str(), stdout);
  } else if (line.version) {
    std::printf("aisp %.*s\n", static_cast<int>(Version().size()), Version().data());
  } else if (line.print_config) {
    std::fputs(PrintConfig(line.config).c_str(), stdout);
  } else {
    return false;
  }
  return true;
}

}  // namespace aisp
