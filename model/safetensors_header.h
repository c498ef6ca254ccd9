// Parses a safetensors header alone, for a file that is not downloaded yet. Pure: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/result.h"
#include "model/safetensors.h"

namespace aisp {

// As ParseSafetensors, from the header's JSON text, which `data_bytes` of data follow; the tensors
// have no data.
Result<std::map<std::string, StoredTensor>> ParseSafetensorsHeader(std::string_view header,
                                                                   uint64_t data_bytes,
                                                                   const std::string& name);

}  // namespace aisp
