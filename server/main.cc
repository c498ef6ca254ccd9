// The program: picks a command. Everything else is in the command's own file.
#include <cstdio>
#include <string>
#include <vector>

#include "server/commands.h"
#include "server/process.h"

namespace {

constexpr const char* kHelp = R"(aisp: a disaggregated LLM inference server

  aisp up                      router, prefill and decode workers as separate processes on this machine
  aisp serve [--role ROLE]     one process: all (default), router, prefill or decode
  aisp drain WORKER_ID...      take workers out of service without a failed request
  aisp generate "PROMPT"       one answer on the terminal, no server
  aisp info [MODEL]            shape of a checkpoint, KV bytes per token, largest context that fits
  aisp bench limits|engine     what this machine can do, and how near the engine comes

  aisp COMMAND --help          the flags of a command
  aisp --print-config          every setting with its default and meaning, as YAML
  aisp --version
)";

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  aisp::BlockSignals();
  if (args.empty()) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  const std::string& command = args[0];
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  if (command == "serve") return aisp::RunServe(rest);
  if (command == "up") return aisp::RunUp(rest);
  if (command == "drain") return aisp::RunDrain(rest);
  if (command == "generate") return aisp::RunGenerate(rest);
  if (command == "info") return aisp::RunInfo(rest);
  if (command == "bench") return aisp::RunBench(rest);
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  // `aisp --version` and `aisp --print-config` are those of serve.
  if (command.starts_with("--")) return aisp::RunServe(args);
  return aisp::ReportUsageError(
      "", "unknown command '" + command + "'; known: up, serve, generate, drain, info, bench");
}
