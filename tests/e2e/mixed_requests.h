// Completions that mix all request features: each feature is in half of them, so a few dozen
// requests contain every pair. A seed decides what is drawn.
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
// Features that exclude each other.
bool Together(const std::string& feature, const std::string& other);
const std::vector<std::string>& AllFeatures();

std::vector<MixedRequest> MixedRequests(int count, uint64_t seed);

// Writes a random LoRA adapter for story-7m to `folder`; requests with the feature "lora" name it.
constexpr const char* kAdapterName = "tales";
void WriteAdapter(const std::string& folder);

// How often two features occurred together.
class Pairs {
 public:
  void Note(const std::set<std::string>& all);
  void Note(const std::string& thing, const std::set<std::string>& others);
  int Count(const std::string& one, const std::string& other) const;
  bool Empty() const { return counts_.empty(); }

 private:
  std::map<std::pair<std::string, std::string>, int> counts_;
};

}  // namespace aisp::e2e
