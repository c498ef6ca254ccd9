// Headers of safetensors files: no tensor reaches beyond the file.
#include <cstring>
#include <vector>

#include "common/check.h"
#include "model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {

void FuzzOne(std::string_view input) {
  // A copy of its own size, so that the sanitizer sees a read past its end.
  const std::vector<std::byte> file(
      reinterpret_cast<const std::byte*>(input.data()),
      reinterpret_cast<const std::byte*>(input.data()) + input.size());
  const auto tensors = ParseSafetensors(file, "input");
  if (!tensors) {
    AISP_CHECK(!tensors.error().message.empty());
    return;
  }
  for (const auto& [name, tensor] : *tensors) {
    AISP_CHECK(tensor.data.size() <= file.size());
    if (!tensor.data.empty()) {
      AISP_CHECK(tensor.data.data() >= file.data());
      AISP_CHECK(tensor.data.data() + tensor.data.size() <= file.data() + file.size());
    }
    const auto view = ViewOf(tensor, name);
    if (view) AISP_CHECK(static_cast<size_t>(view->bytes()) <= tensor.data.size());
  }
}

}  // namespace aisp
