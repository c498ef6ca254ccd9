// Completions that mix whatever may be asked for: each feature is in half of them, so that a few
// dozen hold every pair. What is drawn follows from a seed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/client.h"

namespace aisp::e2e {

struct MixedRequest {
  Json body;
  std::set<std::string> features;
};
// Those that no request has together.
bool Together(const std::string& feature, const std::string& other);
const std::vector<std::string>& AllFeatures();

std::vector<MixedRequest> MixedRequests(int count, uint64_t seed);

// A random LoRA adapter for story-7m, which requests with the feature "lora" name; in `folder`.
constexpr const char* kAdapterName = "tales";
void WriteAdapter(const std::string& folder);

// How often two things came together.
class Pairs {
 public:
  void Note(const std::set<std::string>& all);
  void Note(const std::string& thing, const std::set<std::string>& others);
  int Count(const std::string& one, const std::string& other) const;

 private:
  std::map<std::pair<std::string, std::string>, int> counts_;
};

}  // namespace aisp::e2e
