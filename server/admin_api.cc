#include "server/admin_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>

#include "api/error.h"
#include "api/json_value.h"
#include "common/log.h"
#include "common/strings.h"
#include "frontend/frontend.h"
#include "frontend/lora_admin.h"
#include "net/host_port.h"
#include "net/link_security.h"
#include "proto/role.h"
#include "server/overview_json.h"
#include "server/trace_json.h"

namespace aisp {
namespace {

constexpr size_t kTracesListed = 100;
constexpr Duration kLongestWait = std::chrono::seconds(30);
constexpr Duration kLookAgain = std::chrono::milliseconds(50);

HttpHeaders Json() { return {{"content-type", "application/json"}, {"cache-control", "no-store"}}; }

// `address` as written in the settings.
bool IsLoopback(std::string_view address) {
  const bool numbers = address.find_first_not_of("0123456789.") == std::string_view::npos;
  return address == "localhost" || address == "::1" || address == "[::1]" ||
         (numbers && address.starts_with("127."));
}

// True if Host names this machine. A browser that was led here by DNS rebinding sends another name.
bool NamesThisHost(std::string_view host) {
  host = SplitHostPort(host).host;
  const bool numbers = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return host == "localhost" || host == "[::1]" || (numbers && host.starts_with("127."));
}

// "%2F" becomes "/"; invalid escapes are unchanged.
std::string PercentDecoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

// The rest of `path` below `prefix`: "" for `prefix` itself, "/x" for a child, else nullopt.
std::optional<std::string_view> Below(std::string_view path, std::string_view prefix) {
  if (!path.starts_with(prefix)) return std::nullopt;
  path.remove_prefix(prefix.size());
  if (!path.empty() && path.front() != '/') return std::nullopt;
  return path;
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

Result<v1::Role> ReadRole(const Value& body, std::string_view key, bool required) {
  const Value* value = body.AsMap().Find(key);
  if (value == nullptr && !required) return v1::ROLE_UNSPECIFIED;
  const v1::Role role =
      value != nullptr && value->IsString() ? RoleNamed(value->AsString()) : v1::ROLE_UNSPECIFIED;
  if (role != v1::ROLE_UNSPECIFIED) return role;
  return InvalidArgument(fmt::format(R"("{}" is {}; give one of "prefill", "decode", "parked")",
                                     key, value == nullptr ? "missing" : Describe(*value)));
}

Result<int64_t> ReadWhole(const Value& body, std::string_view key, int64_t fallback, int64_t least,
                          int64_t most) {
  const Value* value = body.AsMap().Find(key);
  if (value == nullptr) return fallback;
  if (value->IsInt() && value->AsInt() >= least && value->AsInt() <= most) return value->AsInt();
  return InvalidArgument(fmt::format(R"("{}" is {}; give a whole number from {} to {})", key,
                                     Describe(*value), least, most));
}

Result<RoleWish> ReadRoleWish(const std::string& text) {
  AISP_ASSIGN_OR_RETURN(const Value body, ParseJson(text, 4));
  if (!body.IsMap()) return InvalidArgument(R"(the body is no object such as {"role": "prefill"})");
  for (const auto& [key, value] : body.AsMap()) {
    constexpr std::array<std::string_view, 5> kKnown = {"role", "expected", "expected_epoch",
                                                        "move_after_ms", "deadline_ms"};
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end())
      return InvalidArgument(
          fmt::format(R"("{}" is not known; known: {})", Excerpt(key), fmt::join(kKnown, ", ")));
  }
  RoleWish wish;
  AISP_ASSIGN_OR_RETURN(wish.to, ReadRole(body, "role", true));
  AISP_ASSIGN_OR_RETURN(wish.expected, ReadRole(body, "expected", false));
  AISP_ASSIGN_OR_RETURN(const int64_t epoch, ReadWhole(body, "expected_epoch", 0, 1, INT64_MAX));
  AISP_ASSIGN_OR_RETURN(const int64_t move, ReadWhole(body, "move_after_ms", 2000, 0, 3'600'000));
  AISP_ASSIGN_OR_RETURN(const int64_t most, ReadWhole(body, "deadline_ms", 30'000, 1, 3'600'000));
  wish.expected_epoch = static_cast<uint64_t>(epoch);
  wish.move_after = std::chrono::milliseconds(move);
  wish.deadline = std::chrono::milliseconds(most);
  return wish;
}

int RoleStatus(Code code) {
  if (code == Code::kNotFound) return 404;
  if (code == Code::kInvalidArgument) return 400;
  const bool conflict =
      code == Code::kFailedPrecondition || code == Code::kAborted || code == Code::kUnimplemented;
  return conflict ? 409 : 503;
}

}  // namespace

Result<std::unique_ptr<AdminApi>> AdminApi::Create(const Config& config,
                                                   const AdminSources& sources) {
  std::string key;
  const std::string& address = config.router.admin_address;
  if (config.router.admin == "loopback" && !IsLoopback(address)) {
    return InvalidArgument(fmt::format(
        "router.admin_address is '{}', which other machines may reach, and router.admin is "
        "'loopback'; set router.admin to 'key' with a router.admin_key_file, or the address to "
        "127.0.0.1",
        address));
  }
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
  return std::unique_ptr<AdminApi>(new AdminApi(config.router.admin, std::move(key), sources));
}

Status AdminApi::Allowed(const HttpRequest& request) const {
  if (mode_ == "key") {
    constexpr std::string_view kBearer = "Bearer ";
    const std::string_view header = request.Header("authorization");
    if (header.starts_with(kBearer) && SameSecret(header.substr(kBearer.size()), key_)) return {};
    return Fail(Code::kUnauthenticated,
                "this router wants its admin key: Authorization: Bearer KEY");
  }
  // For a browser, a page whose name was rebound to this address (DNS rebinding) has our origin and
  // may send any User-Agent. Only the Host header gives it away.
  const std::string_view host = request.Header("host");
  const bool led_here = !host.empty() && !NamesThisHost(host);
  if (!led_here && request.Header("origin").empty()) return {};
  return Fail(Code::kPermissionDenied,
              fmt::format("pages of other sites may not call /admin, and '{}' may be one's name; "
                          "call it 127.0.0.1 or localhost, or set router.admin to 'key'",
                          Excerpt(led_here ? host : request.Header("origin"))));
}

bool AdminApi::WantsBody(const HttpRequest& head) const {
  const bool role = head.path.starts_with("/admin/workers/") && head.path.ends_with("/role");
  return head.method == "POST" && (role || IsLoraAdminPath(head.path)) && Allowed(head);
}

bool AdminApi::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const auto workers = Below(request.path, "/admin/workers");
  const auto trace = Below(request.path, "/admin/trace");
  const bool overview = request.path == "/admin/overview";
  const bool lora = IsLoraAdminPath(request.path);
  if (!workers && !trace && !overview && !lora) return false;
  if (const Status allowed = Allowed(request); !allowed) {
    const int status = allowed.error().code == Code::kUnauthenticated ? 401 : 403;
    Refuse(*exchange, status, allowed.error().message);
  } else if (workers) {
    Workers(exchange, *workers);
  } else if (lora) {
    AnswerLoraAdmin(exchange, from_.router, from_.runtime_lora);
  } else if (request.method != "GET") {
    AnswerUnknown(*exchange, {"GET"});
  } else if (trace) {
    Trace(*exchange, *trace);
  } else {
    exchange->Respond(
        200, Json(),
        OverviewJson(from_.model, from_.router->Ready(), *from_.stats, from_.router->Workers()));
  }
  return true;
}

void AdminApi::Trace(HttpExchange& exchange, std::string_view path) const {
  const Instant now = from_.clock->Now();
  if (path.size() < 2)
    return exchange.Respond(200, Json(), TraceListJson(*from_.traces, now, kTracesListed));
  const std::string id = PercentDecoded(path.substr(1));
  if (const RequestTrace* found = from_.traces->Find(id); found != nullptr)
    return exchange.Respond(200, Json(), TraceJson(*found, now));
  Refuse(exchange, 404,
         fmt::format("no request '{}' is among the last {} of this router (trace.buffer {}); its "
                     "id is the x-request-id of its answer",
                     Excerpt(id), from_.traces->size(), from_.traces->capacity()));
}

void AdminApi::Workers(const std::shared_ptr<HttpExchange>& exchange, std::string_view path) {
  const HttpRequest& request = exchange->request();
  const auto take = [&path](std::string_view verb) {
    const bool is = path.size() > verb.size() && path.ends_with(verb);
    if (is) path.remove_suffix(verb.size());
    return is;
  };
  const bool drain = take("/drain");
  const bool role = !drain && take("/role");
  const char* method = drain || role ? "POST" : "GET";
  if (request.method != method) {
    AnswerUnknown(*exchange, {method});
    return;
  }
  if (path.empty()) {
    return exchange->Respond(200, Json(),
                             WorkersJson(from_.router->Workers(), from_.router->Totals()));
  }
  const std::string id(path.substr(1));
  if (drain) return Drain(*exchange, id);
  if (role) return SetRole(exchange, id);
  Duration wait{};
  if (const auto text = QueryValue(request.query, "wait_ms")) {
    const auto ms = ParseIntInRange(*text, 0, kLongestWait.count() / 1'000'000);
    if (!ms) return Refuse(*exchange, 400, "wait_ms: " + ms.error().message);
    wait = std::chrono::milliseconds(*ms);
  }
  Describe(exchange, id, from_.clock->Now() + wait);
}

void AdminApi::Describe(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                        Instant deadline) {
  if (!exchange->alive()) return;
  const std::vector<WorkerStatus> workers = from_.router->Workers();
  const WorkerStatus* worker = Find(workers, id);
  if (worker == nullptr) return Refuse(*exchange, 404, UnknownWorker(workers, id));
  const Instant now = from_.clock->Now();
  if (worker->state == WorkerStatus::State::kDrained || now >= deadline)
    return exchange->Respond(200, Json(), WorkerJson(*worker));
  const uint64_t wait = ++last_wait_;
  waits_[wait] =
      from_.loop->RunAt(std::min(deadline, now + kLookAgain), [this, exchange, id, deadline, wait] {
        const auto fired = waits_.extract(wait);
        Describe(exchange, id, deadline);
      });
}

void AdminApi::SetRole(const std::shared_ptr<HttpExchange>& exchange, const std::string& id) {
  const Result<RoleWish> wish = ReadRoleWish(exchange->request().body);
  if (!wish) return Refuse(*exchange, 400, wish.error().message);
  LogInfo("a worker shall take another role", {{"worker", id},
                                               {"role", RoleName(wish->to)},
                                               {"expected", RoleName(wish->expected)},
                                               {"peer", exchange->request().peer}});
  from_.router->SetWorkerRole(id, *wish, [this, exchange, id](Result<Router::RoleState> begun) {
    if (!exchange->alive()) return;
    if (!begun) return Refuse(*exchange, RoleStatus(begun.error().code), begun.error().message);
    const std::vector<WorkerStatus> workers = from_.router->Workers();
    const WorkerStatus* worker = Find(workers, id);
    if (worker == nullptr) return Refuse(*exchange, 404, UnknownWorker(workers, id));
    exchange->Respond(202, Json(), WorkerJson(*worker));
  });
}

void AdminApi::Drain(HttpExchange& exchange, const std::string& id) {
  const std::string& query = exchange.request().query;
  const bool move = QueryFlag(query, "move");
  const bool stop = QueryFlag(query, "stop");
  if (const Status asked = from_.router->DrainWorker(id, move, stop); !asked)
    return Refuse(exchange, 404, asked.error().message);
  LogInfo("an operator drains a worker",
          {{"worker", id}, {"move", move}, {"stop", stop}, {"peer", exchange.request().peer}});
  const std::vector<WorkerStatus> workers = from_.router->Workers();
  exchange.Respond(202, Json(), WorkerJson(*Find(workers, id)));
}

}  // namespace aisp
