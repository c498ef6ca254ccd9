#include "config/user_folders.h"

#include <cstdlib>
#include <utility>

namespace aisp {

std::string UserCacheFolder() {
  constexpr std::pair<const char*, const char*> kPlaces[] = {{"XDG_CACHE_HOME", "/aisp"},
                                                             {"HOME", "/.cache/aisp"}};
  for (const auto& [variable, below] : kPlaces) {
    const char* value = std::getenv(variable);
    if (value != nullptr && value[0] == '/') return std::string(value) + below;
  }
  return "";
}

}  // namespace aisp
