#include "server/invitation.h"

#include <fmt/format.h>

namespace aisp {

std::string SchemeOf(const Config& config) { return config.http.tls.on() ? "https://" : "http://"; }

std::string Invitation(const Config& config, const std::string& http, const std::string& grpc,
                       const std::string& admin, std::string_view asked_by) {
  std::string path = "completions";
  std::string ask = R"("prompt": "Once upon a time", "max_tokens": 100)";
  if (asked_by == kAskedByMessages) {
    path = "chat/completions";
    ask = R"("messages": [{"role": "user", "content": "Tell me a story about a duck."}])";
  } else if (asked_by == kAskedByIds) {
    ask = R"("prompt": [1, 2, 3], "max_tokens": 100, "return_token_ids": true)";
  }
  const bool tls = config.http.tls.on();
  const std::string page_scheme = tls && config.router.admin == "key" ? "https://" : "http://";
  const bool keys = !config.http.api_keys.empty() || !config.http.api_keys_file.empty();
  return fmt::format(
      "\nServing on {}{}{}{} (Ctrl-C stops everything). Try{}:\n\n"
      "  curl -N{} {}{}/v1/{} -H 'content-type: application/json' \\\n{}"
      "    -d '{{\"stream\": true, {}}}'\n\n",
      SchemeOf(config), http, grpc.empty() ? "" : " and gRPC on " + grpc,
      admin.empty() ? "" : ", workers and load on " + page_scheme + admin + "/",
      keys ? ", with one of your keys in AISP_API_KEY" : "", tls ? " --cacert YOUR_CA.pem" : "",
      SchemeOf(config), http, path,
      keys ? "    -H \"authorization: Bearer $AISP_API_KEY\" \\\n" : "", ask);
}

}  // namespace aisp
