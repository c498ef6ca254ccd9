#include "hub/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr int kMaxRedirects = 5;
constexpr long kSlowBytesPerSecond = 1024;  // slower than this for timeout_s counts as stalled
constexpr size_t kMaxHeaderBytes = 64 * 1024;
constexpr size_t kMaxErrorBody = 1024;

void InitCurl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

// "https://host:443", lower case; "" if not an http(s) URL.
std::string OriginOf(const std::string& url) {
  CURLU* parsed = curl_url();
  std::string origin;
  if (curl_url_set(parsed, CURLUPART_URL, url.c_str(), 0) == CURLUE_OK) {
    for (const CURLUPart part : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
      char* text = nullptr;
      if (curl_url_get(parsed, part, &text, CURLU_DEFAULT_PORT) == CURLUE_OK)
        origin += std::string(origin.empty() ? "" : ":") + text;
      curl_free(text);
    }
  }
  curl_url_cleanup(parsed);
  origin = ToLowerAscii(origin);
  return origin.starts_with("http:") || origin.starts_with("https:") ? origin : "";
}

// The URL without its query, which may hold a signature.
std::string Shown(const std::string& url) { return url.substr(0, url.find('?')); }

}  // namespace

std::string HubReply::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

struct HubHttp::Impl {
  Impl(const HubOptions& o, std::function<bool()> c)
      : options(o), cancelled(std::move(c)), origin(OriginOf(o.endpoint)), curl(curl_easy_init()) {}
  ~Impl() { curl_easy_cleanup(curl); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool success() const { return reply.status == 200 || reply.status == 206; }
  bool OnHeader(std::string_view line);
  bool OnBytes(std::string_view bytes);
  curl_slist* SetOptions(const HubQuery& q, const std::string& url);
  Result<HubReply> Once(const HubQuery& q, const std::string& url);
  // The URL that this answer redirects to; "": none.
  Result<std::string> Redirect(const HubQuery& q);

  const HubOptions options;
  const std::function<bool()> cancelled;
  const std::string origin;
  CURL* const curl;
  // Of the current transfer.
  const HubQuery* query = nullptr;
  HubReply reply;
  Status said;  // set by a callback
  size_t header_bytes = 0;
  bool head_given = false;
  std::array<char, CURL_ERROR_SIZE> reason{};  // curl's error text
};

bool HubHttp::Impl::OnHeader(std::string_view line) {
  header_bytes += line.size();
  if (header_bytes > kMaxHeaderBytes) {
    said = Unavailable(fmt::format("more than {} bytes of headers", kMaxHeaderBytes));
    return false;
  }
  if (line.starts_with("HTTP/")) {  // a new head follows a 100 or a proxy's answer
    reply.headers.clear();
    return true;
  }
  const size_t colon = line.find(':');
  if (colon != std::string_view::npos)
    reply.headers[ToLowerAscii(Trim(line.substr(0, colon)))] = Trim(line.substr(colon + 1));
  return true;
}

bool HubHttp::Impl::OnBytes(std::string_view bytes) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  reply.status = static_cast<int>(status);
  if (!success()) {
    reply.error_body +=
        bytes.substr(0, kMaxErrorBody - std::min(kMaxErrorBody, reply.error_body.size()));
    return true;
  }
  if (!head_given && query->on_head) said = query->on_head(reply);
  head_given = true;
  if (said && query->on_bytes) said = query->on_bytes(bytes);
  return said.has_value();
}

curl_slist* HubHttp::Impl::SetOptions(const HubQuery& q, const std::string& url) {
  curl_easy_reset(curl);
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_NOBODY, q.head ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(options.timeout_s));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.timeout_s));
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "aisp");
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L * 1024);
  reason[0] = 0;
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason.data());
  if (!options.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options.ca_file.c_str());
  // curl's callbacks are plain functions that get `this`.
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(
      curl, CURLOPT_HEADERFUNCTION,
      +[](char* data, size_t size, size_t count, void* self) -> size_t {
        return static_cast<Impl*>(self)->OnHeader({data, size * count}) ? size * count : 0;
      });
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(
      curl, CURLOPT_WRITEFUNCTION,
      +[](char* data, size_t size, size_t count, void* self) -> size_t {
        return static_cast<Impl*>(self)->OnBytes({data, size * count}) ? size * count : 0;
      });
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
  curl_easy_setopt(
      curl, CURLOPT_XFERINFOFUNCTION,
      +[](void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) -> int {
        return static_cast<Impl*>(self)->cancelled() ? 1 : 0;
      });
  curl_slist* headers = nullptr;
  // No compression: the hash is of the stored bytes.
  headers = curl_slist_append(headers, "Accept-Encoding: identity");
  if (!options.token.empty() && OriginOf(url) == origin)
    headers = curl_slist_append(headers, ("Authorization: Bearer " + options.token).c_str());
  if (q.ranged) {
    const std::string to = q.to == 0 ? "" : std::to_string(q.to - 1);
    headers = curl_slist_append(headers, fmt::format("Range: bytes={}-{}", q.from, to).c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  return headers;
}

Result<HubReply> HubHttp::Impl::Once(const HubQuery& q, const std::string& url) {
  query = &q;
  reply = HubReply();
  reply.url = url;
  said = {};
  header_bytes = 0;
  head_given = false;
  curl_slist* headers = SetOptions(q, url);
  const CURLcode code = curl_easy_perform(curl);
  curl_slist_free_all(headers);
  if (cancelled()) return Fail(Code::kCancelled, "stopped");
  if (!said) return tl::unexpected(said.error());
  if (code == CURLE_OPERATION_TIMEDOUT) {
    return Fail(Code::kDeadlineExceeded,
                fmt::format("{}: less than {} bytes a second for {} s (HF_HUB_DOWNLOAD_TIMEOUT)",
                            Shown(url), kSlowBytesPerSecond, options.timeout_s));
  }
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    return FailedPrecondition(fmt::format(
        "{}: its certificate is not trusted ({}); SSL_CERT_FILE names a PEM file of authorities to "
        "trust instead of {}",
        Shown(url), reason.data(),
        options.ca_file.empty() ? "the system's" : "'" + options.ca_file + "'"));
  }
  if (code != CURLE_OK)
    return Unavailable(fmt::format("{}: {}", Shown(url), curl_easy_strerror(code)));
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  reply.status = static_cast<int>(status);
  if (success() && !head_given && query->on_head) AISP_RETURN_IF_ERROR(query->on_head(reply));
  return reply;
}

Result<std::string> HubHttp::Impl::Redirect(const HubQuery& q) {
  char* where = nullptr;
  curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &where);
  if (where == nullptr || reply.status < 300 || reply.status > 399) return std::string();
  if (q.head && !reply.Header("x-linked-etag").empty()) return std::string();
  std::string to = where;
  const std::string target = OriginOf(to);
  const bool downgrade = reply.url.starts_with("https:") && !target.starts_with("https:");
  if (target.empty() || downgrade) {
    return FailedPrecondition(
        fmt::format("{} redirects to {}, which is not {}; that is not followed", Shown(reply.url),
                    Shown(to), downgrade ? "https" : "http or https"));
  }
  return to;
}

HubHttp::HubHttp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HubHttp::~HubHttp() = default;

Result<std::unique_ptr<HubHttp>> HubHttp::Create(const HubOptions& options,
                                                 std::function<bool()> cancelled) {
  InitCurl();
  auto impl = std::make_unique<Impl>(options, std::move(cancelled));
  if (impl->curl == nullptr) return Internal("libcurl gives no handle");
  if (impl->origin.empty()) {
    return InvalidArgument(fmt::format("HF_ENDPOINT '{}' is no URL; https://huggingface.co is one",
                                       Excerpt(options.endpoint)));
  }
  return std::unique_ptr<HubHttp>(new HubHttp(std::move(impl)));
}

Result<HubReply> HubHttp::Perform(const HubQuery& query) {
  std::string url = query.url;
  std::string commit;  // named by the hub before it redirected
  for (int i = 0; i <= kMaxRedirects; ++i) {
    AISP_ASSIGN_OR_RETURN(HubReply reply, impl_->Once(query, url));
    if (commit.empty()) commit = reply.Header("x-repo-commit");
    AISP_ASSIGN_OR_RETURN(std::string next, impl_->Redirect(query));
    if (next.empty()) {
      if (!commit.empty()) reply.headers["x-repo-commit"] = commit;
      return reply;
    }
    url = std::move(next);
  }
  return Unavailable(fmt::format("{}: more than {} redirects", Shown(query.url), kMaxRedirects));
}

}  // namespace aisp
