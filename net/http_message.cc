#include "net/http_message.h"

#include <algorithm>
#include <charconv>

#include "common/strings.h"

namespace aisp {
namespace {

void AppendField(std::string_view name, std::string_view value, std::string* out) {
  const auto append_clean = [out](std::string_view text) {
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      out->push_back(byte < 0x20 || byte == 0x7F ? ' ' : c);
    }
  };
  append_clean(name);
  out->append(": ");
  append_clean(value);
  out->append("\r\n");
}

void AppendNumber(size_t number, int base, std::string* out) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number, base).ptr;
  out->append(digits, end);
}

void AppendDate(std::time_t now_s, std::string* out) {
  std::tm utc{};
  gmtime_r(&now_s, &utc);
  char text[64];
  const size_t size = std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  AppendField("Date", std::string_view(text, size), out);
}

}  // namespace

std::string_view HttpReason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return status < 400 ? "OK" : "Error";
  }
}

bool StatusHasBody(int status) { return status >= 200 && status != 204 && status != 304; }

void AppendHead(const HttpHead& head, std::string* out) {
  out->append("HTTP/1.1 ");
  AppendNumber(static_cast<size_t>(head.status), 10, out);
  out->push_back(' ');
  out->append(HttpReason(head.status));
  out->append("\r\n");
  if (head.headers != nullptr) {
    for (const auto& [name, value] : *head.headers) AppendField(name, value, out);
  }
  if (!head.request_id.empty()) AppendField("x-request-id", head.request_id, out);
  AppendDate(head.now_s, out);
  if (StatusHasBody(head.status)) {
    if (head.framing == BodyFraming::kChunked) out->append("Transfer-Encoding: chunked\r\n");
    if (head.framing == BodyFraming::kLength) {
      out->append("Content-Length: ");
      AppendNumber(head.content_length, 10, out);
      out->append("\r\n");
    }
  }
  if (head.close) {
    out->append("Connection: close\r\n");
  } else if (head.http_1_0) {
    out->append("Connection: keep-alive\r\n");
  }
  out->append("\r\n");
}

void AppendChunk(std::string_view data, std::string* out) {
  if (data.empty()) return;
  AppendNumber(data.size(), 16, out);
  out->append("\r\n");
  out->append(data);
  out->append("\r\n");
}

std::optional<HttpTarget> SplitTarget(std::string_view method, std::string_view target) {
  // Clients never send a fragment; a program that took it for part of the path would differ.
  if (target.find('#') != std::string_view::npos) return std::nullopt;
  std::string_view host;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!EqualsIgnoreCaseAscii(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    host = target.substr(0, target.find_first_of("/?"));
    if (host.empty() || host.front() == ':' || !IsHostText(host)) return std::nullopt;
    target.remove_prefix(host.size());
    break;
  }
  const size_t mark = std::min(target.size(), target.find('?'));
  const bool may_be_all = method == "OPTIONS" && mark == target.size();
  std::string_view path = target.substr(0, mark);
  if (!host.empty() && path.empty()) path = may_be_all ? "*" : "/";
  if (!path.starts_with('/') && !(may_be_all && path == "*")) return std::nullopt;
  const std::string_view query = target.substr(std::min(mark + 1, target.size()));
  return HttpTarget{std::string(path), std::string(query), std::string(host)};
}

bool IsHostText(std::string_view text) {
  // "[IPv6 address]" or a name, then optionally a port.
  size_t end = std::min(text.find(':'), text.size());
  std::string_view known = "-._~%!$&'()*+,;=";
  if (text.starts_with('[')) {
    end = std::min(text.find(']'), text.size() - 1) + 1;
    if (end < 3 || text[end - 1] != ']') return false;
    known = "-._~%:";
  }
  const std::string_view port = text.substr(end);
  if (port.size() > 1 && !ParseIntInRange(port.substr(1), 0, 65535)) return false;
  if (!port.empty() && port.front() != ':') return false;
  const bool v6 = text.starts_with('[');
  const std::string_view name = v6 ? text.substr(1, end - 2) : text.substr(0, end);
  return std::all_of(name.begin(), name.end(), [known](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           known.find(c) != std::string_view::npos;
  });
}

}  // namespace aisp
