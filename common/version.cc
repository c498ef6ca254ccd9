#include "common/version.h"

namespace aisp {

std::string_view Version() { return AISP_VERSION; }

}  // namespace aisp
