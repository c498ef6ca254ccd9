#include "kvcache/transport/ucx_open.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr const char* kLibrary = "libaisp_ucx.so";

constexpr std::pair<const char*, const char*> kDefaults[] = {
    // Keep UCX out of the process's signal handlers.
    {"UCX_HANDLE_ERRORS", "none"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    // The owner fetches, or copies received fragments: no other process writes its memory.
    {"UCX_RNDV_SCHEME", "get_zcopy"},
    // Detect a dead peer within seconds, even when nothing is sent.
    {"UCX_KEEPALIVE_INTERVAL", "2s"},
};

std::string LastError() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

Result<void*> OpenLibrary(std::span<const std::string> folders) {
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + kLibrary;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr)
      return handle;
    return NotFound(
        fmt::format("the lane ucx does not load: {}; install UCX (libucx0)", LastError()));
  }
  return NotFound(
      fmt::format("the lane ucx needs {}, which is not there (looked in {}); build where UCX's "
                  "headers are (libucx-dev), or leave ucx out of worker.transports",
                  kLibrary, Join(std::vector<std::string>(folders.begin(), folders.end()), ", ")));
}

}  // namespace

Result<std::unique_ptr<KvTransport>> OpenUcxTransport(const UcxOptions& options,
                                                      std::span<const std::string> folders) {
  constexpr int kKeepTheUsers = 0;
  for (const auto& [name, value] : kDefaults) setenv(name, value, kKeepTheUsers);
  AISP_ASSIGN_OR_RETURN(void* library, OpenLibrary(folders));
  const auto abi = reinterpret_cast<UcxAbiFn>(dlsym(library, kUcxAbiSymbol));
  const auto open = reinterpret_cast<UcxOpenFn>(dlsym(library, kUcxOpenSymbol));
  if (abi == nullptr || open == nullptr || abi() != kUcxAbi) {
    return FailedPrecondition(fmt::format(
        "{} belongs to another build of this program; install both from one build", kLibrary));
  }
  Result<std::unique_ptr<KvTransport>> transport = Internal("the ucx transport did not answer");
  open(&options, &transport);
  return transport;
}

}  // namespace aisp
