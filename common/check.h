// AISP_CHECK: an invariant of the program itself. Prints file, line, condition and message to
// stderr, then aborts. Never for input, a peer's message or anything else that can happen to a
// correct program: those are Result<T>.
#pragma once

#include <string>
#include <string_view>

namespace aisp {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

}  // namespace aisp

#define AISP_CHECK(cond)                                                  \
  do {                                                                    \
    if (!(cond)) [[unlikely]]                                             \
      ::aisp::CheckFailed(__FILE__, __LINE__, #cond, std::string_view()); \
  } while (0)

#define AISP_CHECK_MSG(cond, message)                            \
  do {                                                           \
    if (!(cond)) [[unlikely]]                                    \
      ::aisp::CheckFailed(__FILE__, __LINE__, #cond, (message)); \
  } while (0)
