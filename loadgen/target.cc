#include "loadgen/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/clock.h"
#include "common/strings.h"
#include "net/host_port.h"
#include "net/http_client.h"

namespace aisp::loadgen {
namespace {

using Json = nlohmann::json;

constexpr Duration kTimeout = std::chrono::seconds(120);
constexpr std::chrono::milliseconds kReadyPoll{250};
constexpr size_t kSampleWords = 128;
constexpr size_t kMinPool = 32;

class Prober {
 public:
  Prober(const Options& options, Target* target) : options_(options), target_(target) {}

  Status Run(bool made_up) {
    AISP_RETURN_IF_ERROR(AwaitServer());
    AISP_RETURN_IF_ERROR(ReadModels());
    if (options_.max_model_len > 0) target_->max_model_len = options_.max_model_len;
    return made_up ? ChoosePrompts() : Status();
  }

 private:
  // A new connection each time, since the server may restart while we wait for it.
  Result<HttpAnswer> Ask(std::string_view method, const std::string& path, const Json& body = {}) {
    AISP_ASSIGN_OR_RETURN(
        HttpClient client,
        HttpClient::Connect(target_->url.host, target_->url.port, kTimeout, target_->tls));
    HttpHeaders headers = {{"Content-Type", "application/json"}};
    if (!options_.api_key.empty())
      headers.emplace_back("Authorization", "Bearer " + options_.api_key);
    headers.insert(headers.end(), options_.headers.begin(), options_.headers.end());
    return client.Request(method, target_->url.prefix + path, body.is_null() ? "" : body.dump(),
                          headers);
  }

  // Servers without /ready return 404 or anything else.
  Status Ready() {
    const auto answer = Ask("GET", "/ready");
    if (!answer) {
      return tl::unexpected(
          Error{answer.error().code,
                fmt::format("{}; is a server running at {}? (--base-url names another, "
                            "--wait-ready S waits)",
                            answer.error().message, target_->url.ToString())});
    }
    if (answer->status != 503) return {};
    return Unavailable(fmt::format("the server is not ready (--wait-ready S waits): {}",
                                   Excerpt(Trim(answer->body), 300)));
  }
  Status AwaitServer() {
    const SteadyClock clock;
    const Instant deadline = clock.Now() + FromMs(1e3 * options_.wait_ready_s);
    for (;;) {
      const Status ready = Ready();
      if (ready || clock.Now() >= deadline) return ready;
      std::this_thread::sleep_for(kReadyPoll);
    }
  }

  Status ReadModels() {
    AISP_ASSIGN_OR_RETURN(const HttpAnswer answer, Ask("GET", "/v1/models"));
    const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    target_->model = options_.model;
    const bool listed = answer.status == 200 && json.is_object() && json.contains("data") &&
                        json["data"].is_array() && !json["data"].empty();
    if (!listed) {
      if (!target_->model.empty()) return {};
      return InvalidArgument(fmt::format("/v1/models says HTTP {} {}; name the model with --model",
                                         answer.status, Excerpt(answer.body)));
    }
    std::vector<std::string> names;
    for (const Json& model : json["data"]) {
      if (!model.is_object()) continue;
      names.push_back(model.value("id", ""));
      if (target_->model.empty()) target_->model = names.back();
      const auto length = model.find("max_model_len");
      if (names.back() == target_->model && length != model.end() && length->is_number_integer()) {
        target_->max_model_len = *length;
      }
    }
    if (std::find(names.begin(), names.end(), target_->model) == names.end()) {
      target_->notes.push_back(fmt::format("the server does not list the model '{}'; it lists {}",
                                           target_->model, fmt::join(names, ", ")));
    }
    return {};
  }

  Status ChoosePrompts() {
    PromptMaker& prompts = target_->prompts;
    prompts.ids = options_.kind() != BackendKind::kChat && options_.prompt_format != "text";
    if (prompts.ids && options_.vocab_size > 0) {
      prompts.vocab = static_cast<int32_t>(options_.vocab_size);
      return {};
    }
    if (!prompts.ids) return Calibrate();
    auto pool = TokenizeSample();
    if (pool) {
      prompts.pool = std::move(*pool);
      return {};
    }
    if (options_.prompt_format == "ids") {
      return tl::unexpected(pool.error().WithContext(
          "--prompt-format ids needs --vocab-size N, for /tokenize gives no ids"));
    }
    prompts.ids = false;
    return Calibrate();
  }

  Result<std::vector<TokenId>> TokenizeSample() {
    AISP_ASSIGN_OR_RETURN(const HttpAnswer answer, Ask("POST", "/tokenize",
                                                       {{"model", target_->model},
                                                        {"prompt", SampleWords(kSampleWords)},
                                                        {"add_special_tokens", false}}));
    const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    if (answer.status != 200 || !json.is_object() || !json.contains("tokens") ||
        !json["tokens"].is_array()) {
      return NotFound(fmt::format("HTTP {} {}", answer.status, Excerpt(answer.body)));
    }
    std::vector<TokenId> tokens;
    for (const Json& token : json["tokens"]) {
      if (token.is_number_integer()) tokens.push_back(token);
    }
    return PoolOf(tokens);
  }

  // The server's token count for `words` of our words.
  Result<int64_t> CountWords(size_t words) {
    Json body = {{"model", target_->model}, {"max_tokens", 1}, {"stream", false}};
    if (options_.kind() == BackendKind::kChat) {
      body["messages"] = {{{"role", "user"}, {"content", SampleWords(words)}}};
    } else {
      body["prompt"] = SampleWords(words);
    }
    AISP_ASSIGN_OR_RETURN(const HttpAnswer answer, Ask("POST", options_.target(), body));
    const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    if (answer.status != 200) {
      return FailedPrecondition(fmt::format("a first request of {} words to {} gets HTTP {}: {}",
                                            words, options_.target(), answer.status,
                                            Excerpt(Trim(answer.body), 400)));
    }
    const int64_t unknown = -1;
    if (!json.is_object() || !json.contains("usage") || !json["usage"].is_object()) return unknown;
    return json["usage"].value("prompt_tokens", unknown);
  }

  // Two lengths give the slope (tokens per word) and the constant (tokens around the words).
  Status Calibrate() {
    const size_t room =
        target_->max_model_len > 0 ? static_cast<size_t>(target_->max_model_len) : 4096;
    const size_t many = std::clamp<size_t>(room / 4, 16, 4 * kSampleWords);
    const size_t few = many / 4;
    AISP_ASSIGN_OR_RETURN(const int64_t few_tokens, CountWords(few));
    AISP_ASSIGN_OR_RETURN(const int64_t many_tokens, CountWords(many));
    PromptMaker& prompts = target_->prompts;
    if (few_tokens <= 0 || many_tokens <= few_tokens) {
      target_->notes.push_back(
          "the server says no prompt_tokens: a made-up prompt of N tokens is N common words");
      return {};
    }
    prompts.tokens_per_word =
        static_cast<double>(many_tokens - few_tokens) / static_cast<double>(many - few);
    prompts.overhead_tokens = std::max(
        0.0, static_cast<double>(few_tokens) - prompts.tokens_per_word * static_cast<double>(few));
    target_->notes.push_back(
        fmt::format("made-up prompts are sent as text: {:.3f} tokens a word and {:.0f} around "
                    "them, as this server counts; "
                    "lengths are near, not exact",
                    prompts.tokens_per_word, prompts.overhead_tokens));
    return {};
  }

  const Options& options_;
  Target* target_;
};

}  // namespace

Result<std::vector<TokenId>> PoolOf(const std::vector<TokenId>& tokens) {
  std::vector<TokenId> pool = tokens;
  std::sort(pool.begin(), pool.end());
  pool.erase(std::unique(pool.begin(), pool.end()), pool.end());
  if (pool.size() < kMinPool) {
    return FailedPrecondition(
        fmt::format("{} words have only {} different tokens", kSampleWords, pool.size()));
  }
  return pool;
}

Result<Target> AskServer(const Options& options, bool made_up) {
  Target target;
  const std::string url = options.base_url.empty()
                              ? "http://" + HostPort(options.host, options.port)
                              : options.base_url;
  AISP_ASSIGN_OR_RETURN(target.url, ParseUrl(url));
  if (target.url.tls) {
    AISP_ASSIGN_OR_RETURN(target.tls, TlsDialer::Create({.ca_file = options.tls_ca,
                                                         .cert_file = options.tls_cert,
                                                         .key_file = options.tls_key,
                                                         .insecure = options.tls_insecure}));
  }
  AISP_RETURN_IF_ERROR(Prober(options, &target).Run(made_up));
  return target;
}

}  // namespace aisp::loadgen
