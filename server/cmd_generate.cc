// `aisp generate "PROMPT"`: one answer on the terminal from an engine in this process; no router, no sockets.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <functional>
#include <random>

#include "common/log.h"
#include "common/strings.h"
#include "config/command_line.h"
#include "server/backend.h"
#include "server/commands.h"
#include "server/process.h"
#include "text/detokenizer.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 5> kExtras = {{
    {"--max-tokens", "N", "Tokens to generate at most; without it, what is left of the context."},
    {"--temperature", "T", "0 is greedy; without it, the model's own (1)."},
    {"--seed", "N", "The same seed gives the same answer; without it, a new one every time."},
    {"--raw", "", "Continue the prompt as plain text, without the chat template."},
    {"--stats", "", "Print TTFT, TPOT and token counts to stderr at the end."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 2> kPrefixes = {"model.", "engine."};
  return "aisp generate \"PROMPT\" [flags]\n\n" + HelpForSettings(kPrefixes, kExtras);
}

Result<std::vector<TokenId>> TokensOf(const ServedModel& model, const std::string& prompt,
                                      bool raw) {
  if (raw || !model.chat_template) return model.tokenizer->Encode(prompt);
  ChatRequest chat;
  Value::Map message{{"role", Value("user")}, {"content", Value(prompt)}};
  chat.messages = Value(Value::List{Value(std::move(message))});
  auto tokens = model.RenderChat(chat);
  if (!tokens) return Fail(tokens.error().code, tokens.error().message);
  return std::move(*tokens);
}

Result<SequenceRequest> RequestOf(const CommandLine& line, const ServedModel& model) {
  if (line.positional.size() != 1) return InvalidArgument("wants one prompt, in quotes");
  SequenceRequest r;
  AISP_ASSIGN_OR_RETURN(r.tokens, TokensOf(model, line.positional[0], line.HasExtra("raw")));
  r.prompt_tokens = static_cast<int32_t>(r.tokens.size());
  const auto& defaults = model.limits.sampling_defaults;
  r.sampling.temperature = defaults.temperature.value_or(1.0f);
  r.sampling.top_p = defaults.top_p.value_or(1.0f);
  r.sampling.top_k = defaults.top_k.value_or(0);
  r.sampling.min_p = defaults.min_p.value_or(0.0f);
  if (line.HasExtra("temperature")) {
    AISP_ASSIGN_OR_RETURN(const double t, ParseDouble(line.Extra("temperature")));
    if (t < 0 || t > 100)
      return InvalidArgument(fmt::format("--temperature {} is out of range; allowed: 0 to 100", t));
    r.sampling.temperature = static_cast<float>(t);
  }
  std::random_device device;
  r.sampling.seed = (uint64_t{device()} << 32) | device();
  if (line.HasExtra("seed")) {
    AISP_ASSIGN_OR_RETURN(const int64_t seed, ParseInt(line.Extra("seed")));
    r.sampling.seed = static_cast<uint64_t>(seed);
  }
  r.max_new_tokens = std::max(1, model.max_model_len - r.prompt_tokens);
  if (line.HasExtra("max-tokens")) {
    AISP_ASSIGN_OR_RETURN(const int64_t n,
                          ParseIntInRange(line.Extra("max-tokens"), 1, r.max_new_tokens));
    r.max_new_tokens = static_cast<int32_t>(n);
  }
  r.stop_token_ids = model.eos;
  return r;
}

void PrintStats(const SequenceTimes& times, Instant end, int32_t prompt_tokens, int32_t tokens) {
  const double ttft = ToMs(times.first_token - times.added);
  const double tpot = tokens > 1 ? ToMs(end - times.first_token) / (tokens - 1) : 0;
  fmt::print(stderr, "{} prompt tokens, {} generated; TTFT {:.1f} ms, TPOT {:.2f} ms\n",
             prompt_tokens, tokens, ttft, tpot);
}

Status Generate(const CommandLine& line, const std::function<bool()>& stop) {
  AISP_ASSIGN_OR_RETURN(const std::unique_ptr<ServedModel> model, LoadServedModel(line.config));
  AISP_ASSIGN_OR_RETURN(SequenceRequest request, RequestOf(line, *model));
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(line.config, *model));
  const SteadyClock clock;
  Engine engine(EngineOptionsOf(line.config, *model), backend.executor.get(), &clock, nullptr);
  const int32_t prompt_tokens = request.prompt_tokens;
  AISP_ASSIGN_OR_RETURN(const SequenceId id, engine.Add(std::move(request)));
  Detokenizer detokenizer(*model->tokenizer, /*skip_special=*/true);
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
        std::fputs(detokenizer.Push(token.token).c_str(), stdout);
        std::fflush(stdout);
      }
      ended = token.finish != FinishReason::kNone;
    }
  }
  fmt::print("{}\n", detokenizer.Flush());
  if (line.HasExtra("stats")) PrintStats(times, clock.Now(), prompt_tokens, tokens);
  return {};
}

}  // namespace

int RunGenerate(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("generate", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  LogSession log({.level = LogLevel::kWarning});
  StopSignals signals(-1);
  const Status done = Generate(*line, [&] { return !signals.WaitFor(0).empty(); });
  if (!done && done.error().code == Code::kInvalidArgument)
    return ReportUsageError("generate", done.error().message);
  if (!done) return ReportFailure(done.error().message);
  return 0;
}

}  // namespace aisp
