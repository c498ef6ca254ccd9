// AdapterKeeper: which LoRA adapters a worker serves. Routers send the whole set; it loads what is
// missing and drops what is no longer in it. An adapter can also be loaded on trial (LoadAdapter),
// before a router adds it to the set.
//
// One per engine, shared by all roles. Thread: the engine's; the loader also answers there.
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

  // `start`: adapters of the settings, which the engine already has.
  AdapterKeeper(v1::AdapterSet start, Loader loader);
  // Once, before anything else. The engine outlives pending loads.
  void Wire(Engine* engine) { engine_ = engine; }
  // Called after every change of Report(); listeners are never removed.
  void OnChange(std::function<void()> listener) { listeners_.push_back(std::move(listener)); }

  using OnAnswer = std::function<void(v1::AdapterAnswer)>;
  // Loads on trial. `link`: the router's that asks.
  void Load(LinkId link, const v1::LoadAdapter& asked, OnAnswer answer);
  // Adopts the set, unless it is older than the current one.
  void Take(const v1::AdapterSet& set);
  void OnLinkDown(LinkId link);
  v1::AdapterReport Report() const;
  // No adapter of the set is still loading.
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
  std::set<std::string> held_;                     // digests that the engine holds
  std::map<LinkId, std::set<std::string>> trial_;  // those on trial, by the link that asked
  std::set<std::string> loading_;                  // of the set
  std::map<std::string, std::string> troubles_;    // load errors of the set, by digest
  std::vector<std::function<void()>> listeners_;
};

}  // namespace aisp
