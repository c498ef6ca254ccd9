#include "tests/e2e/hostile_clients.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "common/strings.h"
#include "tests/e2e/client.h"

namespace aisp::e2e {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxFailures = 100;

std::string Repeat(std::string_view text, size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string Head(const HostileTarget& target, const std::string& path, const std::string& fields,
                 bool with_key) {
  return "POST " + path + " HTTP/1.1\r\nHost: a\r\n" +
         (with_key ? "Authorization: Bearer " + target.key + "\r\n" : "") + fields + "\r\n";
}

}  // namespace

// A socket from 127.0.0.2, closed by the destructor.
class HostileCrowd::Connection {
 public:
  explicit Connection(const std::string& address, int receive_buffer = 0) {
    const size_t colon = address.rfind(':');
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    inet_pton(AF_INET, "127.0.0.2", &from.sin_addr);
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    to.sin_port =
        htons(static_cast<uint16_t>(ParseIntInRange(address.substr(colon + 1), 1, 65535).value()));
    const auto bound = bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof(from));
    if (bound != 0 || connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) End();
  }
  Connection(Connection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Connection& operator=(Connection&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Connection() { End(); }

  bool open() const { return fd_ >= 0; }
  void End() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Closes the connection with a reset.
  void Reset() {
    const linger now{1, 0};
    if (fd_ >= 0) setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    End();
  }
  // Sends all of it, or returns false after ten seconds in which the server accepted nothing.
  bool Send(std::string_view bytes) {
    while (!bytes.empty() && open()) {
      pollfd wait{fd_, POLLOUT, 0};
      if (poll(&wait, 1, 10'000) <= 0) return false;
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) {
        End();
        return false;
      }
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return open();
  }
  // Reads up to `limit` bytes; nothing when none came in `timeout`. Closes the connection at its
  // end.
  std::string Receive(size_t limit, milliseconds timeout) {
    pollfd wait{fd_, POLLIN, 0};
    if (!open() || poll(&wait, 1, static_cast<int>(timeout.count())) <= 0) return "";
    std::string bytes(limit, '\0');
    const ssize_t n = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n <= 0) End();
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return bytes;
  }

 private:
  int fd_ = -1;
};

HostileCrowd::HostileCrowd(HostileTarget target) : target_(std::move(target)) {
  Start("announced bodies", &HostileCrowd::AnnounceBodies);
  Start("trickled heads", &HostileCrowd::TrickleHeads);
  Start("trickled bodies", &HostileCrowd::TrickleBodies);
  Start("streams read slowly", &HostileCrowd::ReadSlowly);
  Start("streams never read", &HostileCrowd::NeverRead);
  Start("smuggled requests", &HostileCrowd::Smuggle);
  Start("poison", &HostileCrowd::SendPoison);
  Start("64 choices of a long prompt", &HostileCrowd::AskManyChoices);
  Start("prompts of 100k tokens", &HostileCrowd::SendLongPrompts);
  Start("texts to tokenize", &HostileCrowd::FloodTokenize);
  Start("bursts of connections", &HostileCrowd::ConnectALot);
  Start("abandoned streams", &HostileCrowd::Abandon);
  Start("deep JSON", &HostileCrowd::NestDeeply);
}

HostileCrowd::~HostileCrowd() { Stop(); }

void HostileCrowd::Start(const std::string& name, Kind kind) {
  {
    const std::lock_guard lock(mutex_);
    counts_[name] = 0;
  }
  threads_.emplace_back([this, name, kind] { (this->*kind)(name); });
}

void HostileCrowd::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool HostileCrowd::Stopped() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

bool HostileCrowd::Pause(milliseconds pause) {
  std::unique_lock lock(mutex_);
  return !stopping_.wait_for(lock, pause, [this] { return stop_; });
}

void HostileCrowd::Count(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++counts_[name];
}

void HostileCrowd::Fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failures_.size() < kMaxFailures) failures_.push_back(what);
}

std::map<std::string, int> HostileCrowd::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<std::string> HostileCrowd::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

int HostileCrowd::Ask(const std::string& path, const std::string& body, bool with_key) {
  Connection connection(target_.http);
  const std::string fields =
      "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  connection.Send(Head(target_, path, fields, with_key));
  connection.Send(body);
  std::string begin;
  while (connection.open() && !Stopped()) {
    const std::string more = connection.Receive(64 << 10, milliseconds(500));
    if (begin.size() < 12) begin += more;
  }
  if (begin.size() < 12) return 0;
  return static_cast<int>(ParseIntInRange(begin.substr(9, 3), 100, 599).value_or(0));
}

void HostileCrowd::Expect(const std::string& name, const std::string& path, const std::string& body,
                          const std::vector<int>& allowed) {
  const int status = Ask(path, body);
  if (Stopped()) return;
  Count(name);
  const bool refused = status == 429 || status == 503 || status == 0;
  if (!refused && std::count(allowed.begin(), allowed.end(), status) == 0)
    Fail(name + ": " + std::to_string(status) + " for " + body.substr(0, 120));
}

// Sixty-four connections that announce 16 MiB and send nothing, every second one with a key; closed
// ones reconnect.
void HostileCrowd::AnnounceBodies(const std::string& name) {
  std::vector<Connection> held;
  for (size_t turn = 0; Pause(milliseconds(50)); ++turn) {
    Connection next(target_.http);
    if (!next.Send(Head(target_, "/v1/completions", "Content-Length: 16777216\r\n", turn % 2 == 0)))
      continue;
    Count(name);
    if (held.size() < 64) {
      held.push_back(std::move(next));
    } else {
      held[turn % held.size()] = std::move(next);
    }
  }
}

void HostileCrowd::TrickleHeads(const std::string& name) {
  const std::string head = Head(target_, "/v1/completions", "X-Long: " + Repeat("a", 4000), true);
  std::vector<std::pair<Connection, size_t>> held;
  while (Pause(milliseconds(20))) {
    if (held.size() < 32) {
      held.emplace_back(Connection(target_.http), 0);
      Count(name);
    }
    for (auto& [connection, sent] : held) {
      if (sent < head.size() && connection.Send(std::string_view(head).substr(sent, 1))) ++sent;
    }
    std::erase_if(held, [](const auto& entry) { return !entry.first.open(); });
  }
}

void HostileCrowd::TrickleBodies(const std::string& name) {
  const std::string body = R"({"prompt": "Once upon a time", "max_tokens": 4, "user": ")";
  const std::string head = Head(target_, "/v1/completions", "Content-Length: 100000\r\n", true);
  std::vector<std::pair<Connection, size_t>> held;
  while (Pause(milliseconds(20))) {
    if (held.size() < 32) {
      held.emplace_back(Connection(target_.http), 0);
      if (held.back().first.Send(head)) Count(name);
    }
    for (auto& [connection, sent] : held) {
      connection.Send(sent < body.size() ? std::string_view(body).substr(sent, 1) : "a");
      ++sent;
    }
    std::erase_if(held, [](const auto& entry) { return !entry.first.open(); });
  }
}

// Four streams whose readers take a few bytes a second, with the smallest possible receive buffer.
void HostileCrowd::ReadSlowly(const std::string& name) {
  const Json body = {{"prompt", Prose(20, 3)}, {"max_tokens", 1500}, {"ignore_eos", true},
                     {"logprobs", 5},          {"stream", true},     {"temperature", 1}};
  const std::string text = body.dump();
  const std::string fields = "Content-Length: " + std::to_string(text.size()) + "\r\n";
  std::vector<Connection> held;
  while (Pause(milliseconds(250))) {
    if (held.size() < 4) {
      held.emplace_back(target_.http, 1);
      if (held.back().Send(Head(target_, "/v1/completions", fields, true) + text)) Count(name);
    }
    for (Connection& connection : held) connection.Receive(2, milliseconds(0));
    std::erase_if(held, [](const Connection& connection) { return !connection.open(); });
  }
}

void HostileCrowd::NeverRead(const std::string& name) {
  const Json body = {
      {"messages", {{{"role", "user"}, {"content", "Tell me a story without an end"}}}},
      {"max_tokens", 1500},
      {"ignore_eos", true},
      {"n", 4},
      {"stream", true}};
  const std::string text = body.dump();
  const std::string fields = "Content-Length: " + std::to_string(text.size()) + "\r\n";
  std::vector<Connection> held;
  for (size_t turn = 0; Pause(milliseconds(3000)); ++turn) {
    Connection next(target_.http, 1);
    if (!next.Send(Head(target_, "/v1/chat/completions", fields, true) + text)) continue;
    Count(name);
    if (held.size() < 4) {
      held.push_back(std::move(next));
    } else {
      held[turn % held.size()] = std::move(next);
    }
  }
}

// Each gets 400 and the end of the connection; what follows it is never answered.
void HostileCrowd::Smuggle(const std::string& name) {
  const std::string behind = "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::string key = "Authorization: Bearer " + target_.key + "\r\n";
  const auto post = [&](const std::string& fields, const std::string& body) {
    return "POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + key + fields + "\r\n" + body + behind;
  };
  const std::string requests[] = {
      post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
      post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"),
      post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"),
      post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
      post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
      post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"),
      post("Content-Length: +5\r\n", "hello"),
      post("X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", ""),
      post("X: a\rContent-Length: 3\r\n", "abc"),
      post("X: a\nContent-Length: 3\r\n", "abc"),
      post(std::string("X: a\0b\r\n", 8), ""),
      post("Transfer-Encoding: chunked\r\n", "-1\r\n\r\n"),
      post("Transfer-Encoding: chunked\r\n", "ffffffffffffffffff\r\n\r\n"),
      post("Transfer-Encoding: chunked\r\n", "5 5\r\nhello\r\n0\r\n\r\n"),
      post("Transfer-Encoding: chunked\r\n", "5\nhello\r\n0\r\n\r\n"),
      post("Transfer-Encoding: chunked\r\n", "2\r\n{}xx0\r\n\r\n"),
  };
  for (size_t turn = 0; Pause(milliseconds(25)); ++turn) {
    const std::string& request = requests[turn % std::size(requests)];
    Connection connection(target_.http);
    connection.Send(request);
    std::string answer;
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (connection.open() && Clock::now() < deadline && !Stopped())
      answer += connection.Receive(4096, milliseconds(250));
    if (Stopped()) return;
    Count(name);
    const bool refused =
        answer.empty() || answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 503");
    if (connection.open() || !refused || answer.find("HTTP/1.1 200") != std::string::npos)
      Fail(name + ": case " + std::to_string(turn % std::size(requests)) + " got " +
           answer.substr(0, 200));
  }
}

// Prompts and parameters that must never reach a step.
void HostileCrowd::SendPoison(const std::string& name) {
  const auto with = [](const char* field, Json value) {
    Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 4}};
    body[field] = std::move(value);
    return body.dump();
  };
  const std::string bodies[] = {
      with("prompt", "a " + target_.beyond_token + " b"),
      with("prompt", Json{1, 2, 999999}),
      with("prompt", Json{1, -1}),
      with("prompt", Json{1, 4294967296}),
      with("prompt", Json{1, 1e300}),
      with("prompt", Json{Json{1, 2}, Json{1, 4096}}),
      with("logit_bias", {{"4096", 1}}),
      with("logit_bias", {{"-1", 1}}),
      with("logit_bias", {{"99999999999999999999", 100}}),
      with("logit_bias", {{"5", 1e300}}),
      with("n", 65),
      with("n", -1),
      with("temperature", -1e300),
      with("max_tokens", -5),
      with("stop_token_ids", Json{-1}),
      R"({"prompt": "a", "temperature": NaN})",
      R"({"prompt": "\ud800"})",
  };
  for (size_t turn = 0; Pause(milliseconds(30)); ++turn)
    Expect(name, "/v1/completions", bodies[turn % std::size(bodies)], {400});
}

void HostileCrowd::AskManyChoices(const std::string& name) {
  for (int turn = 0; Pause(milliseconds(2000)); ++turn) {
    Json body = {{"prompt", Prose(target_.context / 2, turn)},
                 {"n", 64},
                 {"max_tokens", 16},
                 {"temperature", 1},
                 {"priority", -1000}};
    body["stream"] = turn % 2 == 0;
    Expect(name, "/v1/completions", body.dump(), {200});
  }
}

void HostileCrowd::SendLongPrompts(const std::string& name) {
  constexpr size_t kTokens = 100'000;
  const Json ids = {{"prompt", std::vector<int>(kTokens, 300)}, {"max_tokens", 4}};
  const Json text = {{"prompt", Repeat("fox ", kTokens)}, {"max_tokens", 4}};
  const Json word = {{"prompt", Repeat("a", kTokens * 4)}, {"max_tokens", 4}};
  const Json chat = {{"messages", {{{"role", "user"}, {"content", Repeat("owl ", kTokens)}}}},
                     {"max_tokens", 4}};
  // The longest text that is still tokenized, with more tokens than the context.
  const Json longest = {{"prompt", Repeat("a1", static_cast<size_t>(target_.context))},
                        {"max_tokens", 4}};
  const std::pair<const char*, std::string> requests[] = {{"/v1/completions", ids.dump()},
                                                          {"/v1/completions", text.dump()},
                                                          {"/v1/completions", word.dump()},
                                                          {"/v1/chat/completions", chat.dump()},
                                                          {"/v1/completions", longest.dump()}};
  for (size_t turn = 0; Pause(milliseconds(200)); ++turn) {
    const auto& [path, body] = requests[turn % std::size(requests)];
    Expect(name, path, body, {400});
  }
}

void HostileCrowd::FloodTokenize(const std::string& name) {
  const Json longest = {
      {"prompt", Repeat("fox owl 12, ", static_cast<size_t>(target_.context) / 4)}};
  const Json beyond = {{"prompt", Repeat("a", 4u << 20)}};
  for (size_t turn = 0; Pause(milliseconds(20)); ++turn)
    Expect(name, "/tokenize", (turn % 50 == 0 ? beyond : longest).dump(), {200, 400});
}

// A hundred connections at a time, more than may wait from one address, some of them reset.
void HostileCrowd::ConnectALot(const std::string& name) {
  std::vector<std::vector<Connection>> bursts;
  while (Pause(milliseconds(500))) {
    std::vector<Connection> burst;
    for (int i = 0; i < 100; ++i) {
      burst.emplace_back(target_.http);
      if (i % 3 == 0) burst.back().Send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
      if (i % 3 == 1) burst.back().Reset();
      Count(name);
    }
    bursts.push_back(std::move(burst));
    if (bursts.size() > 5) bursts.erase(bursts.begin());
  }
}

void HostileCrowd::Abandon(const std::string& name) {
  for (int turn = 0; Pause(milliseconds(200)); ++turn) {
    const Json body = {{"prompt", Prose(100, turn)}, {"max_tokens", 500}, {"stream", true}};
    const std::string text = body.dump();
    Connection connection(target_.http);
    const std::string fields = "Content-Length: " + std::to_string(text.size()) + "\r\n";
    if (!connection.Send(Head(target_, "/v1/completions", fields, true) + text)) continue;
    if (turn % 2 == 0) connection.Receive(100, milliseconds(500));
    connection.Reset();
    Count(name);
  }
}

// Bodies that would be expensive to parse: nesting, wide objects, schemas, template variables.
void HostileCrowd::NestDeeply(const std::string& name) {
  const std::string user = R"("messages":[{"role":"user","content":"a"}],"max_tokens":2)";
  const auto nested = [](size_t depth) { return Repeat("[", depth) + Repeat("]", depth); };
  std::string wide = "{";
  for (int i = 0; i < 5000; ++i) wide += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":1";
  wide += "}";
  const std::string bodies[] = {
      nested(100'000),
      "{" + user + ",\"x\":" + nested(100'000) + "}",
      "{" + user + ",\"chat_template_kwargs\":{\"x\":" + nested(90) + "}}",
      "{" + user + ",\"chat_template_kwargs\":{\"x\":" + nested(2000) + "}}",
      "{" + user + ",\"chat_template_kwargs\":" + wide + "}",
      "{" + user +
          R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":)" +
          Repeat(R"({"type":"array","items":)", 500) + "{}" + Repeat("}", 500) + "}}}",
      "{" + user + R"(,"structured_outputs":{"regex":"(a|aa)+(b{1,900}){1,900}"}})",
      R"({"messages":[)" + Repeat(R"({"role":"user","content":"a"},)", 3000) +
          R"({"role":"user","content":"a"}],"max_tokens":2})",
  };
  for (size_t turn = 0; Pause(milliseconds(250)); ++turn)
    Expect(name, "/v1/chat/completions", bodies[turn % std::size(bodies)], {200, 400, 413});
}

}  // namespace aisp::e2e
