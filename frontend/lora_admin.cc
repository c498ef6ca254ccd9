#include "frontend/lora_admin.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "api/error.h"
#include "api/json_value.h"
#include "common/strings.h"
#include "frontend/frontend.h"

namespace aisp {
namespace {

constexpr std::string_view kLoad = "/v1/load_lora_adapter";
constexpr std::string_view kUnload = "/v1/unload_lora_adapter";

HttpHeaders Json() { return {{"content-type", "application/json"}, {"cache-control", "no-store"}}; }

int StatusOf(Code code) {
  switch (code) {
    case Code::kNotFound:
      return 404;
    case Code::kPermissionDenied:
      return 403;
    case Code::kFailedPrecondition:
      return 409;
    case Code::kUnavailable:
    case Code::kResourceExhausted:
      return 503;
    default:
      return 400;
  }
}

void Refuse(HttpExchange& exchange, const Error& why) {
  const int status = StatusOf(why.code);
  exchange.Respond(status, Json(), ErrorBody(status, why.message));
}

Result<std::string> ReadText(const Value& body, std::string_view key) {
  const Value* value = body.AsMap().Find(key);
  if (value != nullptr && value->IsString() && !value->AsString().empty()) return value->AsString();
  return InvalidArgument(fmt::format(R"("{}" is {}; give it as text)", key,
                                     value == nullptr ? "missing" : Describe(*value)));
}

Result<AdapterWish> ReadWish(const std::string& text, bool load) {
  AISP_ASSIGN_OR_RETURN(const Value body, ParseJson(text, 4));
  if (!body.IsMap()) return InvalidArgument(R"(the body is no object with a "lora_name")");
  for (const auto& [key, value] : body.AsMap()) {
    const bool known =
        key == "lora_name" || (load && (key == "lora_path" || key == "load_inplace"));
    if (known) continue;
    return InvalidArgument(fmt::format(R"("{}" is not known; known: "lora_name"{})", Excerpt(key),
                                       load ? R"(, "lora_path", "load_inplace")" : ""));
  }
  AdapterWish wish;
  AISP_ASSIGN_OR_RETURN(wish.name, ReadText(body, "lora_name"));
  if (!load) return wish;
  AISP_ASSIGN_OR_RETURN(wish.path, ReadText(body, "lora_path"));
  const Value* replace = body.AsMap().Find("load_inplace");
  if (replace == nullptr) return wish;
  if (!replace->IsBool()) {
    return InvalidArgument(
        fmt::format(R"("load_inplace" is {}; give true or false)", Describe(*replace)));
  }
  wish.replace = replace->AsBool();
  return wish;
}

void Answer(HttpExchange& exchange, const Result<v1::Adapter>& adapter, std::string_view what) {
  if (!adapter) return Refuse(exchange, adapter.error());
  std::string body = R"({"message":)";
  AppendJsonString(
      fmt::format("Success: LoRA adapter '{}' {} successfully.", adapter->name(), what), &body);
  const std::pair<const char*, const std::string*> fields[] = {
      {"name", &adapter->name()}, {"path", &adapter->path()}, {"digest", &adapter->digest()}};
  for (const auto& [key, value] : fields) {
    body += fmt::format(R"(,"{}":)", key);
    AppendJsonString(*value, &body);
  }
  exchange.Respond(200, Json(), body + "}");
}

}  // namespace

bool IsLoraAdminPath(std::string_view path) { return path == kLoad || path == kUnload; }

void AnswerLoraAdmin(const std::shared_ptr<HttpExchange>& exchange, Router* router, bool allowed) {
  const HttpRequest& request = exchange->request();
  if (request.method != "POST") {
    AnswerUnknown(*exchange, {"POST"});
    return;
  }
  if (!allowed) {
    return Refuse(*exchange, {Code::kPermissionDenied,
                              "LoRA adapters cannot be loaded or unloaded while this server runs; "
                              "start all of its processes with --runtime-lora"});
  }
  const bool load = request.path == kLoad;
  Result<AdapterWish> wish = ReadWish(request.body, load);
  if (!wish) return Refuse(*exchange, wish.error());
  if (!load) return Answer(*exchange, router->UnloadAdapter(wish->name), "removed");
  router->LoadAdapter(std::move(*wish), [exchange](const Result<v1::Adapter>& adapter) {
    if (exchange->alive()) Answer(*exchange, adapter, "added");
  });
}

}  // namespace aisp
