// One fuzz target: a program with FuzzOne. Built twice: with libFuzzer (preset fuzz), and with
// replay_main.cc as a test that runs every file of the target's corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace aisp {

// Handles one input; broken expectations are AISP_CHECKs.
void FuzzOne(std::string_view input);

}  // namespace aisp
