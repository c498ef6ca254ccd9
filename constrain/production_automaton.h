// ProductionAutomaton: what may follow inside a production of a grammar, looked at by itself:
// Earley's sets, equal ones made one state, so that a walk over many tokens makes each set once and
// looks it up from then on. What awaits the production is left to the caller. One thread at a time.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "constrain/earley.h"

namespace aisp {

class ProductionAutomaton {
 public:
  static constexpr int32_t kDead = -1;

  explicit ProductionAutomaton(Grammar* grammar) : g_(*grammar), earley_(grammar) {}

  // The state behind the first `dot` symbols.
  int32_t StartOf(int32_t production, int32_t dot);
  int32_t Step(int32_t state, uint8_t byte) {
    const int32_t known = (*states_[static_cast<size_t>(state)].row)[byte];
    return known != kUnknown ? known : MakeStep(state, byte);
  }
  // The production may end here.
  bool Completes(int32_t state) const { return states_[static_cast<size_t>(state)].set->whole; }

  // From now on so many states are made; a step that would make one more is dead, for now.
  void Allow(size_t states) { limit_ = states_.size() + states; }
  // Forgets all states once there are many; none may be in use.
  void Trim();
  size_t bytes() const { return bytes_; }

 private:
  static constexpr int32_t kUnknown = -2;
  using Row = std::array<int32_t, 256>;
  struct State {
    const EarleySet* set;
    std::unique_ptr<Row> row;
  };

  int32_t MakeStep(int32_t state, uint8_t byte);
  // The state of the set that was made last.
  int32_t Keep(const EarleySet* set);

  Grammar& g_;
  Earley earley_;
  std::vector<State> states_;
  std::unordered_map<std::string, int32_t> by_items_;
  std::unordered_map<uint64_t, int32_t> starts_;  // by production and dot
  size_t limit_ = 0, bytes_ = 0;
};

}  // namespace aisp
