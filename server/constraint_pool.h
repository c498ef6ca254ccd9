// ConstraintPool: compiles constraints, caches them by a hash of their text, and makes the guides
// that workers draw with. Bounded in number and bytes; beyond that, the tenant with the most loses
// its least recently used one. Any thread. An engine thread never compiles: that runs on the pool's
// own threads, fairly between tenants by CPU time. The tokenizer outlives it.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/hash.h"
#include "common/result.h"
#include "common/threads.h"
#include "constrain/constraint.h"
#include "constrain/forced_run.h"
#include "engine/draw_guide.h"
#include "frontend/constraint_compiler.h"
#include "frontend/spelled_arguments.h"
#include "server/fair_queue.h"
#include "server/matcher_guide.h"
#include "text/tokenizer.h"
#include "worker.pb.h"

namespace aisp {

class ConstraintPool final : public ConstraintCompiler {
 public:
  struct Limits {
    Duration compile_timeout = std::chrono::seconds(2);
    size_t max_kept = 64;
    size_t max_bytes = 512u << 20;  // approximate size of the cache
    size_t max_waiting = 64;        // jobs waiting for the compiling threads
  };
  // Receives a guide or an error, on a thread of the pool.
  using OnGuide = std::function<void(Result<std::shared_ptr<DrawGuide>>)>;

  ConstraintPool(const Tokenizer* tokenizer, int32_t vocabulary, const Limits& limits);
  // Finishes running compilations; drops waiting ones with their `later`.
  ~ConstraintPool() override;
  ConstraintPool(const ConstraintPool&) = delete;
  ConstraintPool& operator=(const ConstraintPool&) = delete;

  Result<std::shared_ptr<Constraint>> Get(const v1::Constraint& constraint,
                                          const std::string& tenant) override;
  bool Keeps(const v1::Constraint& constraint) override;
  // The guide for a request's sequence; at the end of the text its stop tokens are allowed. Null:
  // the constraint must be compiled first, and `later` is called once. RESOURCE_EXHAUSTED: too many
  // jobs are waiting, in total or of its tenant.
  Result<std::shared_ptr<DrawGuide>> Guide(const v1::GenerateRequest& request, OnGuide later);

  size_t kept() const;

 private:
  struct Kept {
    Hash128 key;
    std::string text;  // compared on a hit
    std::shared_ptr<Constraint> constraint;
    std::string tenant;  // the last tenant that used it
    size_t bytes() const { return text.size() + constraint->bytes(); }
  };

  // `tenant` null: does not count as a use.
  std::shared_ptr<Constraint> Find(const Hash128& key, const std::string& text,
                                   const std::string* tenant);
  std::shared_ptr<DrawGuide> MakeGuide(std::shared_ptr<Constraint> constraint,
                                       MatcherGuide::Rules rules);
  // Under the mutex.
  void Trim();
  std::list<Kept>::iterator OneOfWhoHasMost();

  Result<std::shared_ptr<Constraint>> Compile(const v1::Constraint& constraint,
                                              const std::string& tenant);
  std::shared_ptr<const TokenTrie> Trie();

  const Tokenizer& tokenizer_;
  const int32_t vocabulary_;
  const Limits limits_;
  const std::shared_ptr<RunBook> runs_;
  std::once_flag trie_once_;
  std::shared_ptr<const TokenTrie> trie_;
  std::once_flag spelled_once_;
  std::shared_ptr<const SpelledTokens> spelled_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // most recently used first
  std::unordered_map<Hash128, std::list<Kept>::iterator> by_key_;
  FairQueue waiting_;
  std::once_flag threads_once_;
  std::vector<Thread> threads_;  // started with the first compilation
};

}  // namespace aisp
