// ConstraintCompiler: checks what an answer is to be constrained to before the request is placed.
// server/constraint_pool.h keeps what was compiled; any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "common.pb.h"
#include "common/result.h"
#include "constrain/constraint.h"

namespace aisp {

// Bytes of an ending that an answer may be held to (force_finish).
inline constexpr size_t kLongestEnding = 16 << 10;

class ConstraintCompiler {
 public:
  virtual ~ConstraintCompiler() = default;
  // INVALID_ARGUMENT names what is wrong or cannot be enforced, by keyword and JSON pointer; or the
  // deadline that passed. `tenant`: who asks, and whose are forgotten first where it has many.
  virtual Result<std::shared_ptr<Constraint>> Get(const v1::Constraint& constraint,
                                                  const std::string& tenant) = 0;
  // It was compiled before and is kept: Get takes no time.
  virtual bool Keeps(const v1::Constraint& constraint) = 0;
};

}  // namespace aisp
