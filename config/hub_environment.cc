#include "config/hub_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "common/strings.h"

namespace aisp {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : std::string(Trim(value));
}

bool IsOn(const char* name) {
  const std::string value = ToLowerAscii(Variable(name));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

// Expands a leading "~/", as a shell does.
std::string Expanded(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  return Variable("HOME") + path.substr(1);
}

std::string HubHome() {
  if (const std::string home = Variable("HF_HOME"); !home.empty()) return Expanded(home);
  if (const std::string cache = Variable("XDG_CACHE_HOME"); !cache.empty())
    return Expanded(cache) + "/huggingface";
  const std::string home = Variable("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface";
}

std::string CacheFolder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string folder = Variable(name); !folder.empty()) return Expanded(folder);
  const std::string home = HubHome();
  return home.empty() ? "" : home + "/hub";
}

Result<std::string> Token() {
  std::string token;
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
    if (token.empty()) token = Variable(name);
  if (token.empty() && !IsOn("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
    const std::string path = Variable("HF_TOKEN_PATH");
    std::ifstream file(path.empty() ? HubHome() + "/token" : Expanded(path));
    std::getline(file, token);
    token = std::string(Trim(token));
  }
  // The token becomes part of a header, so it must be printable.
  const bool good = token.size() <= 4096 && std::all_of(token.begin(), token.end(),
                                                        [](char c) { return c > ' ' && c < 127; });
  if (good) return token;
  return InvalidArgument(
      "the token (HF_TOKEN, or the file HF_TOKEN_PATH or HF_HOME/token) holds characters that no "
      "token has, or more than 4096");
}

}  // namespace

Result<HubOptions> HubOptionsFromEnvironment() {
  HubOptions o;
  if (std::string endpoint = Variable("HF_ENDPOINT"); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    if (!endpoint.starts_with("http://") && !endpoint.starts_with("https://")) {
      return InvalidArgument(fmt::format(
          "HF_ENDPOINT '{}' is no URL; https://huggingface.co is one", Excerpt(endpoint)));
    }
    o.endpoint = endpoint;
  }
  o.cache = CacheFolder();
  AISP_ASSIGN_OR_RETURN(o.token, Token());
  o.offline = IsOn("HF_HUB_OFFLINE");
  o.ca_file = Variable("SSL_CERT_FILE");
  if (const std::string text = Variable("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    const auto seconds = ParseIntInRange(text, 1, 3600);
    if (!seconds)
      return tl::unexpected(seconds.error().WithContext("HF_HUB_DOWNLOAD_TIMEOUT, in seconds"));
    o.timeout_s = static_cast<int>(*seconds);
  }
  return o;
}

}  // namespace aisp
