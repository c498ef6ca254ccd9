// ConstraintPool: the constraints that requests ask for, compiled once each and kept by a hash of
// what they say, and the guides that workers draw by. Bounded in number and in bytes; safe to call
// from any thread. An engine thread never compiles: what is not kept is compiled on a thread of the
// pool's own. The tokenizer outlives it.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "common/bounded_queue.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/result.h"
#include "common/threads.h"
#include "constrain/constraint.h"
#include "constrain/forced_run.h"
#include "engine/draw_guide.h"
#include "frontend/constraint_compiler.h"
#include "frontend/spelled_arguments.h"
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
    size_t max_waiting = 64;        // for the compiling thread
  };
  // A guide, or why there is none; told on the pool's thread.
  using OnGuide = std::function<void(Result<std::shared_ptr<DrawGuide>>)>;

  ConstraintPool(const Tokenizer* tokenizer, int32_t vocabulary, const Limits& limits);
  // Finishes the compilation that runs; those that wait are dropped, their `later` too.
  ~ConstraintPool() override;
  ConstraintPool(const ConstraintPool&) = delete;
  ConstraintPool& operator=(const ConstraintPool&) = delete;

  Result<std::shared_ptr<Constraint>> Get(const v1::Constraint& constraint) override;
  // For a request's sequence; at the end of the text its stop tokens are allowed. Null when its
  // constraint has to be compiled first: then `later` is called, once. RESOURCE_EXHAUSTED when too
  // many wait for that.
  Result<std::shared_ptr<DrawGuide>> Guide(const v1::GenerateRequest& request, OnGuide later);

  size_t kept() const;

 private:
  struct Kept {
    Hash128 key;
    std::string text;  // a hit compares it
    std::shared_ptr<Constraint> constraint;
  };

  std::shared_ptr<Constraint> Find(const Hash128& key, const std::string& text);
  std::shared_ptr<DrawGuide> MakeGuide(std::shared_ptr<Constraint> constraint,
                                       MatcherGuide::Rules rules);
  void Trim();

  Result<std::shared_ptr<Constraint>> Compile(const v1::Constraint& constraint);
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
  BoundedQueue<std::function<void()>> waiting_;
  std::once_flag thread_once_;
  Thread thread_;  // runs from the first constraint on that a worker has to compile
};

}  // namespace aisp
