// ResponseStore: responses that clients may refer to later (previous_response_id, GET and DELETE
// /v1/responses/ID), in the memory of this process. Bounded in count and bytes per tenant and in
// total bytes. Evicts the least recently used; beyond the total, of the largest tenant. Tenants
// cannot see each other's. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "common/metrics.h"
#include "text/value.h"

namespace aisp {

struct StoredResponse {
  std::string json;          // the response object
  Value::List conversation;  // as input items, ending with its own output
  size_t inputs = 0;         // number of `conversation` items that were its input
  size_t bytes = 0;          // upper bound of its size; set by Put
};

class ResponseStore {
 public:
  struct Limits {
    size_t count = 1000;      // per tenant
    size_t bytes = 64 << 20;  // per tenant
    size_t total_bytes = 256 << 20;
  };
  // Its metrics.
  struct Meters {
    Gauge count, bytes;
    Counter forgotten;  // evicted
  };
  explicit ResponseStore(Limits limits, Meters meters = {}) : limits_(limits), meters_(meters) {}

  // Stores it; false when it alone exceeds the limits.
  bool Put(const std::string& tenant, const std::string& id, StoredResponse response);
  // Null when absent. Counts as a use.
  std::shared_ptr<const StoredResponse> Find(const std::string& tenant, const std::string& id);
  bool Erase(const std::string& tenant, const std::string& id);

  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    size_t bytes = 0;
  };
  struct Shelf {
    std::list<Entry> entries;  // most recently used first
    std::unordered_map<std::string, std::list<Entry>::iterator> by_id;
    size_t bytes = 0;
  };
  using Shelves = std::map<std::string, Shelf>;

  void Drop(Shelves::iterator shelf, std::list<Entry>::iterator entry);
  // The largest shelf, except `kept` if that holds a single entry. It exists whenever the total
  // exceeds the limit, since one entry alone fits.
  Shelves::iterator Largest(Shelves::iterator kept);

  void UpdateMetrics();

  const Limits limits_;
  const Meters meters_;
  mutable std::mutex mutex_;
  Shelves shelves_;  // none is empty
  size_t count_ = 0, bytes_ = 0;
};

}  // namespace aisp
