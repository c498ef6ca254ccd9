// Arena: memory for values that are freed in reverse order of allocation. Runs no destructors. One
// thread at a time.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace aisp {

class Arena {
 public:
  struct Mark {
    size_t block = 0, used = 0;
  };

  Mark mark() const { return {block_, used_}; }
  // Frees everything allocated since `mark`, keeping the memory for later allocations.
  void Reset(const Mark& mark) {
    block_ = mark.block;
    used_ = mark.used;
  }
  size_t bytes() const { return block_ * kBlockBytes + used_; }

  template <typename T>
  T* New(size_t count = 1) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
    return static_cast<T*>(Take(sizeof(T) * count));
  }
  template <typename T>
  T* Copy(const T& value) {
    T* out = New<T>();
    std::memcpy(static_cast<void*>(out), &value, sizeof(T));
    return out;
  }

 private:
  static constexpr size_t kBlockBytes = 64 * 1024;

  void* Take(size_t bytes) {
    bytes = (bytes + 15) & ~size_t{15};
    if (blocks_.empty() || used_ + bytes > sizes_[block_]) {
      if (!blocks_.empty()) ++block_;
      used_ = 0;
      if (block_ < blocks_.size() && sizes_[block_] < bytes)
        blocks_.resize(block_), sizes_.resize(block_);
      if (block_ == blocks_.size()) {
        sizes_.push_back(bytes > kBlockBytes ? bytes : kBlockBytes);
        blocks_.push_back(std::make_unique<std::byte[]>(sizes_.back()));
      }
    }
    void* out = blocks_[block_].get() + used_;
    used_ += bytes;
    return out;
  }

  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::vector<size_t> sizes_;
  size_t block_ = 0, used_ = 0;
};

}  // namespace aisp
