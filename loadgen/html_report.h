// A self-contained HTML page for a run, a sweep or a comparison: tables and charts, light and dark,
// no external resources and no script. Pure.
#pragma once

#include <string>

#include "loadgen/session.h"
#include "loadgen/sweep.h"
#include "loadgen/versus.h"

namespace aisp::loadgen {

std::string RunPage(const Outcome& run);
std::string SweepPage(const Options& options, const SweepResult& sweep);
std::string VersusPage(const Options& options, const VersusResult& versus);

}  // namespace aisp::loadgen
