// The program: picks a command. Everything else is in the command's own file.
#include <cstdio>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "server/process.h"

namespace {

constexpr const char* kHelp = R"(aisp: a disaggregated LLM inference server

  aisp up                      router, prefill and decode workers as separate processes on this machine
  aisp serve [--role ROLE]     one process: all (default), router, prefill or decode
  aisp drain WORKER_ID...      take workers out of service without a failed request
  aisp role WORKER_ID ROLE     a running worker becomes prefill, decode or parked, its weights stay loaded
  aisp planner                 moves workers between the roles as the load changes
  aisp top | status            workers, queues, KV and latency of a running router, live or once
  aisp trace [REQUEST_ID]      where the time of one request went
  aisp doctor                  what of this machine stands in the way of serving, and what to do
  aisp generate "PROMPT"       one answer on the terminal, no server
  aisp pull org/name[@rev]     downloads a model from the Hugging Face hub into its cache
  aisp info [MODEL]            shape of a checkpoint, KV bytes per token, largest context that fits
  aisp constrain --schema FILE which of a JSON Schema can be enforced, and whether instances are allowed token by token
  aisp simulate --workers SPEC what so many workers would serve in time, without any: the router in simulated time
  aisp bench limits|engine|kv  what this machine can do, and how near engine and KV lanes come

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
  if (command == "role") return aisp::RunRole(rest);
  if (command == "planner") return aisp::RunPlanner(rest);
  if (command == "top") return aisp::RunTop(rest);
  if (command == "status") return aisp::RunStatus(rest);
  if (command == "trace") return aisp::RunTrace(rest);
  if (command == "doctor") return aisp::RunDoctor(rest);
  if (command == "generate") return aisp::RunGenerate(rest);
  if (command == "pull") return aisp::RunPull(rest);
  if (command == "info") return aisp::RunInfo(rest);
  if (command == "bench") return aisp::RunBench(rest);
  if (command == "constrain") return aisp::RunConstrain(rest);
  if (command == "simulate") return aisp::RunSimulate(rest);
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  // `aisp --version` and `aisp --print-config` are those of serve.
  if (command.starts_with("--")) return aisp::RunServe(args);
  return aisp::ReportUsageError("", "unknown command '" + command +
                                        "'; known: up, serve, generate, pull, drain, role, "
                                        "planner, top, status, trace, doctor, info, bench, "
                                        "simulate, constrain; `aisp --help` says what each does");
}
