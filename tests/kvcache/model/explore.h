// Explores every state of a model that is replayed from its events. A model has Event, Possible(),
// Do(), Digest(), Quiesce(), violation() and ToString(Event), and is constructed from its config.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace aisp {

struct Exploration {
  uint64_t states = 0;
  uint64_t transitions = 0;
  int depth = 0;          // of the deepest state explored
  bool complete = false;  // every reachable state was explored
  std::string violation;  // the first, with the shortest path to it
  std::vector<std::string> path;
};

// Breadth first, at most `max_states`; each state is also brought to rest (Quiesce).
template <typename Model, typename Config>
Exploration ExploreModel(const Config& config, uint64_t max_states) {
  using Path = std::vector<typename Model::Event>;
  const auto play = [&](const Path& path) {
    auto model = std::make_unique<Model>(config);
    for (const auto& event : path) model->Do(event);
    return model;
  };
  Exploration result;
  const auto violated = [&](const Model& model, const Path& path) {
    if (model.violation().empty()) return false;
    result.violation = model.violation();
    for (const auto& event : path) result.path.push_back(Model::ToString(event));
    return true;
  };
  std::unordered_set<std::string> seen;
  std::deque<Path> queue;
  queue.push_back({});
  seen.insert(play({})->Digest());
  while (!queue.empty()) {
    const Path path = std::move(queue.front());
    queue.pop_front();
    ++result.states;
    result.depth = static_cast<int>(path.size());
    const auto here = play(path);
    for (const auto& event : here->Possible()) {
      Path longer = path;
      longer.push_back(event);
      const auto next = play(longer);
      ++result.transitions;
      if (violated(*next, longer)) return result;
      if (!seen.insert(next->Digest()).second) continue;
      queue.push_back(longer);
      next->Quiesce();
      if (violated(*next, longer)) return result;
      if (seen.size() >= max_states) return result;
    }
  }
  result.complete = true;
  return result;
}

}  // namespace aisp
