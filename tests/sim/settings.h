// What a seed decides in advance: the cluster's shape, its speeds, the load and the faults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.h"
#include "kernels/device/dtype.h"
#include "router/policy_options.h"
#include "tests/sim/sim_clock.h"
#include "tests/support/sim_links.h"
#include "tests/support/sim_world.h"

namespace aisp {

struct SimSettings {
  int routers = 1;
  int prefill_workers = 2;
  int decode_workers = 2;
  int32_t block_tokens = 16;
  // If prefill workers' pools have another format, KV is converted during the transfer.
  int32_t prefill_block_tokens = 16;
  std::optional<DType> decode_dtype;  // if set: numbers that every format represents exactly
  std::optional<DType> prefill_dtype;
  bool mixed() const { return decode_dtype != prefill_dtype; }
  int32_t num_layers = 2;
  int32_t prefill_blocks = 64;
  int32_t decode_blocks = 64;
  int32_t max_context = 512;
  int32_t max_batch_tokens = 64;
  int32_t max_sequences = 8;
  int executor_depth = 1;
  // In half of the runs whose steps are not launched ahead of their tokens; draws no random number.
  bool Speculates() const { return executor_depth == 1 && requests % 2 == 0; }
  bool blocking_steps = false;  // a role handles no messages while it computes, as on the CPU
  bool owner_copies = false;    // tcp-like transport: the owner fences at once; else shm-like
  bool fetches =
      false;  // with owner_copies: ucx-like, the owner fences when its fetches have ended
  bool falls_back = false;  // a tcp-like transport in addition, for when the first one fails
  // Tiers below each pool; 0: none.
  int32_t host_slots = 0;
  int32_t disk_slots = 0;
  int32_t tier_room = 100;  // copies in flight
  double tier_ms = 1;       // at most, for most copies
  double tier_fault_chance = 0;
  bool skewed_clocks = false;  // each process has its own clock
  SimClock MakeClock(SimWorld& world) const;
  // Arriving blocks are verified, and transports damage some; unverified, a damaged one would be
  // read.
  bool verify = false;
  PrefixPulls pulls = PrefixPulls::kOff;
  SimLinkDelays link_delays;
  double transfer_ms_per_block = 0.2;
  double step_base_ms = 2;
  double step_token_ms = 0.05;
  Duration lease{};

  int requests = 40;
  Duration arrival_span{};  // requests and faults happen in it
  double short_deadline_chance = 0;
  double cancel_chance = 0;
  double stop_string_chance = 0;
  double slow_reader_chance = 0;
  int prompt_families = 4;  // prompts share prefixes within a family

  // Expected numbers over the span; zero in a calm run.
  bool calm = false;
  bool rolling_update = false;  // in a calm run, of every worker in turn: no client may notice
  double crashes = 0;
  double pauses = 0;
  double suspend_chance = 0;  // of a pause: the clock stops with the process
  double link_breaks = 0;
  double link_stalls = 0;
  double drains = 0;
  Duration drain_timeout{};        // then running streams move
  double move_at_once_chance = 0;  // of a drain
  double router_crashes = 0;
  double router_updates = 0;  // replaced by a successor at the same address
  double transfer_faults = 0;
  double lane_falls = 0;
  double spoils = 0;  // a bit of a block arrives flipped
  double device_failures = 0;
  double zombies = 0;  // a stopped worker is considered dead, replaced, and resumes later
  double router_pauses = 0;
  double half_opens = 0;          // links that silently carry nothing
  int link_room = 1024;           // messages in flight, for offers
  size_t link_bytes = SIZE_MAX;   // and their bytes
  double row_failure_chance = 0;  // of a drawn token
  double bad_steps = 0;           // requests whose every step fails
  double poisons = 0;             // requests that end every process that computes them
  bool poison_alone = false;      // one of them, and nothing else ends a worker
  double long_step_chance = 0;    // of a step
  bool long_steps_alone = false;  // that block their role, and nothing else makes a worker silent
  bool tenants = false;           // requests of several tenants, with weights and ranks
  double duplicates = 0;          // processes under the name of a live one
  double connect_fail_chance = 0;
  double role_changes = 0;   // in a calm run one after the other: no client may notice
  Duration role_deadline{};  // then a change is called off

  static SimSettings Draw(SimWorld& world);
  std::string ToString() const;

 private:
  // Draws no random number, so that other choices do not change.
  void ChooseFormats();
  void DrawLanes(SimWorld& world);
  void DrawTiers(SimWorld& world);
  void DrawFaults(SimWorld& world);
};

}  // namespace aisp
