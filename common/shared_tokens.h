// SharedTokens: an immutable list of tokens with shared ownership, such as the prompt of all
// choices of one request. Copies are cheap; any thread may hold one.
#pragma once

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace aisp {

class SharedTokens {
 public:
  SharedTokens() : SharedTokens(std::vector<TokenId>()) {}
  // Implicit, so that callers can pass a plain vector.
  SharedTokens(std::vector<TokenId> tokens)  // NOLINT(google-explicit-constructor)
      : tokens_(std::make_shared<const std::vector<TokenId>>(std::move(tokens))) {}
  SharedTokens(std::initializer_list<TokenId> tokens)
      : SharedTokens(std::vector<TokenId>(tokens)) {}

  const std::vector<TokenId>& get() const { return *tokens_; }
  operator const std::vector<TokenId>&() const {  // NOLINT(google-explicit-constructor)
    return *tokens_;
  }
  auto begin() const { return tokens_->begin(); }
  auto end() const { return tokens_->end(); }
  size_t size() const { return tokens_->size(); }
  bool empty() const { return tokens_->empty(); }

  // Equal for copies of the same object; two objects with equal tokens differ.
  const void* identity() const { return tokens_.get(); }

 private:
  std::shared_ptr<const std::vector<TokenId>> tokens_;
};

}  // namespace aisp
