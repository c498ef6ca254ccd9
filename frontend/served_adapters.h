// ServedAdapters: the LoRA adapters that requests may name, and their digests, which identify them
// internally. The router's thread sets it, any thread reads it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker.pb.h"

namespace aisp {

class ServedAdapters {
 public:
  ServedAdapters() : now_(std::make_shared<v1::AdapterSet>()) {}

  // Sets the adapters from the settings; once, before any other thread reads.
  void Begin(v1::AdapterSet start);
  const v1::AdapterSet& start() const { return start_; }

  void Set(const v1::AdapterSet& set);
  // "": unknown name.
  std::string DigestOf(const std::string& name) const;
  // In the order of loading.
  std::vector<std::string> Names() const;

 private:
  std::shared_ptr<const v1::AdapterSet> Now() const;

  v1::AdapterSet start_;
  mutable std::mutex mutex_;
  std::shared_ptr<const v1::AdapterSet> now_;
};

}  // namespace aisp
