#include "kernels/cuda/table/facts.h"

#include <fmt/format.h>

#include <istream>
#include <sstream>

#include "kernels/cuda/table/linear_choice.h"

namespace aisp::cuda {

std::string TuningProfile::KeyOf(const LinearTraits& w, bool fp8_rows) {
  return fmt::format("format{}-input{}-store{}-n{}-k{}", static_cast<int>(w.format),
                     fp8_rows ? 1 : 0, static_cast<int>(StoreOf(w)), w.n, w.k);
}

void TuningProfile::Read(std::istream& lines) {
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream in(line);
    std::string mark, key;
    int32_t rows = 0;
    int tokens = 0;
    if (in >> mark >> key >> rows >> tokens && mark == kMark) Add(key, rows, tokens);
  }
}

const std::map<int32_t, int>* TuningProfile::Of(const std::string& key) const {
  const auto found = measured_.find(key);
  return found == measured_.end() ? nullptr : &found->second;
}

DeviceFacts H200Facts() {
  DeviceFacts f;
  f.name = "NVIDIA H200";
  f.multiprocessors = 132;
  f.hopper = true;
  f.max_rows = 8192;
  f.max_sequences = 1024;
  f.fp8_activation_rows = 1024;
  f.bytes_per_us = 4.66e6;
  f.launch_us = 0.52;
  f.bf16_flops_per_us = 7.6e8;
  return f;
}

}  // namespace aisp::cuda
