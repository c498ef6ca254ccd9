// ConstraintPool: the constraints that requests ask for, compiled once each and kept by a hash of
// what they say, and the guides that workers draw by. Bounded in number and in bytes: beyond that
// the tenant that has most forgets the one that it used least lately. Safe to call from any thread.
// An engine thread never compiles: what is not kept is compiled on threads of the pool's own, in
// turn of the tenants by the time that theirs took. The tokenizer outlives it.
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
    size_t max_bytes = 512u << 20;  // of what is kept, about
    size_t max_waiting = 64;        // for the compiling threads
  };
  // A guide, or why there is none; told on a thread of the pool's.
  using OnGuide = std::function<void(Result<std::shared_ptr<DrawGuide>>)>;

  ConstraintPool(const Tokenizer* tokenizer, int32_t vocabulary, const Limits& limits);
  // Finishes the compilations that run; those that wait are dropped, their `later` too.
  ~ConstraintPool() override;
  ConstraintPool(const ConstraintPool&) = delete;
  ConstraintPool& operator=(const ConstraintPool&) = delete;

  Result<std::shared_ptr<Constraint>> Get(const v1::Constraint& constraint,
                                          const std::string& tenant) override;
  bool Keeps(const v1::Constraint& constraint) override;
  // For a request's sequence; at the end of the text its stop tokens are allowed. Null when its
  // constraint has to be compiled first: then `later` is called, once. RESOURCE_EXHAUSTED when too
  // many wait for that, or too many of its tenant's.
  Result<std::shared_ptr<DrawGuide>> Guide(const v1::GenerateRequest& request, OnGuide later);

  size_t kept() const;

 private:
  struct Kept {
    Hash128 key;
    std::string text;  // a hit compares it
    std::shared_ptr<Constraint> constraint;
    std::string tenant;  // that used it last
    size_t bytes() const { return text.size() + constraint->bytes(); }
  };

  // `tenant` absent: only looks.
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
  std::list<Kept> kept_;  // the latest used first
  std::unordered_map<Hash128, std::list<Kept>::iterator> by_key_;
  FairQueue waiting_;
  std::once_flag threads_once_;
  std::vector<Thread> threads_;  // from the first constraint on that a worker has to compile
};

}  // namespace aisp
