#include "frontend/response_store.h"

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

// Heap size of an object with its reference counts.
constexpr size_t kObject = 112;
// Size of a slot in a list or map that doubles as it grows, and of a map's index entry.
constexpr size_t kPlace = 2 * sizeof(Value);
constexpr size_t kEntry = 2 * sizeof(std::pair<std::string, Value>);
constexpr size_t kIndexed = 96;

// Size of a value besides its own slot, as if nothing were shared. Conversations share most of
// their values, so this is an upper bound.
size_t BytesOf(const Value& value) {
  size_t bytes = 0;
  if (value.IsString()) bytes = kObject + value.AsString().size();
  if (value.IsList()) {
    bytes = kObject;
    for (const Value& item : value.AsList()) bytes += kPlace + BytesOf(item);
  } else if (value.IsMap()) {
    bytes = kObject;
    for (const auto& [key, item] : value.AsMap())
      bytes += kEntry + kIndexed + 2 * key.size() + BytesOf(item);
  }
  return bytes;
}

}  // namespace

bool ResponseStore::Put(const std::string& tenant, const std::string& id, StoredResponse response) {
  size_t bytes = response.json.size();
  for (const Value& item : response.conversation) bytes += kPlace + BytesOf(item);
  if (limits_.count == 0 || bytes > std::min(limits_.bytes, limits_.total_bytes)) return false;
  response.bytes = bytes;
  auto kept = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  auto shelf = shelves_.try_emplace(tenant).first;
  if (const auto known = shelf->second.by_id.find(id); known != shelf->second.by_id.end()) {
    Drop(shelf, known->second);
    shelf = shelves_.try_emplace(tenant).first;
  }
  Shelf& mine = shelf->second;
  mine.entries.push_front({id, std::move(kept), bytes});
  mine.by_id[id] = mine.entries.begin();
  mine.bytes += bytes;
  bytes_ += bytes;
  ++count_;
  // The new entry alone fits, so it is never evicted here.
  while (mine.entries.size() > limits_.count || mine.bytes > limits_.bytes) {
    Drop(shelf, std::prev(mine.entries.end()));
    meters_.forgotten.Add();
  }
  while (bytes_ > limits_.total_bytes) {
    const auto largest = Largest(shelf);
    Drop(largest, std::prev(largest->second.entries.end()));
    meters_.forgotten.Add();
  }
  UpdateMetrics();
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::Find(const std::string& tenant,
                                                          const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto shelf = shelves_.find(tenant);
  if (shelf == shelves_.end()) return nullptr;
  const auto entry = shelf->second.by_id.find(id);
  if (entry == shelf->second.by_id.end()) return nullptr;
  auto& entries = shelf->second.entries;
  entries.splice(entries.begin(), entries, entry->second);
  return entries.front().response;
}

bool ResponseStore::Erase(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto shelf = shelves_.find(tenant);
  if (shelf == shelves_.end()) return false;
  const auto entry = shelf->second.by_id.find(id);
  if (entry == shelf->second.by_id.end()) return false;
  Drop(shelf, entry->second);
  UpdateMetrics();
  return true;
}

void ResponseStore::UpdateMetrics() {
  meters_.count.Set(static_cast<double>(count_));
  meters_.bytes.Set(static_cast<double>(bytes_));
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponseStore::Drop(Shelves::iterator shelf, std::list<Entry>::iterator entry) {
  Shelf& from = shelf->second;
  from.bytes -= entry->bytes;
  bytes_ -= entry->bytes;
  --count_;
  from.by_id.erase(entry->id);
  from.entries.erase(entry);
  if (from.entries.empty()) shelves_.erase(shelf);
}

ResponseStore::Shelves::iterator ResponseStore::Largest(Shelves::iterator kept) {
  auto largest = shelves_.end();
  for (auto it = shelves_.begin(); it != shelves_.end(); ++it) {
    if (it == kept && it->second.entries.size() == 1) continue;
    if (largest == shelves_.end() || it->second.bytes > largest->second.bytes) largest = it;
  }
  return largest;
}

}  // namespace aisp
