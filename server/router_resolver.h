// RouterResolver: where the routers are, when they are given as "dns:HOST:PORT": every address of
// one family that the name has, as a headless Service of Kubernetes has one for each pod. Looks the
// names up again and again, because replicas come and go, and says when the set has changed.
//
// A name that cannot be looked up keeps the addresses that it had. Owns a thread; `on_change` runs
// on it, and not after the destructor has returned.
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
  // Addresses of a host, of IPv4 if there are any, else of IPv6; in order.
  using Lookup = std::function<Result<std::vector<std::string>>(const std::string& host)>;

  struct Options {
    Duration interval = std::chrono::seconds(5);
    Duration interval_unknown = std::chrono::seconds(1);  // while a name has no address at all
    Lookup lookup = &RouterResolver::SystemLookup;
  };

  // Whether any of them is to be looked up; those that are not.
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
  // Whether the name has other addresses now.
  bool Refresh(Name& name) const;

  const std::vector<std::string> fixed_;
  const std::function<void(const std::vector<std::string>&)> on_change_;
  const Options options_;
  std::vector<Name> names_;
  Waker stop_;
  Thread thread_;
};

}  // namespace aisp
