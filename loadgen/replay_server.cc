#include "loadgen/replay_server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <deque>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <queue>
#include <utility>

#include "common/clock.h"
#include "common/hash.h"
#include "common/strings.h"
#include "loadgen/json_scanner.h"
#include "loadgen/timed_run.h"
#include "net/host_port.h"
#include "net/http_server.h"

namespace aisp::loadgen {
namespace {

using Json = nlohmann::json;

constexpr int64_t kTokensPerTurn = 256;   // per stream without a pace
constexpr size_t kMaxUnsent = 256 << 10;  // a slow reader waits rather than being cut
constexpr Duration kSlowReaderWait = std::chrono::milliseconds(1);
constexpr Duration kSignalPoll = std::chrono::milliseconds(50);
constexpr int64_t kMaxTokens = 10'000'000;

int64_t CountWords(std::string_view text) {
  int64_t words = 0;
  bool within = false;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n';
    words += !space && !within ? 1 : 0;
    within = !space;
  }
  return words;
}

// Counts ids of a list, words of a text, or the sum over nested values (messages).
bool CountPrompt(JsonScanner* scan, int depth, int64_t* tokens) {
  if (depth > kMaxJsonDepth) return false;
  switch (scan->Peek()) {
    case '"': {
      std::string_view text;
      const bool read = scan->String(&text);
      *tokens += CountWords(text);
      return read;
    }
    case '[':
      return scan->Array([&] { return CountPrompt(scan, depth + 1, tokens); });
    case '{':
      return scan->Object([&](std::string_view key) {
        return key == "content" ? CountPrompt(scan, depth + 1, tokens) : scan->Skip();
      });
    default:
      ++*tokens;
      return scan->Skip();
  }
}

// A running answer.
struct Stream {
  std::shared_ptr<HttpExchange> exchange;
  const ReplayTiming* timing = nullptr;  // null: the pace of the options
  bool chat = false;
  int64_t asked = 0;
  int64_t sent = 0;
  size_t events = 0;
  int64_t prompt_tokens = 0;
  Instant due{};
};
using StreamPtr = std::shared_ptr<Stream>;

struct Later {
  bool operator()(const StreamPtr& a, const StreamPtr& b) const { return a->due > b->due; }
};

constexpr const char* kHeadOfChunk[] = {
    R"(data: {"id":"cmpl-replay","object":"text_completion","created":0,"model":"replay",)",
    R"(data: {"id":"chatcmpl-replay","object":"chat.completion.chunk","created":0,"model":"replay",)"};

std::string Event(bool chat, const std::string& text, const char* finish) {
  const std::string reason = finish == nullptr ? "null" : fmt::format("\"{}\"", finish);
  const std::string body = chat ? fmt::format(R"("delta":{{"content":"{}"}})", text)
                                : fmt::format(R"("text":"{}","logprobs":null)", text);
  return fmt::format(R"({}"choices":[{{"index":0,{},"finish_reason":{}}}]}})"
                     "\n\n",
                     kHeadOfChunk[chat], body, reason);
}

std::string Usage(const Stream& stream) {
  return fmt::format(R"("usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}}})",
                     stream.prompt_tokens, stream.asked, stream.prompt_tokens + stream.asked);
}

std::string Words(int64_t count) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += " word";
  return out;
}

}  // namespace

struct ReplayServer::Impl : std::enable_shared_from_this<Impl> {
  Impl(IoLoop* on, const ReplayOptions& with, std::vector<ReplayTiming> recorded)
      : loop(on), options(with), recording(std::move(recorded)) {
    for (const bool chat : {false, true}) {
      event[chat] = Event(chat, Words(options.chunk_tokens), nullptr);
      last[chat] = Event(chat, "", "length");
    }
  }

  void Handle(std::shared_ptr<HttpExchange> exchange);
  void Generate(std::shared_ptr<HttpExchange> exchange, bool chat);
  void Tokenize(HttpExchange* exchange) const;
  // Starts waiting requests while there is room.
  void Admit();
  // Sends everything that is due; then sets the timer for the next event.
  void Advance();
  // Sends one event, or a batch of them without a pace. False: the stream has ended.
  bool Continue(Stream* stream);
  void Finish(Stream* stream);
  double DelayMs(const Stream& stream) const;

  IoLoop* loop;
  const ReplayOptions options;
  const std::vector<ReplayTiming> recording;
  std::unique_ptr<HttpServer> http;
  SteadyClock clock;
  ReplayCounts counts;
  std::string event[2], last[2];  // templates for completions and chats
  std::priority_queue<StreamPtr, std::vector<StreamPtr>, Later> waiting;
  std::deque<StreamPtr> queued;
  std::shared_ptr<IoLoop::Timer> timer;
};

ReplayRequest ReadReplayRequest(const std::string& body) {
  ReplayRequest out;
  JsonScanner scan(body);
  scan.Object([&](std::string_view key) {
    if (key == "max_tokens" || key == "max_completion_tokens") return scan.Integer(&out.max_tokens);
    if (key == "prompt" || key == "messages") return CountPrompt(&scan, 0, &out.prompt_tokens);
    if (key != "stream") return scan.Skip();
    std::string_view word;
    const bool read = scan.Word(&word);
    out.stream = word == "true";
    return read;
  });
  out.max_tokens = std::clamp<int64_t>(out.max_tokens, 1, kMaxTokens);
  return out;
}

void ReplayServer::Impl::Handle(std::shared_ptr<HttpExchange> exchange) {
  const std::string& path = exchange->request().path;
  const HttpHeaders json = {{"Content-Type", "application/json"}};
  if (path == "/v1/completions" || path == "/v1/chat/completions") {
    return Generate(std::move(exchange), path == "/v1/chat/completions");
  }
  if (path == "/health" || path == "/ready") return exchange->Respond(200, json, "{}");
  if (path == "/tokenize") return Tokenize(exchange.get());
  if (path == "/v1/models") {
    return exchange->Respond(
        200, json,
        R"({"object":"list","data":[{"id":"replay","object":"model","max_model_len":10000000}]})");
  }
  exchange->Respond(404, json, R"({"error":{"message":"the replay server has no such path"}})");
}

// One id per word, always the same.
void ReplayServer::Impl::Tokenize(HttpExchange* exchange) const {
  const Json body = Json::parse(exchange->request().body, nullptr, /*allow_exceptions=*/false);
  Json ids = Json::array();
  const std::string prompt = body.is_object() ? body.value("prompt", "") : "";
  for (const auto word : Split(prompt, ' ')) {
    ids.push_back(HashBytes(word).lo % 100'000);
  }
  exchange->Respond(200, {{"Content-Type", "application/json"}}, Json{{"tokens", ids}}.dump());
}

void ReplayServer::Impl::Generate(std::shared_ptr<HttpExchange> exchange, bool chat) {
  const ReplayRequest asked = ReadReplayRequest(exchange->request().body);
  auto stream = std::make_shared<Stream>();
  stream->chat = chat;
  stream->asked = asked.max_tokens;
  stream->prompt_tokens = asked.prompt_tokens;
  if (!recording.empty()) {
    stream->timing = &recording[static_cast<size_t>(counts.requests) % recording.size()];
  }
  ++counts.requests;
  if (!asked.stream) {
    const std::string text = Words(stream->asked);
    const std::string choice =
        chat ? fmt::format(R"("message":{{"role":"assistant","content":"{}"}})", text)
             : fmt::format(R"("text":"{}")", text);
    counts.tokens += stream->asked;
    return exchange->Respond(
        200, {{"Content-Type", "application/json"}},
        fmt::format(
            R"({{"model":"replay","choices":[{{"index":0,{},"finish_reason":"length"}}],{}}})",
            choice, Usage(*stream)));
  }
  exchange->BeginStream(200, {{"Content-Type", "text/event-stream"}});
  stream->exchange = std::move(exchange);
  queued.push_back(std::move(stream));
  Admit();
  Advance();
}

void ReplayServer::Impl::Admit() {
  const auto most = static_cast<size_t>(options.max_streams);
  while (!queued.empty() && (most == 0 || waiting.size() < most)) {
    StreamPtr stream = std::move(queued.front());
    queued.pop_front();
    stream->due = clock.Now() + FromMs(DelayMs(*stream));
    waiting.push(std::move(stream));
  }
}

double ReplayServer::Impl::DelayMs(const Stream& stream) const {
  if (stream.timing != nullptr) {
    if (stream.events == 0) return stream.timing->ttft_ms;
    const auto& gaps = stream.timing->gaps_ms;
    return gaps.empty() ? 0 : gaps[(stream.events - 1) % gaps.size()];
  }
  return stream.events == 0 ? options.ttft_ms
                            : options.tpot_ms * static_cast<double>(options.chunk_tokens);
}

void ReplayServer::Impl::Advance() {
  const Instant now = clock.Now();
  std::vector<StreamPtr> due;
  while (!waiting.empty() && waiting.top()->due <= now) {
    due.push_back(waiting.top());
    waiting.pop();
  }
  for (StreamPtr& stream : due) {
    if (Continue(stream.get())) waiting.push(std::move(stream));
  }
  Admit();
  timer.reset();
  if (waiting.empty()) return;
  timer = loop->RunAt(waiting.top()->due, [this] { Advance(); });
}

bool ReplayServer::Impl::Continue(Stream* stream) {
  HttpExchange& exchange = *stream->exchange;
  for (int64_t turn = 0; turn < kTokensPerTurn; ++turn) {
    if (!exchange.alive()) {
      ++counts.gone;
      return false;
    }
    if (exchange.unsent_bytes() > kMaxUnsent) {
      stream->due = clock.Now() + kSlowReaderWait;
      return true;
    }
    if (options.cut_after > 0 && stream->sent >= options.cut_after) return false;
    const int64_t left = stream->asked - stream->sent;
    const int64_t tokens = std::min(left, options.chunk_tokens);
    exchange.Write(tokens == options.chunk_tokens ? event[stream->chat]
                                                  : Event(stream->chat, Words(tokens), nullptr));
    stream->sent += tokens;
    counts.tokens += tokens;
    ++stream->events;
    if (stream->sent == stream->asked) {
      Finish(stream);
      return false;
    }
    // Relative to the due time, so that the pace does not drift.
    const double delay_ms = DelayMs(*stream);
    stream->due = stream->due + FromMs(delay_ms);
    if (delay_ms > 0) return true;
  }
  return true;
}

void ReplayServer::Impl::Finish(Stream* stream) {
  std::string out = last[stream->chat];
  out += fmt::format("{}\"choices\":[],{}}}\n\ndata: [DONE]\n\n", kHeadOfChunk[stream->chat],
                     Usage(*stream));
  stream->exchange->Write(out);
  stream->exchange->End();
}

ReplayServer::ReplayServer(IoLoop* loop, const ReplayOptions& options,
                           std::vector<ReplayTiming> recording)
    : impl_(std::make_shared<Impl>(loop, options, std::move(recording))) {}

ReplayServer::~ReplayServer() = default;

Status ReplayServer::Start() {
  HttpServerOptions http;
  http.address = impl_->options.host;
  http.port = impl_->options.port;
  http.max_connections = 65536;
  http.max_unsent_bytes = 4 * kMaxUnsent;
  impl_->http = std::make_unique<HttpServer>(
      impl_->loop, http, [impl = impl_.get()](std::shared_ptr<HttpExchange> exchange) {
        impl->Handle(std::move(exchange));
      });
  return impl_->http->Start();
}

uint16_t ReplayServer::port() const { return impl_->http->port(); }
ReplayCounts ReplayServer::counts() const { return impl_->counts; }

Result<std::vector<ReplayTiming>> ReadRecording(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("requests") || !json["requests"].is_array()) {
    return InvalidArgument("it is no result of --save-detailed: there is no list 'requests'");
  }
  std::vector<ReplayTiming> out;
  for (const Json& request : json["requests"]) {
    if (!request.is_object() || request.value("status", "") != "completed") continue;
    if (!request.contains("ttft_ms") || !request["ttft_ms"].is_number()) continue;
    ReplayTiming timing;
    timing.ttft_ms = std::max(0.0, request["ttft_ms"].get<double>());
    const auto gaps = request.find("itls_ms");
    if (gaps != request.end() && gaps->is_array()) {
      for (const Json& gap : *gaps) {
        if (gap.is_number()) timing.gaps_ms.push_back(std::max(0.0, gap.get<double>()));
      }
    }
    out.push_back(std::move(timing));
  }
  if (out.empty()) return InvalidArgument("no request of it was completed");
  return out;
}

Status ServeReplay(const ReplayOptions& options, const std::string& recording_path) {
  std::vector<ReplayTiming> recording;
  if (!recording_path.empty()) {
    std::ifstream in(recording_path, std::ios::binary);
    if (!in) return NotFound(fmt::format("--replay-file {}: cannot be read", recording_path));
    auto read = ReadRecording(std::string(std::istreambuf_iterator<char>(in), {}));
    if (!read) return tl::unexpected(read.error().WithContext("--replay-file " + recording_path));
    recording = std::move(*read);
  }
  IoLoop loop;
  ReplayServer server(&loop, options, std::move(recording));
  AISP_RETURN_IF_ERROR(server.Start());
  fmt::print("replay server on http://{}; Ctrl-C ends it\n", HostPort(options.host, server.port()));
  std::fflush(stdout);
  const SteadyClock clock;
  const Instant start = clock.Now();
  std::shared_ptr<IoLoop::Timer> ticker;
  std::function<void()> poll = [&] {
    if (TookStopSignal()) return loop.Stop();
    ticker = loop.RunAt(clock.Now() + kSignalPoll, poll);
  };
  loop.Post(poll);
  loop.Run();
  const double cpu_s = CpuSeconds(RUSAGE_SELF);
  const ReplayCounts counts = server.counts();
  fmt::print("{} requests, {} tokens, {} left early; {:.2f} s of CPU, {:.1f} % of a core\n",
             counts.requests, counts.tokens, counts.gone, cpu_s,
             100 * cpu_s / std::max(ToSeconds(clock.Now() - start), 1e-9));
  return {};
}

}  // namespace aisp::loadgen
