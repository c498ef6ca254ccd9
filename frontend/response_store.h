// ResponseStore: responses that clients may name again (previous_response_id, GET and DELETE
// /v1/responses/ID), in this process's memory. Bounded in count and bytes for each tenant and in
// bytes for all; what was used least lately goes first, of the tenant that has most where all
// together have too much. Tenants do not see each other's. Any thread.
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
  Value::List conversation;  // as items of an input, its own output last
  size_t inputs = 0;         // of these, those that it was made from
  size_t bytes = 0;          // what it takes at most; Put sets it
};

class ResponseStore {
 public:
  struct Limits {
    size_t count = 1000;      // of a tenant
    size_t bytes = 64 << 20;  // of a tenant
    size_t total_bytes = 256 << 20;
  };
  // What an operator sees of it.
  struct Meters {
    Gauge count, bytes;
    Counter forgotten;  // to make room
  };
  explicit ResponseStore(Limits limits, Meters meters = {}) : limits_(limits), meters_(meters) {}

  // Keeps it, unless it alone is larger than the bounds: then false.
  bool Put(const std::string& tenant, const std::string& id, StoredResponse response);
  // Null when it is not there. Counts as a use.
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
    std::list<Entry> entries;  // the one used last in front
    std::unordered_map<std::string, std::list<Entry>::iterator> by_id;
    size_t bytes = 0;
  };
  using Shelves = std::map<std::string, Shelf>;

  void Drop(Shelves::iterator shelf, std::list<Entry>::iterator entry);
  // The one that takes most, but not `kept` where that has a single entry. There is one where all
  // take more than an entry may.
  Shelves::iterator Largest(Shelves::iterator kept);

  void UpdateMetrics();

  const Limits limits_;
  const Meters meters_;
  mutable std::mutex mutex_;
  Shelves shelves_;  // none is empty
  size_t count_ = 0, bytes_ = 0;
};

}  // namespace aisp
