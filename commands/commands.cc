#include "commands/commands.h"
#include "common/version.h"

#include <cstdio>

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
