#include "server/range_executor.h"

#include <fmt/format.h>

#include <utility>

#include "server/forwarding_executor.h"

namespace aisp {
namespace {

class Range {
 public:
  Range(const ProfilerRanges& ranges, const char* name) : ranges_(ranges) { ranges_.push(name); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { ranges_.pop(); }

 private:
  const ProfilerRanges& ranges_;
};

class RangeExecutor final : public ForwardingExecutor {
 public:
  RangeExecutor(std::unique_ptr<ServingExecutor> inner, const ProfilerRanges& ranges)
      : ForwardingExecutor(std::move(inner)), ranges_(ranges) {}

  Result<Ticket> Launch(const StepInput& input) override {
    size_t decode_rows = 0;
    for (const SequenceRows& rows : input.batch.sequences)
      decode_rows += rows.num_rows == 1 ? 1 : 0;
    fmt::memory_buffer name;
    fmt::format_to(std::back_inserter(name), "step {}+{}", input.batch.tokens.size() - decode_rows,
                   decode_rows);
    name.push_back('\0');
    const Range range(ranges_, name.data());
    return ForwardingExecutor::Launch(input);
  }
  Result<StepResult> Collect(Ticket ticket) override {
    const Range range(ranges_, "collect");
    return ForwardingExecutor::Collect(ticket);
  }

 private:
  const ProfilerRanges ranges_;
};

}  // namespace

std::unique_ptr<ServingExecutor> WithProfilerRanges(std::unique_ptr<ServingExecutor> executor,
                                                    const ProfilerRanges& ranges) {
  return std::make_unique<RangeExecutor>(std::move(executor), ranges);
}

}  // namespace aisp
