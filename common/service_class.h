// Classes of service: how soon an answer is wanted. Interactive requests meet their latency targets
// or are refused. The others wait for capacity that interactive requests leave unused, and yield to
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace aisp {

// A smaller class goes before a greater one.
enum class ServiceClass : uint8_t { kInteractive, kBatch, kBestEffort };

// The names that clients use, in the order of the enum.
inline constexpr std::array<std::string_view, 3> kServiceClassNames = {"interactive", "batch",
                                                                       "best-effort"};

inline constexpr std::string_view ServiceClassName(ServiceClass service_class) {
  return kServiceClassNames[static_cast<size_t>(service_class)];
}

inline constexpr std::optional<ServiceClass> ServiceClassNamed(std::string_view name) {
  for (size_t i = 0; i < kServiceClassNames.size(); ++i) {
    if (kServiceClassNames[i] == name) return static_cast<ServiceClass>(i);
  }
  return std::nullopt;
}

// Whether this class yields to interactive requests.
inline constexpr bool Yields(ServiceClass service_class) {
  return service_class != ServiceClass::kInteractive;
}

}  // namespace aisp
