// RouterResolver: resolves routers given as "dns:HOST:PORT" to all addresses of the name in one
// family; a headless Kubernetes Service has one per pod. Resolves periodically, since replicas come
// and go, and reports changes.
//
// If a lookup fails, the last addresses are kept. Owns a thread; `on_change` runs on it, and never
// after the destructor has returned.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "common/threads.h"

namespace aisp {

class RouterResolver {
 public:
  // A host's addresses, sorted: IPv4 if there are any, else IPv6.
  using Lookup = std::function<Result<std::vector<std::string>>(const std::string& host)>;

  struct Options {
    Duration interval = std::chrono::seconds(5);
    Duration interval_unknown = std::chrono::seconds(1);  // while a name has no address yet
    Lookup lookup = &RouterResolver::SystemLookup;
  };

  // Whether any router must be resolved / the routers that need not be.
  static bool Needed(const std::vector<std::string>& routers);
  static std::vector<std::string> WithoutNames(const std::vector<std::string>& routers);

  RouterResolver(const std::vector<std::string>& routers,
                 std::function<void(const std::vector<std::string>&)> on_change);
  RouterResolver(const std::vector<std::string>& routers,
                 std::function<void(const std::vector<std::string>&)> on_change, Options options);
  ~RouterResolver();

 private:
  struct Name {
    std::string text;  // "host:port"
    std::vector<std::string> addresses = {};
    bool warned = false;
  };

  static Result<std::vector<std::string>> SystemLookup(const std::string& host);
  void Run();
  // Looks the name up; true if its addresses changed.
  bool Refresh(Name& name) const;

  const std::vector<std::string> fixed_;
  const std::function<void(const std::vector<std::string>&)> on_change_;
  const Options options_;
  std::vector<Name> names_;
  Waker stop_;
  Thread thread_;
};

}  // namespace aisp
