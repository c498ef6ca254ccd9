// FakeTiers: TierIo over plain memory, whose jobs end when and as the test says. A disk outlives
// it.
//
// Bytes are copied when a job ends, and its destination is filled with garbage when it is
// submitted: a block that is freed or used too early changes the resulting tokens. One thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/check.h"
#include "kvcache/layout.h"
#include "kvcache/tiers/tier_io.h"

namespace aisp {

struct FakeDisk {
  struct Slot {
    TierEntry entry;
    std::vector<std::byte> bytes;
  };
  std::map<int32_t, Slot> slots;
  // Like the scan at start: in an order that depends only on the content.
  std::vector<TierEntry> Entries() const {
    std::vector<TierEntry> entries;
    for (const auto& [slot, s] : slots) entries.push_back(s.entry);
    std::stable_sort(entries.begin(), entries.end(), [](const TierEntry& a, const TierEntry& b) {
      return a.position < b.position;
    });
    return entries;
  }
};

class FakeTiers final : public TierIo {
 public:
  explicit FakeTiers(const KvLayout& layout, int32_t host_slots = 0, FakeDisk* disk = nullptr)
      : layout_(layout),
        host_(layout.BlockBytes() * static_cast<size_t>(host_slots)),
        disk_(disk) {}

  void Bind(std::byte* pool) { pool_ = pool; }

  bool Submit(const TierJob& job) override {
    if (jobs_.size() >= room) return false;
    if (job.to.place == TierPlace::kDisk) {
      disk_->slots.erase(job.to.index);  // a crash before its end leaves no valid block
    } else {
      Put(job.to, std::vector<std::byte>(layout_.BlockBytes(), std::byte{0xdd}));
    }
    jobs_.push_back(job);
    if (on_submit) on_submit(job);
    return true;
  }

  void TakeDone(std::vector<TierDone>* done) override {
    for (TierDone& d : done_) done->push_back(std::move(d));
    done_.clear();
  }

  const std::deque<TierJob>& jobs() const { return jobs_; }

  // Ends the i-th job: successfully, or with this error.
  void Finish(size_t i, Status status = {}, Duration took = std::chrono::microseconds(50)) {
    const TierJob job = jobs_[i];
    jobs_.erase(jobs_.begin() + static_cast<ptrdiff_t>(i));
    if (status) status = Move(job);
    done_.push_back({job.id, std::move(status), took});
  }
  void FinishId(uint64_t id, Status status, Duration took) {
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i].id == id) return Finish(i, std::move(status), took);
    }
  }
  void FinishAll() {
    while (!jobs_.empty()) Finish(0);
  }

  size_t room = 100000;
  std::function<void(const TierJob&)> on_submit;

 private:
  Status Move(const TierJob& job) {
    if (job.from.place != TierPlace::kDisk) {
      Put(job.to, Get(job.from), &job);
      return {};
    }
    const auto it = disk_->slots.find(job.from.index);
    if (it == disk_->slots.end() || it->second.entry.key != job.key)
      return DataLoss("the slot holds something else");
    Put(job.to, it->second.bytes, &job);
    return {};
  }

  std::vector<std::byte> Get(TierSpot from) const {
    std::vector<std::byte> bytes(layout_.BlockBytes());
    Pieces(from, [&](std::byte* piece, size_t at, size_t n) {
      std::memcpy(bytes.data() + at, piece, n);
    });
    return bytes;
  }

  void Put(TierSpot to, const std::vector<std::byte>& bytes, const TierJob* job = nullptr) {
    if (to.place == TierPlace::kDisk) {
      AISP_CHECK(job != nullptr);
      disk_->slots[to.index] = {{to.index, job->key, job->parent, job->position, job->units},
                                bytes};
      return;
    }
    Pieces(to, [&](std::byte* piece, size_t at, size_t n) {
      std::memcpy(piece, bytes.data() + at, n);
    });
  }

  template <typename F>
  void Pieces(TierSpot spot, F&& f) const {
    if (spot.place == TierPlace::kHost) {
      const size_t at = layout_.BlockBytes() * static_cast<size_t>(spot.index);
      AISP_CHECK(at + layout_.BlockBytes() <= host_.size());
      return f(const_cast<std::byte*>(host_.data()) + at, 0, layout_.BlockBytes());
    }
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer)
      f(pool_ + layout_.Offset(layer, BlockId(spot.index)),
        layout_.LayerBlockBytes() * static_cast<size_t>(layer), layout_.LayerBlockBytes());
  }

  const KvLayout layout_;
  std::vector<std::byte> host_;
  FakeDisk* const disk_;
  std::byte* pool_ = nullptr;
  std::deque<TierJob> jobs_;
  std::vector<TierDone> done_;
};

}  // namespace aisp
