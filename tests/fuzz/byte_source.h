// ByteSource: a fuzzer's bytes as the choices of a generator. After the last byte all choices are
// the first one, so every input is complete and a shorter one gives a smaller case.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace aisp {

class ByteSource {
 public:
  explicit ByteSource(std::string_view bytes) : bytes_(bytes) {}

  bool spent() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  bool Flip() { return (Byte() & 1) != 0; }
  // 0 to n - 1, of at most 256.
  size_t Below(size_t n) { return Byte() % n; }
  // Often a small number, sometimes one at the limits of a type, sometimes any.
  uint64_t Number() {
    static constexpr std::array<uint64_t, 12> kEdges = {
        0,          1,          2,          16,         255,       4095,
        0x7fffffff, 0x80000000, 0xffffffff, 1ull << 62, INT64_MAX, UINT64_MAX};
    const uint8_t how = Byte();
    if (how < 128) return how % 32;
    if (how < 192) return kEdges[how % kEdges.size()];
    uint64_t any = 0;
    std::memcpy(&any, bytes_.data(), bytes_.size() < 8 ? bytes_.size() : 8);
    bytes_.remove_prefix(bytes_.size() < 8 ? bytes_.size() : 8);
    return any;
  }
  uint32_t Number32() { return static_cast<uint32_t>(Number()); }
  int32_t Signed32() { return static_cast<int32_t>(Number()); }
  // Up to `max` bytes as they are.
  std::string_view Text(size_t max) {
    const size_t size = std::min<size_t>({Byte(), max, bytes_.size()});
    const std::string_view text = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return text;
  }
  std::string_view Rest() { return std::exchange(bytes_, std::string_view()); }
  template <typename T, size_t kN>
  const T& Pick(const T (&choices)[kN]) {
    static_assert(kN <= 256);
    return choices[Below(kN)];
  }

 private:
  std::string_view bytes_;
};

}  // namespace aisp
