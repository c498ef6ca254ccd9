// SimTiers: the tiers below a worker's pool in simulated time: copies take time, some a long time,
// and while `faults` is set some fail or return wrong data. A disk outlives its process; writes in
// flight to it do not.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tests/sim/settings.h"
#include "tests/support/fake_tiers.h"
#include "tests/support/sim_world.h"

namespace aisp {

class SimTiers {
 public:
  SimTiers(SimWorld* world, const SimSettings& settings, const KvLayout& layout, std::byte* pool,
           std::shared_ptr<FakeDisk> disk)
      : world_(world),
        settings_(settings),
        disk_(std::move(disk)),
        io_(layout, settings.host_slots, disk_.get()) {
    io_.Bind(pool);
    io_.room = static_cast<size_t>(settings.tier_room);
    io_.on_submit = [this](const TierJob& job) { Schedule(job.id); };
  }

  TierOptions Options() {
    TierOptions options;
    options.io = &io_;
    options.host_slots = settings_.host_slots;
    if (disk_ == nullptr) return options;
    options.disk_slots = settings_.disk_slots;
    options.on_disk = disk_->Entries();
    return options;
  }

  std::function<bool()> faults = [] { return false; };
  std::function<void()> on_done;    // runs in the worker's process
  std::function<void()> on_failed;  // for coverage
  std::shared_ptr<SimProcess> process;

 private:
  void Schedule(uint64_t id) {
    const Duration took =
        world_->Chance(0.02) ? world_->Ms(20, 500) : world_->Ms(0.02, settings_.tier_ms);
    Status status;
    if (faults() && world_->Chance(settings_.tier_fault_chance)) {
      status = world_->Chance(0.5) ? Status(Unavailable("the disk gives an error"))
                                   : Status(DataLoss("not what was written"));
    }
    world_->After(took, [this, alive = std::weak_ptr<bool>(alive_), id, status, took] {
      if (alive.lock() == nullptr || !process->alive()) return;
      if (!status && on_failed) on_failed();
      io_.FinishId(id, status, took);
      process->Deliver(on_done);
    });
  }

  SimWorld* const world_;
  const SimSettings& settings_;
  const std::shared_ptr<FakeDisk> disk_;
  FakeTiers io_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aisp
