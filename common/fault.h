// Fault: whose fault an error is. It decides who suffers and whether somebody else may try the same
// request.
//
//   kRequest  what one request asked for or brought about: it ends, nobody else notices, nobody
//   tries it again kStep     one step failed on a device that lives: the step's requests are told
//   apart, the culprit ends kDevice   the device failed for good: its worker turns unready, its
//   requests go on elsewhere kPeer     another process is gone, full or silent: its requests go on
//   elsewhere
//
// Plain values: any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/result.h"

namespace aisp {

enum class Fault : uint8_t { kRequest = 0, kStep = 1, kDevice = 2, kPeer = 3 };

// Whether another worker may try what failed here.
constexpr bool MayRetry(Fault fault) { return fault != Fault::kRequest; }

// By the code alone, where whoever made the error did not say.
constexpr Fault FaultOf(Code code) {
  const bool peer =
      code == Code::kUnavailable || code == Code::kResourceExhausted || code == Code::kAborted;
  return peer ? Fault::kPeer : Fault::kRequest;
}

// Of an error of a whole step: what a step asked for (its input, memory for it) is the step's,
// everything else the device's.
constexpr Fault FaultOfStep(Code code) {
  const bool step = code == Code::kInvalidArgument || code == Code::kOutOfRange ||
                    code == Code::kResourceExhausted || code == Code::kFailedPrecondition;
  return step ? Fault::kStep : Fault::kDevice;
}

constexpr std::string_view FaultName(Fault fault) {
  switch (fault) {
    case Fault::kRequest:
      return "request";
    case Fault::kStep:
      return "step";
    case Fault::kDevice:
      return "device";
    case Fault::kPeer:
      return "peer";
  }
  return "unknown";
}

}  // namespace aisp
