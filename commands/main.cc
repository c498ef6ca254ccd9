// The program: runs a command from the command's own file. When called as aisp-loadgen (a link), it
// is the load tester.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "commands/commands.h"
#include "loadgen/run.h"
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
  aisp doctor                  what on this machine would keep a server from running, and what to do
  aisp generate "PROMPT"       one answer on the terminal, no server
  aisp pull org/name[@rev]     downloads a model from the Hugging Face hub into its cache
  aisp info [MODEL]            shape of a checkpoint, KV bytes per token, largest context that fits
  aisp constrain --schema FILE which of a JSON Schema can be enforced, and whether instances are allowed token by token
  aisp simulate --workers SPEC capacity planning without a GPU: the real router over simulated workers
  aisp bench limits|engine|kv  what this machine can do, and how near engine and KV lanes come
  aisp loadgen                 load and latency of a server; the same as aisp-loadgen

  aisp COMMAND --help          the flags of a command
  aisp --print-config          every setting with its default and meaning, as YAML
  aisp --version
)";

struct Command {
  const char* name;
  int (*run)(const std::vector<std::string>& args);
  bool reads_signals;  // through StopSignals; the others end at once on SIGINT and SIGTERM
};

constexpr Command kCommands[] = {
    {"up", aisp::RunUp, true},
    {"serve", aisp::RunServe, true},
    {"generate", aisp::RunGenerate, true},
    {"pull", aisp::RunPull, true},
    {"drain", aisp::RunDrain, false},
    {"role", aisp::RunRole, false},
    {"planner", aisp::RunPlanner, true},
    {"top", aisp::RunTop, true},
    {"status", aisp::RunStatus, false},
    {"trace", aisp::RunTrace, false},
    {"doctor", aisp::RunDoctor, false},
    {"info", aisp::RunInfo, false},
    {"bench", aisp::RunBench, false},
    {"simulate", aisp::RunSimulate, false},
    {"constrain", aisp::RunConstrain, false},
    {"loadgen", aisp::loadgen::RunLoadgen, true},
};

int Run(const Command& command, const std::vector<std::string>& args) {
  if (command.reads_signals) aisp::BlockSignals();
  try {
    return command.run(args);
  } catch (const nlohmann::json::exception& e) {
    // Thrown only for a field that is missing in another process's answer.
    return aisp::ReportFailure(
        std::string("the answer is otherwise than this version understands: ") + e.what());
  }
}

std::string Names() {
  std::string names;
  for (const Command& command : kCommands)
    names += std::string(names.empty() ? "" : ", ") + command.name;
  return names;
}

int RunProgram(const std::vector<std::string>& args) {
  if (args.empty()) {
    std::fputs(kHelp, stderr);
    return 2;
  }
  const std::string& name = args[0];
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  // `aisp --version` and `aisp --print-config` are handled by serve.
  if (name.starts_with("--")) return Run({"serve", aisp::RunServe, true}, args);
  const auto* const command = std::find_if(std::begin(kCommands), std::end(kCommands),
                                           [&](const Command& c) { return name == c.name; });
  if (command == std::end(kCommands)) {
    return aisp::ReportUsageError("", "unknown command '" + name + "'; known: " + Names() +
                                          "; `aisp --help` says what each does");
  }
  return Run(*command, {args.begin() + 1, args.end()});
}

// The command's arguments. For the load tester the program's name is the command.
std::vector<std::string> Arguments(int argc, char** argv) {
  std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  std::string_view program = argc > 0 ? argv[0] : "";
  program.remove_prefix(program.rfind('/') + 1);  // npos + 1 is 0
  if (program == "aisp-loadgen") args.insert(args.begin(), "loadgen");
  return args;
}

}  // namespace

int main(int argc, char** argv) {
  aisp::IgnoreBrokenPipes();
  return aisp::FinishOutput(RunProgram(Arguments(argc, argv)));
}
