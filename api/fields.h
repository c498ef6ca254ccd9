// Reads and checks the fields of one JSON object. For api/ only.
//
// Errors are sticky: after the first, all further calls do nothing, so a parser reads all its
// fields and checks once. A field that is absent or null leaves its target unchanged. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "common/ids.h"
#include "text/value.h"

namespace aisp {

class Fields {
 public:
  // `prefix` precedes the names in errors: "messages[3].".
  explicit Fields(const Value::Map* map, std::string prefix = {})
      : map_(map), prefix_(std::move(prefix)) {}

  // Null when absent or null, or after an error.
  const Value* Find(std::string_view name) const;

  void Bool(std::string_view name, bool* out);
  void String(std::string_view name, size_t max_bytes, std::string* out);
  void Int(std::string_view name, int64_t min, int64_t max, int64_t* out);
  template <typename T>
  void IntInto(std::string_view name, int64_t min, int64_t max, T* out) {
    int64_t value = 0;
    const bool given = Find(name) != nullptr;
    Int(name, min, max, &value);
    if (given && ok()) *out = static_cast<T>(value);
  }
  // Accepts [min, max], or (min, max] with `min_excluded`.
  void Number(std::string_view name, double min, double max, bool min_excluded, double* out);
  void Float(std::string_view name, double min, double max, float* out, bool min_excluded = false);
  // A list of token ids, each in [0, vocab_size), or only >= 0 when vocab_size is 0.
  void TokenIds(std::string_view name, size_t max_count, int32_t vocab_size,
                std::vector<TokenId>* out);
  // A string or a list of non-empty strings.
  void Strings(std::string_view name, size_t max_count, size_t max_bytes,
               std::vector<std::string>* out);
  // The names in the object that were never looked up.
  std::vector<std::string> Unread() const;
  const Value::Map* Object(std::string_view name);
  const Value::List* List(std::string_view name, size_t max_count);

  // Sets the error "`name` must be `what`, but is <value>".
  void Wrong(std::string_view name, const Value& value, std::string_view what);
  void Refuse(std::string_view name, std::string message);
  bool ok() const { return !error_; }
  const std::string& prefix() const { return prefix_; }
  tl::unexpected<ApiError> error() const { return tl::unexpected(*error_); }
  void SetError(const ApiError& error) {
    if (!error_) error_ = error;
  }

 private:
  const Value::Map* map_;
  const std::string prefix_;
  mutable std::vector<const Value*> read_;
  std::optional<ApiError> error_;
};

// Reads one token id; false when the value is not one.
bool ReadTokenId(const Value& value, int32_t vocab_size, TokenId* out);
// "a token id from 0 to 49151" or "a token id, not negative".
std::string TokenIdRange(int32_t vocab_size);

}  // namespace aisp
