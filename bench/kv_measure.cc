#include "bench/kv_measure.h"

#include <time.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/random.h"

namespace aisp {
namespace {

// CPU time of both processes in microseconds; independent of other load.
double CpuUs(pid_t other) {
  const auto of = [](clockid_t clock) {
    timespec time{};
    return clock_gettime(clock, &time) == 0
               ? static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3
               : 0.0;
  };
  clockid_t theirs = 0;
  const bool two = other != 0 && clock_getcpuclockid(other, &theirs) == 0;
  return of(CLOCK_PROCESS_CPUTIME_ID) + (two ? of(theirs) : 0);
}

}  // namespace

KvScatter::KvScatter(const KvWriteShape& shape, uint64_t pool_bytes)
    : shape_(shape), order_(pool_bytes / shape.block_bytes) {
  std::iota(order_.begin(), order_.end(), 0);
  SplitMix64 random(2);
  for (size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[random.Below(i + 1)]);
}

std::vector<BlockCopy> KvScatter::Copies(size_t round) const {
  std::vector<BlockCopy> copies(shape_.blocks);
  for (size_t i = 0; i < copies.size(); ++i) {
    const size_t at = (round * shape_.blocks + i) % order_.size();
    copies[i] = {order_[at] * shape_.block_bytes,
                 order_[order_.size() - 1 - at] * shape_.block_bytes, shape_.block_bytes};
  }
  return copies;
}

Result<KvBenchRow> MeasureKv(const std::string& lane, const KvWriteShape& shape, const KvPump& pump,
                             Duration at_least) {
  const SteadyClock clock;
  std::vector<double> alone;
  size_t round = 0;
  for (const Instant begin = clock.Now(); clock.Now() - begin < at_least || alone.size() < 5;) {
    const Instant start = clock.Now();
    AISP_RETURN_IF_ERROR(pump.start(round++));
    AISP_RETURN_IF_ERROR(pump.ended());
    alone.push_back(ToMs(clock.Now() - start) * 1e3);
  }
  std::ranges::nth_element(alone, alone.begin() + static_cast<ptrdiff_t>(alone.size() / 2));
  size_t started = 0;
  size_t ended = 0;
  const double cpu = CpuUs(pump.owner);
  const Instant begin = clock.Now();
  while (clock.Now() - begin < at_least || ended < started) {
    for (; started < ended + kKvUnderWay && clock.Now() - begin < at_least; ++started)
      AISP_RETURN_IF_ERROR(pump.start(round++));
    if (ended == started) break;
    AISP_ASSIGN_OR_RETURN(const size_t n, pump.ended());
    ended += n;
  }
  // Until the last write ends: few writes of 128 MiB end while others are started.
  const double seconds = ToSeconds(clock.Now() - begin);
  const auto bytes = static_cast<double>(ended * shape.blocks * shape.block_bytes);
  KvBenchRow row;
  row.lane = lane;
  row.block_kib = shape.block_bytes >> 10;
  row.blocks = static_cast<int32_t>(shape.blocks);
  row.write_us = alone[alone.size() / 2];
  row.gb_per_s = bytes / seconds * 1e-9;
  row.cpu_us_per_mib = (CpuUs(pump.owner) - cpu) / (bytes / (1 << 20));
  return row;
}

KvBenchRow MediansOf(std::vector<KvBenchRow> turns) {
  KvBenchRow row = turns.front();
  for (double KvBenchRow::*figure :
       {&KvBenchRow::write_us, &KvBenchRow::gb_per_s, &KvBenchRow::cpu_us_per_mib,
        &KvBenchRow::of_memcpy, &KvBenchRow::of_socket, &KvBenchRow::of_peer,
        &KvBenchRow::by_cpu}) {
    std::ranges::sort(turns, {}, figure);
    row.*figure = turns[turns.size() / 2].*figure;
  }
  return row;
}

}  // namespace aisp
