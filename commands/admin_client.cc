#include "commands/admin_client.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <vector>

#include "common/strings.h"
#include "net/host_port.h"

namespace aisp {

namespace {

// Removes control characters (C0, DEL, and C1 in UTF-8) from names and reasons, which terminals
// would obey.
void CleanText(std::string* text) {
  for (size_t i = 0; i < text->size(); ++i) {
    const auto c = static_cast<unsigned char>((*text)[i]);
    const bool c1 = c == 0xC2 && i + 1 < text->size() &&
                    (static_cast<unsigned char>((*text)[i + 1]) & 0xE0) == 0x80;
    if (c1) text->erase(i + 1, 1);
    if (c < 0x20 || c == 0x7F || c1) (*text)[i] = '?';
  }
}

// Iterative, since the server controls the nesting depth.
void CleanTexts(nlohmann::json* root) {
  std::vector<nlohmann::json*> left{root};
  while (!left.empty()) {
    nlohmann::json* const value = left.back();
    left.pop_back();
    if (value->is_string()) CleanText(value->get_ptr<std::string*>());
    if (!value->is_structured()) continue;
    for (nlohmann::json& item : *value) left.push_back(&item);
  }
}

}  // namespace

Result<AdminClient> AdminClient::Create(std::string_view url, const std::string& key_file) {
  AdminClient client;
  const std::string_view given = url;
  constexpr std::string_view kHttp = "http://";
  if (url.starts_with(kHttp)) url.remove_prefix(kHttp.size());
  while (url.ends_with('/')) url.remove_suffix(1);
  const SplitAddress split = SplitHostPort(url);
  const auto port = split.port ? ParseIntInRange(*split.port, 1, UINT16_MAX) : Result<int64_t>(80);
  if (!port || url.empty())
    return InvalidArgument(fmt::format("--router '{}' is no URL such as http://host:8082", given));
  client.host_ = std::string(split.host);
  client.port_ = static_cast<uint16_t>(*port);
  if (key_file.empty()) return client;
  std::ifstream in(key_file);
  std::string key;
  if (!std::getline(in, key)) return NotFound(fmt::format("cannot read a key from '{}'", key_file));
  client.headers_.emplace_back("authorization", fmt::format("Bearer {}", Trim(key)));
  return client;
}

Result<AdminClient> AdminClient::FromFlags(const CommandLine& line) {
  return Create(line.Extra("router", "http://127.0.0.1:8082"), line.Extra("key-file"));
}

Result<HttpClient> AdminClient::Connect() const {
  Result<HttpClient> http = HttpClient::Connect(host_, port_, timeout_);
  if (http) return http;
  return Fail(
      http.error().code,
      fmt::format("no router answers at its admin port {} ({}); name the port with --router "
                  "URL, the router's log has it",
                  address(), http.error().message));
}

Result<AdminClient::Answer> AdminClient::Ask(std::string_view method, const std::string& target,
                                             const std::string& body) const {
  AISP_ASSIGN_OR_RETURN(HttpClient http, Connect());
  AISP_ASSIGN_OR_RETURN(const HttpAnswer answer, http.Request(method, target, body, headers_));
  Answer out;
  out.status = answer.status;
  out.body = nlohmann::json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (!out.body.is_object())
    return Fail(Code::kUnavailable,
                fmt::format("{} answers {} without JSON; is it a router of aisp?", address(),
                            answer.status));
  CleanTexts(&out.body);
  const auto error = out.body.find("error");
  if (error == out.body.end() || !error->is_object()) return out;
  const auto message = error->find("message");
  if (message != error->end() && message->is_string()) out.message = message->get<std::string>();
  return out;
}

Result<int64_t> AdminClient::Date() const {
  AISP_ASSIGN_OR_RETURN(HttpClient http, Connect());
  AISP_ASSIGN_OR_RETURN(const HttpAnswer answer, http.Request("GET", "/health"));
  std::tm date{};
  const std::string text(answer.Header("date"));
  if (strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date) == nullptr)
    return Fail(Code::kUnavailable, fmt::format("{} says no date", address()));
  return int64_t{timegm(&date)};
}

Result<nlohmann::json> AdminClient::Get(const std::string& target) const {
  AISP_ASSIGN_OR_RETURN(Answer answer, Ask("GET", target));
  if (answer.status < 300) return std::move(answer.body);
  return Fail(answer.status == 404 ? Code::kNotFound : Code::kFailedPrecondition,
              answer.message.empty() ? fmt::format("{} answers {}", address(), answer.status)
                                     : answer.message);
}

}  // namespace aisp
