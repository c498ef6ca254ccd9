// `aisp top`, `aisp status` and `aisp trace`: show a running router in a terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "commands/admin_client.h"
#include "commands/commands.h"
#include "commands/live_terminal.h"
#include "commands/status_text.h"
#include "common/clock.h"
#include "common/strings.h"
#include "config/command_line.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 2> kAskFlags = {{kRouterFlag, kKeyFileFlag}};
constexpr std::array<ExtraFlag, 4> kTopFlags = {{
    kRouterFlag,
    kKeyFileFlag,
    {"--interval", "MS", "Time between two looks (default 1000)."},
    {"--count", "N", "End after so many looks (default: until Ctrl-C)."},
}};

std::string Help(std::string_view about, std::span<const ExtraFlag> flags) {
  return std::string(about) + HelpForSettings(std::span<const std::string_view>(), flags);
}

std::string Encoded(std::string_view id) {
  std::string out;
  for (const char c : id) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_' || c == '.';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

constexpr int64_t kShortestMs = 50, kLongestMs = 3'600'000;
// Short, so that a hanging router does not block the keys.
constexpr Duration kPatience = std::chrono::seconds(2);

// Runs `aisp top` until it is ended.
class Watch {
 public:
  Watch(AdminClient client, int64_t interval_ms)
      : client_(std::move(client)), interval_ms_(interval_ms) {
    client_.set_timeout(kPatience);
  }

  // Returns the exit code. `looks` 0: unlimited.
  int Run(int64_t looks) {
    {
      LiveTerminal terminal;
      for (int64_t look = 0; looks == 0 || look < looks; ++look) {
        if (look > 0 && !Pause(terminal)) break;
        Look();
        // Give up if the router is absent or refuses at the first look.
        if (look == 0 && !trouble_.empty()) break;
        if (look > 0 && !terminal.live() && !terminal.Show("\n")) break;
        if (!terminal.Show(Text(terminal))) break;
      }
    }
    return trouble_.empty() ? 0 : ReportFailure(trouble_);
  }

 private:
  void Look() {
    auto overview = client_.Get("/admin/overview");
    trouble_ = overview ? "" : overview.error().message;
    if (overview) overview_ = std::move(*overview);
  }

  std::string Text(const LiveTerminal& terminal) const {
    std::string text = trouble_.empty()
                           ? OverviewText(overview_, TerminalColumns(), terminal.live())
                           : fmt::format("{}: {}\n", client_.address(), trouble_);
    if (!terminal.live()) return text;
    const std::string pace = paused_ ? "paused" : fmt::format("every {} ms", interval_ms_);
    const std::string keys = "q quits, space pauses, + and - change the pace: " + pace;
    return text + "\n" + keys.substr(0, TerminalColumns()) + "\n";
  }

  // Waits for the next look and redraws after a key or resize. False: quit.
  bool Pause(LiveTerminal& terminal) {
    auto due = clock_.Now() + std::chrono::milliseconds(interval_ms_);
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - clock_.Now()).count();
      if (!paused_ && left <= 0) return true;
      char key = 0;
      switch (terminal.Wait(paused_ ? -1 : static_cast<int>(left), &key)) {
        case LiveEvent::kQuit:
          return false;
        case LiveEvent::kTimeout:
          continue;
        case LiveEvent::kKey:
          OnKey(key);
          due = clock_.Now() + std::chrono::milliseconds(interval_ms_);
          break;
        case LiveEvent::kResized:
          break;
      }
      if (!terminal.Show(Text(terminal))) return false;
    }
  }

  void OnKey(char key) {
    if (key == ' ') paused_ = !paused_;
    if (key == '+') interval_ms_ = std::max(kShortestMs, interval_ms_ / 2);
    if (key == '-') interval_ms_ = std::min(kLongestMs, interval_ms_ * 2);
  }

  const SteadyClock clock_;
  AdminClient client_;
  int64_t interval_ms_;
  bool paused_ = false;
  nlohmann::json overview_;
  std::string trouble_;
};

}  // namespace

int RunTop(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kTopFlags);
  if (!line) return ReportUsageError("top", line.error().message);
  const std::string help = Help(
      "aisp top [flags]\n\nWorkers, queues, KV and latency of a running router, looked at "
      "again every second; plain text\none after the other where the output is no terminal. "
      "q or Ctrl-C ends it, the space bar pauses,\n+ and - change the pace.\n\n",
      kTopFlags);
  if (AnswerCommonFlags(*line, help)) return 0;
  if (!line->positional.empty()) return ReportUnexpectedArgument("top", line->positional[0]);
  const auto interval = line->ExtraInt("interval", 1000, kShortestMs, kLongestMs);
  if (!interval) return ReportUsageError("top", interval.error().message);
  const auto count = line->ExtraInt("count", 0, 0, 1 << 30);
  if (!count) return ReportUsageError("top", count.error().message);
  const auto client = AdminClient::FromFlags(*line);
  if (!client) return ReportUsageError("top", client.error().message);
  return Watch(*client, *interval).Run(*count);
}

int RunStatus(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kAskFlags);
  if (!line) return ReportUsageError("status", line.error().message);
  const std::string help = Help(
      "aisp status [flags]\n\nWorkers, queues, KV and latency of a running router, once. Exit "
      "code 0: it is ready,\n1: it is not, or nobody answers.\n\n",
      kAskFlags);
  if (AnswerCommonFlags(*line, help)) return 0;
  if (!line->positional.empty()) return ReportUnexpectedArgument("status", line->positional[0]);
  const auto client = AdminClient::FromFlags(*line);
  if (!client) return ReportUsageError("status", client.error().message);
  const auto overview = client->Get("/admin/overview");
  if (!overview) return ReportFailure(overview.error().message);
  const bool color = isatty(STDOUT_FILENO) != 0;
  std::fputs(OverviewText(*overview, TerminalColumns(), color).c_str(), stdout);
  return overview->value("ready", false) ? 0 : 1;
}

int RunTrace(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kAskFlags);
  if (!line) return ReportUsageError("trace", line.error().message);
  const std::string help = Help(
      "aisp trace [REQUEST_ID] [flags]\n\nPrints one request's life: where its time went, in every "
      "process that had a part in it. REQUEST_ID\nis the x-request-id of its answer and the "
      "request= of log lines; a trace id works too. Without one:\nthe last requests. A router "
      "keeps its last trace.buffer requests.\n\n",
      kAskFlags);
  if (AnswerCommonFlags(*line, help)) return 0;
  if (line->positional.size() > 1) return ReportUnexpectedArgument("trace", line->positional[1]);
  const auto client = AdminClient::FromFlags(*line);
  if (!client) return ReportUsageError("trace", client.error().message);
  const bool list = line->positional.empty();
  const auto answer =
      client->Get(list ? "/admin/trace" : "/admin/trace/" + Encoded(line->positional[0]));
  if (!answer) return ReportFailure(answer.error().message);
  std::fputs((list ? TraceListText(*answer) : TraceText(*answer, TerminalColumns())).c_str(),
             stdout);
  return 0;
}

}  // namespace aisp
