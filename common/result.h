// Result<T>: the only way in which a function of aisp reports failure.
//
// Untrusted input and expected failures are values of this type; a broken invariant is an
// AISP_CHECK (common/check.h). Codes are gRPC's canonical ones; each surface maps them to its own
// status in one place. A message names the value, the limit and what to do instead. Value types:
// any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace aisp {

enum class Code {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT" and so on, as gRPC spells them.
std::string_view CodeName(Code code);

struct Error {
  Code code = Code::kUnknown;
  std::string message;

  std::string ToString() const;
  // The same error with `context: ` before its message, such as a file or tensor name.
  Error WithContext(std::string_view context) const;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> Fail(Code code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}
inline tl::unexpected<Error> InvalidArgument(std::string m) {
  return Fail(Code::kInvalidArgument, std::move(m));
}
inline tl::unexpected<Error> NotFound(std::string m) { return Fail(Code::kNotFound, std::move(m)); }
inline tl::unexpected<Error> Unavailable(std::string m) {
  return Fail(Code::kUnavailable, std::move(m));
}
inline tl::unexpected<Error> Internal(std::string m) { return Fail(Code::kInternal, std::move(m)); }
inline tl::unexpected<Error> ResourceExhausted(std::string m) {
  return Fail(Code::kResourceExhausted, std::move(m));
}
inline tl::unexpected<Error> FailedPrecondition(std::string m) {
  return Fail(Code::kFailedPrecondition, std::move(m));
}
inline tl::unexpected<Error> Unimplemented(std::string m) {
  return Fail(Code::kUnimplemented, std::move(m));
}
inline tl::unexpected<Error> DataLoss(std::string m) { return Fail(Code::kDataLoss, std::move(m)); }

}  // namespace aisp

#define AISP_CONCAT_INNER(a, b) a##b
#define AISP_CONCAT(a, b) AISP_CONCAT_INNER(a, b)

// Returns the error of `expr` (a Result or Status) from the enclosing function.
#define AISP_RETURN_IF_ERROR(expr)                                             \
  do {                                                                         \
    auto&& aisp_status = (expr);                                               \
    if (!aisp_status) return ::tl::unexpected(std::move(aisp_status).error()); \
  } while (0)

// Use: AISP_ASSIGN_OR_RETURN(auto x, MakeX());
#define AISP_ASSIGN_OR_RETURN(decl, expr) \
  AISP_ASSIGN_OR_RETURN_IMPL(AISP_CONCAT(aisp_result_, __LINE__), decl, expr)
#define AISP_ASSIGN_OR_RETURN_IMPL(tmp, decl, expr)          \
  auto tmp = (expr);                                         \
  if (!tmp) return ::tl::unexpected(std::move(tmp).error()); \
  decl = std::move(*tmp)
