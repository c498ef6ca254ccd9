#include "server/admin_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "api/error.h"
#include "api/response.h"
#include "common/log.h"
#include "common/strings.h"
#include "server/frontend.h"

namespace aisp {
namespace {

constexpr std::string_view kPrefix = "/admin/workers";
constexpr Duration kLongestWait = std::chrono::seconds(30);
constexpr Duration kLookAgain = std::chrono::milliseconds(50);

HttpHeaders Json() { return {{"content-type", "application/json"}, {"cache-control", "no-store"}}; }

// "[::1]:51234", "127.0.0.1:80"
bool IsLoopback(std::string_view peer) {
  return peer.starts_with("127.") || peer.starts_with("[::1]") || peer.starts_with("[::ffff:127.");
}

// Takes as long for a wrong key as for the right one.
bool SameKey(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

std::optional<std::string_view> QueryValue(std::string_view query, std::string_view name) {
  for (const std::string_view part : Split(query, '&')) {
    const size_t equals = part.find('=');
    if (part.substr(0, equals) != name) continue;
    return equals == std::string_view::npos ? "1" : part.substr(equals + 1);
  }
  return std::nullopt;
}

bool QueryFlag(std::string_view query, std::string_view name) {
  const auto value = QueryValue(query, name);
  return value && (*value == "1" || *value == "true");
}

std::string JsonOf(const WorkerStatus& w) {
  std::string id, host, reason;
  AppendJsonString(w.id, &id);
  AppendJsonString(w.host_id, &host);
  AppendJsonString(w.unready_reason, &reason);
  return fmt::format(
      R"({{"id":{},"role":"{}","state":"{}","reason":{},"incarnation":"{:016x}","host":{},"running":{},)"
      R"("waiting":{},"streams":{},"free_blocks":{},"total_blocks":{}}})",
      id, w.prefill ? "prefill" : "decode", WorkerStateName(w.state), reason, w.incarnation, host,
      w.running, w.waiting, w.streams, w.free_blocks, w.total_blocks);
}

void Refuse(HttpExchange& exchange, int status, const std::string& message) {
  exchange.Respond(status, Json(), ErrorBody(status, message));
}

const WorkerStatus* Find(const std::vector<WorkerStatus>& workers, const std::string& id) {
  const auto it = std::find_if(workers.begin(), workers.end(),
                               [&id](const WorkerStatus& w) { return w.id == id; });
  return it == workers.end() ? nullptr : &*it;
}

std::string UnknownWorker(const std::vector<WorkerStatus>& workers, const std::string& id) {
  std::vector<std::string> known;
  known.reserve(workers.size());
  for (const WorkerStatus& w : workers) known.push_back(w.id);
  return fmt::format("no worker '{}' is registered; known: {}", Excerpt(id),
                     known.empty() ? "none" : Join(known, ", "));
}

}  // namespace

Result<std::unique_ptr<AdminApi>> AdminApi::Create(const Config& config, Router* router,
                                                   IoLoop* loop, const Clock* clock) {
  std::string key;
  if (config.router.admin == "key") {
    const std::string& path = config.router.admin_key_file;
    std::ifstream in(path);
    std::getline(in, key);
    key = std::string(Trim(key));
    if (key.empty()) {
      return InvalidArgument(fmt::format(
          "router.admin is 'key' and router.admin_key_file '{}' has no key in its first "
          "line; write one there",
          path));
    }
  }
  return std::unique_ptr<AdminApi>(
      new AdminApi(config.router.admin, std::move(key), router, loop, clock));
}

Status AdminApi::Allowed(const HttpRequest& request) const {
  if (mode_ == "off")
    return Fail(Code::kPermissionDenied, "router.admin is 'off'; this router takes no orders");
  if (mode_ == "key") {
    constexpr std::string_view kBearer = "Bearer ";
    const std::string_view header = request.Header("authorization");
    if (header.starts_with(kBearer) && SameKey(header.substr(kBearer.size()), key_)) return {};
    return Fail(Code::kUnauthenticated,
                "this router wants its admin key: Authorization: Bearer KEY");
  }
  const bool passed_on =
      !request.Header("forwarded").empty() || !request.Header("x-forwarded-for").empty();
  if (!IsLoopback(request.peer) || passed_on || !request.Header("origin").empty()) {
    return Fail(Code::kPermissionDenied,
                "only programs on the router's own machine may call /admin; set router.admin to "
                "'key' for others");
  }
  return {};
}

bool AdminApi::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  std::string_view path = request.path;
  if (path != kPrefix && !path.starts_with(fmt::format("{}/", kPrefix))) return false;
  if (const Status allowed = Allowed(request); !allowed) {
    const int status = allowed.error().code == Code::kUnauthenticated ? 401 : 403;
    Refuse(*exchange, status, allowed.error().message);
    return true;
  }
  path.remove_prefix(kPrefix.size());
  constexpr std::string_view kDrain = "/drain";
  const bool drain = path.size() > kDrain.size() && path.ends_with(kDrain);
  if (drain) path.remove_suffix(kDrain.size());
  if (request.method != (drain ? "POST" : "GET")) {
    AnswerUnknown(*exchange, {drain ? "POST" : "GET"});
    return true;
  }
  if (path.empty()) {
    List(*exchange);
    return true;
  }
  const std::string id(path.substr(1));
  if (drain) {
    Drain(*exchange, id);
    return true;
  }
  Duration wait{};
  if (const auto text = QueryValue(request.query, "wait_ms")) {
    const auto ms = ParseIntInRange(*text, 0, kLongestWait.count() / 1'000'000);
    if (!ms) {
      Refuse(*exchange, 400, "wait_ms: " + ms.error().message);
      return true;
    }
    wait = std::chrono::milliseconds(*ms);
  }
  Describe(exchange, id, clock_->Now() + wait);
  return true;
}

void AdminApi::List(HttpExchange& exchange) const {
  std::string body;
  for (const WorkerStatus& worker : router_->Workers()) {
    if (!body.empty()) body += ',';
    body += JsonOf(worker);
  }
  exchange.Respond(200, Json(), fmt::format(R"({{"workers":[{}]}})", body));
}

void AdminApi::Describe(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                        Instant deadline) {
  if (!exchange->alive()) return;
  const std::vector<WorkerStatus> workers = router_->Workers();
  const WorkerStatus* worker = Find(workers, id);
  if (worker == nullptr) return Refuse(*exchange, 404, UnknownWorker(workers, id));
  const Instant now = clock_->Now();
  if (worker->state == WorkerStatus::State::kDrained || now >= deadline)
    return exchange->Respond(200, Json(), JsonOf(*worker));
  const uint64_t wait = ++last_wait_;
  waits_[wait] =
      loop_->RunAt(std::min(deadline, now + kLookAgain), [this, exchange, id, deadline, wait] {
        const auto fired = waits_.extract(wait);
        Describe(exchange, id, deadline);
      });
}

void AdminApi::Drain(HttpExchange& exchange, const std::string& id) {
  const std::string& query = exchange.request().query;
  const bool move = QueryFlag(query, "move");
  const bool stop = QueryFlag(query, "stop");
  if (const Status asked = router_->DrainWorker(id, move, stop); !asked)
    return Refuse(exchange, 404, asked.error().message);
  LogInfo("an operator drains a worker",
          {{"worker", id}, {"move", move}, {"stop", stop}, {"peer", exchange.request().peer}});
  const std::vector<WorkerStatus> workers = router_->Workers();
  exchange.Respond(202, Json(), JsonOf(*Find(workers, id)));
}

}  // namespace aisp
