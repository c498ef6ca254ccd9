// AdapterKeeper: which LoRA adapters a worker serves. Routers tell it the set of all; it loads what
// is missing and drops what is not in it any more. One is also loaded on trial (LoadAdapter),
// before a router puts it into the set.
//
// One for each engine, whatever role works with it. Thread: the engine's, which the loader's
// answers come to as well.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/ids.h"
#include "engine/engine.h"
#include "proto/link.h"
#include "worker.pb.h"

namespace aisp {

class AdapterKeeper {
 public:
  using OnLoaded = std::function<void(Result<PackedAdapter>)>;
  // Reads and converts the files on another thread; `done` is called later, once, on the engine's.
  using Loader =
      std::function<void(const std::string& name, const std::string& path, OnLoaded done)>;

  // `start`: what the settings name, which the engine has.
  AdapterKeeper(v1::AdapterSet start, Loader loader);
  // Once, before anything else. The engine outlives what was asked of the loader.
  void Wire(Engine* engine) { engine_ = engine; }
  // Called after every change of Report(); never forgotten.
  void OnChange(std::function<void()> listener) { listeners_.push_back(std::move(listener)); }

  using OnAnswer = std::function<void(v1::AdapterAnswer)>;
  // `link`: of the router that asks.
  void Load(LinkId link, const v1::LoadAdapter& asked, OnAnswer answer);
  // Ignored when it is older than the one there is.
  void Take(const v1::AdapterSet& set);
  void OnLinkDown(LinkId link);
  v1::AdapterReport Report() const;
  // Nothing of the set is being read.
  bool Settled() const { return loading_.empty(); }

 private:
  bool InSet(const std::string& digest) const;
  bool OnTrial(const std::string& digest) const;
  void LoadMissing(const v1::Adapter& adapter);
  void OnMissingLoaded(const v1::Adapter& wanted, Result<PackedAdapter> loaded);
  void Drop(const std::string& digest);
  void Changed();

  v1::AdapterSet set_;
  const Loader loader_;
  Engine* engine_ = nullptr;
  std::set<std::string> held_;                     // digests that the engine was given
  std::map<LinkId, std::set<std::string>> trial_;  // of them, by the link that asked
  std::set<std::string> loading_;                  // of the set
  std::map<std::string, std::string> troubles_;    // of the set, by digest
  std::vector<std::function<void()>> listeners_;
};

}  // namespace aisp
