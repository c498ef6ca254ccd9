#include "server/log_setup.h"

#include <utility>

namespace aisp {

LogOptions LogOptionsOf(const Config& config, std::string role, std::string id) {
  LogOptions o;
  const std::string& level = config.log.level;
  o.level = level == "debug"     ? LogLevel::kDebug
            : level == "warning" ? LogLevel::kWarning
            : level == "error"   ? LogLevel::kError
                                 : LogLevel::kInfo;
  o.format = config.log.format == "json" ? LogFormat::kJson : LogFormat::kText;
  o.identity = {std::move(role), std::move(id)};
  return o;
}

}  // namespace aisp
