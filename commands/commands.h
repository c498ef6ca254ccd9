// The commands of the program `aisp`. Each gets its arguments without the program's and the
// command's name and returns the exit code: 0, 1 for a reported failure, 2 for a wrong command
// line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace aisp {

struct CommandLine;

int RunServe(const std::vector<std::string>& args);
int RunUp(const std::vector<std::string>& args);
int RunGenerate(const std::vector<std::string>& args);
int RunPull(const std::vector<std::string>& args);
int RunInfo(const std::vector<std::string>& args);
int RunBench(const std::vector<std::string>& args);
int RunSimulate(const std::vector<std::string>& args);
int RunConstrain(const std::vector<std::string>& args);
int RunDrain(const std::vector<std::string>& args);
int RunRole(const std::vector<std::string>& args);
int RunPlanner(const std::vector<std::string>& args);
int RunTop(const std::vector<std::string>& args);
int RunStatus(const std::vector<std::string>& args);
int RunTrace(const std::vector<std::string>& args);
int RunDoctor(const std::vector<std::string>& args);

// Prints the error of a command to stderr and returns its exit code.
int ReportUsageError(std::string_view command, std::string_view message);
// The same for a positional argument of a command that takes only flags.
int ReportUnexpectedArgument(std::string_view command, const std::string& argument);
int ReportFailure(std::string_view message);

// The exit code for a command that returned `code`: at least 1, with a line on stderr, if its
// output could not be written (a full disk). A closed pipe (`| head`) is no failure.
int FinishOutput(int code);

// Handles --help, --version and --print-config; true when the command is done.
bool AnswerCommonFlags(const CommandLine& line, const std::string& help);

}  // namespace aisp
