// The CPU as a Device: every operation is complete when its call returns. Shareable memory is a
// memfd mapped MAP_SHARED, which other processes map through its descriptor.
#pragma once

#include <memory>

#include "kernels/device/device.h"

namespace aisp {

std::unique_ptr<Device> MakeCpuDevice();

}  // namespace aisp
