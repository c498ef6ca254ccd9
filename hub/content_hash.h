// ContentHash: the hash by which the hub names a file's content, computed incrementally: SHA-256
// for LFS files, Git's SHA-1 of a blob for small files. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp {

class ContentHash {
 public:
  // Selects the hash by the length of `name`: 64 or 40 hexadecimal digits, else INVALID_ARGUMENT.
  // `size`: bytes that will follow, which Git's hash includes.
  static Result<ContentHash> For(std::string_view name, uint64_t size);

  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;
  ~ContentHash();

  void Update(std::string_view bytes);
  // Finishes: lower-case hexadecimal digits. Call once.
  std::string Hex();

 private:
  struct Impl;
  explicit ContentHash(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
