// Sanitizers slow a build down several times: time limits of tests are multiplied by this factor
// there.
#pragma once

namespace aisp {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlowerUnderSanitizers = 20;
#else
inline constexpr int kSlowerUnderSanitizers = 1;
#endif

}  // namespace aisp
