// ConstraintCompiler: compiles the constraint of an answer before the request is placed.
// server/constraint_pool.h caches the results; any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "common.pb.h"
#include "common/result.h"
#include "constrain/constraint.h"

namespace aisp {

// Longest ending, in bytes, that force_finish may append.
inline constexpr size_t kLongestEnding = 16 << 10;

class ConstraintCompiler {
 public:
  virtual ~ConstraintCompiler() = default;
  // INVALID_ARGUMENT names what is wrong or unsupported, by keyword and JSON pointer;
  // DEADLINE_EXCEEDED when compilation takes too long. `tenant`: owner of the cache entry, for fair
  // eviction.
  virtual Result<std::shared_ptr<Constraint>> Get(const v1::Constraint& constraint,
                                                  const std::string& tenant) = 0;
  // Whether the compiled constraint is cached, so that Get returns at once.
  virtual bool Keeps(const v1::Constraint& constraint) = 0;
};

}  // namespace aisp
