// Sanitizers slow a build down several times over: what a test holds in seconds is multiplied by
// this there, so that all tests can run under them.
#pragma once

namespace aisp {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kSlowerUnderSanitizers = 20;
#else
inline constexpr int kSlowerUnderSanitizers = 1;
#endif

}  // namespace aisp
