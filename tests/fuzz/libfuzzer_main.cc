// The entry point that libFuzzer calls.
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  aisp::FuzzOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
