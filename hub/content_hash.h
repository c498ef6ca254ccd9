// ContentHash: the hash by which the hub names a file's content, computed while the content comes:
// SHA-256 for what lies in LFS, and Git's SHA-1 of a blob for small files. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp {

class ContentHash {
 public:
  // By the length of the name: 64 or 40 hexadecimal digits. `size` bytes will come; Git's hash
  // begins with their number. INVALID_ARGUMENT for any other name.
  static Result<ContentHash> For(std::string_view name, uint64_t size);

  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;
  ~ContentHash();

  void Update(std::string_view bytes);
  // Ends it: lower-case hexadecimal digits. Once.
  std::string Hex();

 private:
  struct Impl;
  explicit ContentHash(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
