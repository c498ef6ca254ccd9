// Fault: what an error is due to. It decides which requests end and whether another worker may
// retry.
//
//   kRequest  the request itself: only this request ends, and nobody retries it
//   kStep     one step on a healthy device: the request at fault is isolated and ends
//   kDevice   the device is lost: its worker becomes unready, its requests move to another
//   kPeer     another process is gone, full or silent: its requests move to another
//
// Plain values: any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/result.h"

namespace aisp {

enum class Fault : uint8_t { kRequest = 0, kStep = 1, kDevice = 2, kPeer = 3 };

// Whether another worker may retry the request.
constexpr bool MayRetry(Fault fault) { return fault != Fault::kRequest; }

// The fault implied by the code alone, for errors that do not carry one.
constexpr Fault FaultOf(Code code) {
  const bool peer =
      code == Code::kUnavailable || code == Code::kResourceExhausted || code == Code::kAborted;
  return peer ? Fault::kPeer : Fault::kRequest;
}

// For an error of a whole step: bad input or lack of memory is kStep, everything else kDevice.
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
