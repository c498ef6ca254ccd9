// `aisp generate "PROMPT"`: prints one answer from an engine in this process; no router, no
// sockets.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <functional>
#include <optional>
#include <random>

#include "commands/commands.h"
#include "common/log.h"
#include "common/strings.h"
#include "config/command_line.h"
#include "server/backend.h"
#include "server/model_source.h"
#include "server/process.h"
#include "text/detokenizer.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 6> kExtras = {{
    {"--max-tokens", "N", "Tokens to generate at most; without it, what is left of the context."},
    {"--temperature", "T", "0 (greedy) to 2; without it, the model's own (1)."},
    {"--seed", "N", "The same seed gives the same answer; without it, a new one every time."},
    {"--raw", "", "Continue the prompt as plain text, without the chat template."},
    {"--token-ids", "", "The prompt is token ids, \"1,5,9\", and so is the answer."},
    {"--stats", "", "Print TTFT, TPOT and token counts to stderr at the end."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 2> kPrefixes = {"model.", "engine."};
  return "aisp generate \"PROMPT\" [flags]\n\n" + HelpForSettings(kPrefixes, kExtras);
}

Result<std::vector<TokenId>> ParseIds(const ServedModel& model, std::string_view text) {
  std::vector<TokenId> ids;
  for (const std::string_view part : Split(text, ',')) {
    AISP_ASSIGN_OR_RETURN(const int64_t id,
                          ParseIntInRange(Trim(part), 0, model.spec.vocabulary - 1));
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

Result<std::vector<TokenId>> TokensOf(const ServedModel& model, const std::string& prompt,
                                      bool raw) {
  if (!model.tokenizer) {
    return InvalidArgument(
        fmt::format("{} has no tokenizer; give the prompt as --token-ids", model.path));
  }
  if (raw || !model.chat_template) return model.tokenizer->Encode(prompt);
  ChatRequest chat;
  Value::Map message{{"role", Value("user")}, {"content", Value(prompt)}};
  chat.messages = Value(Value::List{Value(std::move(message))});
  auto tokens = model.RenderChat(chat);
  if (!tokens) return Fail(tokens.error().code, tokens.error().message);
  return std::move(*tokens);
}

Result<SequenceRequest> RequestOf(const CommandLine& line, const ServedModel& model) {
  SequenceRequest r;
  const std::string& prompt = line.positional[0];
  AISP_ASSIGN_OR_RETURN(r.tokens, line.HasExtra("token-ids")
                                      ? ParseIds(model, prompt)
                                      : TokensOf(model, prompt, line.HasExtra("raw")));
  r.prompt_tokens = static_cast<int32_t>(r.tokens.size());
  const auto& defaults = model.limits.sampling_defaults;
  r.sampling.temperature = defaults.temperature.value_or(1.0f);
  r.sampling.top_p = defaults.top_p.value_or(1.0f);
  r.sampling.top_k = defaults.top_k.value_or(0);
  r.sampling.min_p = defaults.min_p.value_or(0.0f);
  AISP_ASSIGN_OR_RETURN(const double temperature,
                        line.ExtraNumber("temperature", r.sampling.temperature, 0, 2));
  r.sampling.temperature = static_cast<float>(temperature);
  std::random_device device;
  const uint64_t drawn = (uint64_t{device()} << 32) | device();
  AISP_ASSIGN_OR_RETURN(const int64_t seed,
                        line.ExtraInt("seed", static_cast<int64_t>(drawn), INT64_MIN, INT64_MAX));
  r.sampling.seed = static_cast<uint64_t>(seed);
  const int64_t left = std::max(1, model.max_model_len - r.prompt_tokens);
  AISP_ASSIGN_OR_RETURN(const int64_t most, line.ExtraInt("max-tokens", left, 1, left));
  r.max_new_tokens = static_cast<int32_t>(most);
  r.stop_token_ids = model.eos;
  return r;
}

// Prints the answer as it arrives: text, or token ids separated by spaces.
class Printer {
 public:
  Printer(const ServedModel& model, bool ids) {
    if (!ids) detokenizer_.emplace(*model.tokenizer, /*skip_special=*/true);
  }
  void Print(TokenId token) {
    std::fputs(detokenizer_ ? detokenizer_->Push(token).c_str() : fmt::format("{} ", token).c_str(),
               stdout);
    std::fflush(stdout);
  }
  // Flushed, since statistics may follow on stderr.
  void End() {
    fmt::print("{}\n", detokenizer_ ? detokenizer_->Flush() : "");
    std::fflush(stdout);
  }

 private:
  std::optional<Detokenizer> detokenizer_;
};

void PrintStats(const SequenceTimes& times, Instant end, int32_t prompt_tokens, int32_t tokens) {
  const double ttft = ToMs(times.first_token - times.added);
  const double tpot = tokens > 1 ? ToMs(end - times.first_token) / (tokens - 1) : 0;
  fmt::print(stderr, "\n{} prompt tokens, {} generated; TTFT {:.1f} ms, TPOT {:.2f} ms\n",
             prompt_tokens, tokens, ttft, tpot);
}

Status Generate(const CommandLine& line, const std::function<bool()>& stop) {
  AISP_ASSIGN_OR_RETURN(const std::unique_ptr<ServedModel> model, LoadServedModel(line.config));
  AISP_ASSIGN_OR_RETURN(SequenceRequest request, RequestOf(line, *model));
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(line.config, *model));
  const SteadyClock clock;
  Engine engine(EngineOptionsOf(line.config, model->fingerprint), backend.executor.get(), &clock,
                nullptr);
  const int32_t prompt_tokens = request.prompt_tokens;
  AISP_ASSIGN_OR_RETURN(const SequenceId id, engine.Add(std::move(request)));
  Printer printer(*model, line.HasExtra("token-ids"));
  SequenceTimes times;
  int32_t tokens = 0;
  for (bool ended = false; !ended && !stop();) {
    AISP_RETURN_IF_ERROR(engine.Launch());
    if (!engine.InFlight())
      return Internal("the engine has nothing to do, but the answer has not ended");
    const CollectOutput out = engine.Collect();
    times = engine.Times(id);
    for (const TokenOutput& token : out.tokens) {
      if (token.finish == FinishReason::kError) return tl::unexpected(token.error);
      if (token.token >= 0) {
        ++tokens;
        printer.Print(token.token);
      }
      ended = token.finish != FinishReason::kNone;
    }
  }
  printer.End();
  if (line.HasExtra("stats")) PrintStats(times, clock.Now(), prompt_tokens, tokens);
  return {};
}

// Checks that need no model.
Status CheckFlags(const CommandLine& line) {
  AISP_RETURN_IF_ERROR(line.ExtraNumber("temperature", 0, 0, 2));
  AISP_RETURN_IF_ERROR(line.ExtraInt("seed", 0, INT64_MIN, INT64_MAX));
  AISP_RETURN_IF_ERROR(line.ExtraInt("max-tokens", 1, 1, INT32_MAX));
  return {};
}

}  // namespace

int RunGenerate(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("generate", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (line->positional.size() != 1) {
    return ReportUsageError(
        "generate", "wants one prompt, in quotes, as in `aisp generate \"Once upon a time\"`");
  }
  if (const Status fits = CheckFlags(*line); !fits) {
    return ReportUsageError("generate", fits.error().message);
  }
  LogSession log({.level = LogLevel::kWarning});
  StopSignals signals(-1);
  const auto stop = [&] { return !signals.WaitFor(0).empty(); };
  Status done = BringModelHere(&line->config, stop);
  if (done) done = Generate(*line, stop);
  if (!done) return ReportFailure(done.error().message);
  return 0;
}

}  // namespace aisp
