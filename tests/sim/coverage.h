// Counts what happened in a run, so that a run without real faults does not pass as a test of them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace aisp {

class SimCoverage {
 public:
  void Count(const std::string& what, uint64_t n = 1) { counts_[what] += n; }
  void Peak(const std::string& what, uint64_t value) {
    uint64_t& peak = peaks_[what];
    peak = value > peak ? value : peak;
  }
  uint64_t Get(const std::string& what) const {
    auto it = counts_.find(what);
    return it == counts_.end() ? 0 : it->second;
  }
  uint64_t GetPeak(const std::string& what) const {
    auto it = peaks_.find(what);
    return it == peaks_.end() ? 0 : it->second;
  }
  void Add(const SimCoverage& other) {
    for (const auto& [what, n] : other.counts_) counts_[what] += n;
    for (const auto& [what, value] : other.peaks_) Peak(what, value);
  }
  const std::map<std::string, uint64_t>& counts() const { return counts_; }
  const std::map<std::string, uint64_t>& peaks() const { return peaks_; }

 private:
  std::map<std::string, uint64_t> counts_;
  std::map<std::string, uint64_t> peaks_;
};

}  // namespace aisp
