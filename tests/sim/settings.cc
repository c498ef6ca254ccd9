#include "tests/sim/settings.h"

#include <fmt/format.h>

namespace aisp {

SimSettings SimSettings::Draw(SimWorld& world) {
  SimSettings s;
  s.routers = world.Chance(0.35) ? 2 : 1;
  s.prefill_workers = static_cast<int>(world.Chance(0.6) ? 2 : world.Between(1, 3));
  s.decode_workers = static_cast<int>(world.Chance(0.7) ? 2 : world.Between(1, 3));
  s.block_tokens = world.Chance(0.8) ? 16 : 32;
  s.num_layers = static_cast<int32_t>(world.Between(1, 3));
  s.max_context = static_cast<int32_t>(16 * world.Between(8, 24));
  // A pool must hold the longest sequence; a tiny one holds little more, so that sequences preempt
  // each other.
  const auto longest = (s.max_context + s.block_tokens - 1) / s.block_tokens;
  const auto pool = [&] {
    return static_cast<int32_t>(world.Chance(0.5) ? longest + world.Between(2, 8)
                                                  : longest * world.Between(2, 6));
  };
  s.prefill_blocks = pool();
  s.decode_blocks = pool();
  s.max_batch_tokens = static_cast<int32_t>(16 * world.Between(1, 8));
  s.max_sequences = static_cast<int32_t>(world.Between(3, 12));
  s.executor_depth = world.Chance(0.4) ? 2 : 1;
  s.DrawLanes(world);
  s.DrawTiers(world);
  s.step_base_ms = world.Uniform(0.5, 8);
  s.step_token_ms = world.Uniform(0.01, 0.4);
  s.lease = world.Ms(100, 1500);
  s.drain_timeout = world.Chance(0.7) ? world.Ms(5, 300) : world.Ms(1000, 30000);
  s.move_at_once_chance = world.Chance(0.5) ? world.Uniform(0.1, 0.9) : 0;

  s.requests = static_cast<int>(world.Between(15, 50));
  s.arrival_span = world.Ms(500, 4000);
  s.prompt_families = static_cast<int>(world.Between(1, 6));
  s.tenants = world.Chance(0.5);
  s.blocking_steps = s.executor_depth == 1 && world.Chance(0.4);
  s.calm = world.Chance(0.1);
  s.rolling_update = s.calm && s.decode_workers > 1 && world.Chance(0.6);
  s.role_deadline = world.Chance(0.7) ? world.Ms(500, 10000) : world.Ms(5, 300);
  if (s.calm && !s.rolling_update && s.decode_workers + s.prefill_workers > 2)
    s.role_changes = world.Chance(0.7) ? world.Uniform(1, 8) : 0;
  s.verify = world.Chance(0.4);
  s.skewed_clocks = world.Chance(0.5);
  s.stop_string_chance = world.Chance(0.5) ? world.Uniform(0.05, 0.3) : 0;
  s.slow_reader_chance = world.Chance(0.4) ? world.Uniform(0.05, 0.3) : 0;
  if (!s.calm) s.DrawFaults(world);
  s.ChooseFormats();
  // Half of all runs pull whenever possible, a fifth if it pays; this draws no random number.
  const int pulls = s.requests % 10;
  s.pulls = pulls < 5 ? PrefixPulls::kAlways : pulls < 7 ? PrefixPulls::kAuto : PrefixPulls::kOff;
  return s;
}

void SimSettings::ChooseFormats() {
  constexpr DType kFormats[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};
  constexpr int32_t kSizes[] = {16, 32, 48, 64};
  const size_t kind = static_cast<size_t>(requests) * 7 + static_cast<size_t>(max_context / 16);
  prefill_block_tokens = block_tokens;
  if (kind % 5 < 2) prefill_block_tokens = kSizes[kind / 5 % 4];
  // Room for the same number of tokens, and below for the conversion's blocks.
  const int32_t tokens = prefill_blocks * block_tokens;
  if (prefill_block_tokens != block_tokens)
    prefill_blocks = (tokens + prefill_block_tokens - 1) / prefill_block_tokens + 1;
  if (kind % 10 != 1) return;
  decode_dtype = kFormats[kind / 10 % 3];
  prefill_dtype = kFormats[(kind / 10 + 1 + kind / 30 % 2) % 3];
  prefill_blocks += 8;
}

void SimSettings::DrawLanes(SimWorld& world) {
  owner_copies = world.Chance(0.6);
  fetches = owner_copies && world.Chance(0.5);
  falls_back = (fetches || !owner_copies) && world.Chance(0.5);
  link_delays.base_ms = world.Uniform(0.02, 1.0);
  link_delays.jitter_ms = world.Uniform(0.0, 2.0);
  link_delays.spike_chance = world.Chance(0.5) ? 0.01 : 0;
  link_delays.spike_ms = world.Uniform(5, 200);
  transfer_ms_per_block = world.Chance(0.3) ? world.Uniform(5, 40) : world.Uniform(0.02, 1.0);
}

void SimSettings::DrawTiers(SimWorld& world) {
  if (world.Chance(0.6)) return;
  host_slots = static_cast<int32_t>(world.Chance(0.7) ? world.Between(4, 100) : 0);
  disk_slots = static_cast<int32_t>(world.Chance(0.6) ? world.Between(4, 200) : 0);
  tier_room = static_cast<int>(world.Chance(0.7) ? 100 : world.Between(2, 16));
  tier_ms = world.Chance(0.3) ? world.Uniform(5, 50) : world.Uniform(0.1, 2);
}

void SimSettings::DrawFaults(SimWorld& world) {
  SimSettings& s = *this;
  s.poison_alone = world.Chance(0.06);
  // In half of these it goes to prefill workers, of which there are more than it may end.
  if (s.poison_alone && s.requests % 2 == 1) s.prefill_workers = 3;
  if (s.poison_alone) return;
  s.long_steps_alone = s.blocking_steps && world.Chance(0.1);
  if (s.long_steps_alone) {
    s.long_step_chance = world.Uniform(0.002, 0.02);
    return;
  }
  s.short_deadline_chance = world.Chance(0.3) ? world.Uniform(0.1, 0.7) : 0.02;
  s.cancel_chance = world.Chance(0.5) ? world.Uniform(0.05, 0.4) : 0.02;
  const auto some = [&](double chance, double most) {
    return world.Chance(chance) ? world.Uniform(0.5, most) : 0.0;
  };
  const double wild = world.Chance(0.25) ? 3 : 1;
  s.crashes = some(0.6, 5);
  s.pauses = some(0.6, 6 * wild);
  s.link_breaks = some(0.5, 8 * wild);
  s.link_stalls = some(0.5, 8 * wild);
  s.zombies = some(0.25, 2);
  s.router_pauses = some(0.2, 2);
  s.connect_fail_chance = world.Chance(0.2) ? world.Uniform(0.05, 0.5) : 0;
  s.drains = some(0.4, 3);
  s.router_crashes = s.routers > 1 ? some(0.4, 1.5) : 0;
  s.transfer_faults = some(0.4, 6);
  s.router_updates = some(0.3, 2);
  s.device_failures = some(0.15, 1.5);
  s.duplicates = some(0.2, 2);
  s.half_opens = some(0.3, 3);
  if (world.Chance(0.3)) s.link_room = static_cast<int>(world.Between(2, 8));
  s.row_failure_chance = world.Chance(0.15) ? world.Uniform(0.0002, 0.005) : 0;
  s.long_step_chance = world.Chance(0.2) ? world.Uniform(0.0005, 0.005) : 0;
  s.role_changes = some(0.5, 8);
  s.lane_falls = some(0.3, 4);
  s.spoils = s.verify ? some(0.7, 6) : 0;
  s.suspend_chance = world.Chance(0.4) ? world.Uniform(0.2, 1) : 0;
  if (world.Chance(0.2)) s.link_bytes = static_cast<size_t>(world.Between(200, 3000));
  s.bad_steps = some(0.2, 3);
  s.poisons = some(0.2, 1.5);
  s.tier_fault_chance = world.Chance(0.5) ? world.Uniform(0.01, 0.3) : 0;
}

SimClock SimSettings::MakeClock(SimWorld& world) const {
  if (!skewed_clocks) return {&world.clock, Duration{}, 0};
  const Duration offset = world.Ms(0, 1e9);
  return {&world.clock, offset, world.Uniform(-SimClock::kMostDrift, SimClock::kMostDrift)};
}

std::string SimSettings::ToString() const {
  return fmt::format(
      "routers={} P={} D={} block={} layers={} blocks={}/{} context={} batch={} sequences={} "
      "depth={} {} transfer={:.2f}ms/block "
      "step={:.1f}+{:.2f}ms lease={:.0f}ms requests={} span={:.0f}ms calm={} rolling={} "
      "crashes={:.1f} "
      "pauses={:.1f} breaks={:.1f} "
      "stalls={:.1f} drains={:.1f} router_crashes={:.1f} transfer_faults={:.1f} devices={:.1f} "
      "zombies={:.1f} "
      "router_pauses={:.1f} connect_fails={:.2f} duplicates={:.1f} half_opens={:.1f} room={} "
      "row_failures={:.4f} "
      "long_steps={:.4f} tenants={} blocking={} role_changes={:.1f} verify={} spoils={:.1f} "
      "skewed={} lane_falls={:.1f} falls_back={} tiers={}+{} suspends={:.2f} link_bytes={} "
      "bad_steps={:.1f} poisons={:.1f} poison_alone={} long_steps_alone={} stop_strings={:.2f} "
      "slow_readers={:.2f} "
      "pulls={} formats={}{}/{}{}",
      routers, prefill_workers, decode_workers, block_tokens, num_layers, prefill_blocks,
      decode_blocks, max_context, max_batch_tokens, max_sequences, executor_depth,
      fetches        ? "ucx-like"
      : owner_copies ? "tcp-like"
                     : "shm-like",
      transfer_ms_per_block, step_base_ms, step_token_ms, ToMs(lease), requests, ToMs(arrival_span),
      calm, rolling_update, crashes, pauses, link_breaks, link_stalls, drains, router_crashes,
      transfer_faults, device_failures, zombies, router_pauses, connect_fail_chance, duplicates,
      half_opens, link_room, row_failure_chance, long_step_chance, tenants, blocking_steps,
      role_changes, verify, spoils, skewed_clocks, lane_falls, falls_back, host_slots, disk_slots,
      suspend_chance, link_bytes == SIZE_MAX ? 0 : link_bytes, bad_steps, poisons, poison_alone,
      long_steps_alone, stop_string_chance, slow_reader_chance,
      kPrefixPulls[static_cast<size_t>(pulls)], prefill_dtype ? DTypeName(*prefill_dtype) : "",
      prefill_block_tokens, decode_dtype ? DTypeName(*decode_dtype) : "", block_tokens);
}

}  // namespace aisp
