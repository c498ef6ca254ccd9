// Planning and end of simulated steps.
#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/prefix_hash.h"
#include "simulate/worker.h"

namespace aisp::simulate {
namespace {

// Prompts of a prefill worker that are tried if the first ones find no room.
constexpr int kLookAhead = 16;

}  // namespace

void Worker::Plan() {
  if (step_.running) return;
  launched_ = kNever;
  PlanWhatIsThere();
}

void Worker::PlanLaunched() {
  launched_ = profile_.launched_ahead > 0 ? step_.begin : kNever;
  PlanWhatIsThere();
  // There was no work to launch then.
  Plan();
}

void Worker::PlanWhatIsThere() {
  step_ = Step{};
  if (prefill()) {
    PlanJobs();
  } else {
    if (any_yields_) GiveWay();
    PlanDecode();
    PlanPrompts(PrefillTokens());
  }
  if (step_.rows.empty() && step_.chunks.empty()) return;
  BeginStep();
}

void Worker::BeginStep() {
  step_.running = true;
  step_.begin = world_->Now();
  step_.duration = FromMs(StepMs() * Jitter());
  // A minimum duration, or a free step would stop simulated time.
  step_.duration = std::max(step_.duration, Duration(1000));
  world_->StepEndsAt(*this, step_.begin + step_.duration);
}

double Worker::StepMs() {
  double ms = profile_.cost.StepMs(step_.shape);
  if (step_.shape.prefill_tokens <= 0) {
    for (const auto& [rows, more_ms] : profile_.more_from_rows)
      if (step_.shape.decode_rows >= rows) ms += more_ms;
    return ms;
  }
  const double beside_ms = step_.shape.decode_rows > 0 ? profile_.beside_rows_ms : 0;
  // Recent fraction of time with prefill.
  const double rested_ms = ToMs(step_.begin - prompts_until_);
  const double part = warmth_ * std::exp(-rested_ms / profile_.rest_ms);
  const double all_ms = (ms + beside_ms) * (1 + profile_.back_to_back * part);
  const double kept = std::exp(-all_ms / profile_.rest_ms);
  warmth_ = part * kept + (1 - kept);
  prompts_until_ = step_.begin + FromMs(all_ms);
  return all_ms;
}

// Rows for running sequences and for those that arrived from prefill workers. A sequence without a
// block for its next token takes those of the most recent sequence.
void Worker::PlanDecode() {
  while (!kv_ready_.empty() && static_cast<int32_t>(running_.size()) < profile_.max_running &&
         IsThere(Find(kv_ready_.front())->came)) {
    running_.push_back(kv_ready_.front());
    kv_ready_.pop_front();
  }
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *Find(running_[i]);
    if (sequence.length() - sequence.computed != 1) continue;
    if (static_cast<int32_t>(step_.rows.size()) >= profile_.max_batch_tokens) break;
    if (!Grow(sequence, i)) continue;
    step_.rows.push_back(sequence.wire_id);
    step_.shape.decode_rows += 1;
    step_.shape.decode_context += sequence.length();
  }
}

// Gets a block for its next token if needed; if there is none, preempts sequences behind it.
bool Worker::Grow(Sequence& sequence, size_t place) {
  const int64_t held = static_cast<int64_t>(sequence.shared) + sequence.private_blocks;
  const int64_t missing = std::max<int64_t>(0, (sequence.length() + block_ - 1) / block_ - held);
  while (!cache_.Take(missing)) {
    if (running_.size() <= place + 1) return false;
    Preempt(Victim(place + 1));
  }
  sequence.private_blocks += missing;
  return true;
}

void Worker::Preempt(uint64_t wire_id) {
  ++preemptions_;
  Sequence& sequence = *Find(wire_id);
  GiveBack(sequence);
  std::erase(running_, wire_id);
  Enqueue(sequence, /*first_of_its_kind=*/true);
}

void Worker::Enqueue(const Sequence& sequence, bool first_of_its_kind) {
  const bool yields = Yields(sequence);
  const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](uint64_t wire_id) {
    const bool other = Yields(*sequences_.at(wire_id));
    return first_of_its_kind ? other || !yields : other && !yields;
  });
  waiting_.insert(at, sequence.wire_id);
}

uint64_t Worker::Victim(size_t begin) const {
  for (size_t i = running_.size(); any_yields_ && i > begin; --i) {
    if (Yields(*sequences_.at(running_[i - 1]))) return running_[i - 1];
  }
  return running_.back();
}

void Worker::GiveWay() {
  if (waiting_.empty() || Yields(*Find(waiting_.front()))) return;
  const Sequence& first = *Find(waiting_.front());
  size_t held = 0;
  while (!running_.empty() && (static_cast<int32_t>(running_.size()) >= profile_.max_running ||
                               BlocksFor(first, &held) > cache_.available())) {
    const uint64_t victim = Victim(0);
    if (!Yields(*Find(victim))) return;
    Preempt(victim);
  }
}

int64_t Worker::BlocksFor(const Sequence& sequence, size_t* held) const {
  *held = cache_.Match(
      BlockNames(sequence.units, PromptBlocks(std::min(sequence.prompt, sequence.length() - 1))));
  return sequence.length() / block_ + 1 - static_cast<int64_t>(*held);
}

// Blocks for its prompt; cached prefix blocks are shared.
bool Worker::Admit(Sequence& sequence) {
  size_t held = 0;
  const int64_t needed = BlocksFor(sequence, &held);
  if (needed > cache_.available()) return false;
  const std::vector<Hash128> names = BlockNames(sequence.units, held);
  cache_.Use(names);
  if (!cache_.Take(needed)) {
    cache_.Release(names);
    return false;
  }
  sequence.shared = held;
  sequence.private_blocks = needed;
  sequence.computed = static_cast<int32_t>(held) * block_;
  return true;
}

// How many of `left` tokens this step computes in the first pass: half of the remaining budget if
// the prompt does not end in it and others wait.
int32_t Worker::Share(int32_t left, int32_t budget, bool others) const {
  const int32_t whole = std::min(profile_.chunk_tokens, budget);
  if (left <= whole || !others) return std::min(left, whole);
  return std::min(whole, std::max(budget / 2, block_));
}

void Worker::AddChunk(uint64_t wire_id, Worker* decode, int32_t computed, int32_t tokens) {
  const auto chunk = std::find_if(step_.chunks.begin(), step_.chunks.end(), [&](const Chunk& c) {
    return c.wire_id == wire_id && c.decode == decode;
  });
  const int32_t before = chunk == step_.chunks.end() ? 0 : chunk->tokens;
  if (chunk == step_.chunks.end()) {
    step_.chunks.push_back({wire_id, decode, tokens});
  } else {
    chunk->tokens += tokens;
  }
  step_.shape.prefill_tokens += tokens;
  step_.shape.prefill_context +=
      static_cast<double>(PromptWork::Of(computed + before, tokens).context);
}

int32_t Worker::PrefillTokens() {
  if (step_.rows.empty() || !cost_told_) return profile_.max_batch_tokens;
  turn_.Begin(*cost_told_, step_.shape, profile_.max_batch_tokens);
  for (const uint64_t wire_id : step_.rows) {
    const Sequence& s = *Find(wire_id);
    turn_.AddStream(s.limits, ToMs(world_->Now() - s.first), s.emitted, s.max_new);
  }
  const auto add = [&](uint64_t wire_id, bool waits) {
    const Sequence& s = *Find(wire_id);
    const int32_t begin = waits && s.limits.uncached_tokens > 0
                              ? std::max(0, s.length() - s.limits.uncached_tokens)
                              : s.computed;
    const int32_t left = s.length() - begin;
    if ((left > 1 || waits) && IsThere(s.came))
      turn_.AddPrompt(s.limits, ToMs(world_->Now() - s.came), begin, left);
  };
  for (size_t i = 0; i < running_.size() && !turn_.full(); ++i) add(running_[i], false);
  for (auto it = waiting_.begin(); it != waiting_.end() && !turn_.full(); ++it) add(*it, true);
  return turn_.Tokens();
}

// Whether another sequence computes the first block that this one would compute.
bool Worker::Follows(const Sequence& sequence) const {
  const size_t next = cache_.Match(BlockNames(sequence.units, PromptBlocks(sequence.prompt)));
  const size_t last_unit = (next + 1) * static_cast<size_t>(block_ / kHashUnitTokens);
  return std::any_of(running_.begin(), running_.end(), [&](uint64_t wire_id) {
    const Sequence& leader = *sequences_.at(wire_id);
    return leader.length() - leader.computed > 1 && leader.shared <= next &&
           last_unit <= std::min(leader.units.size(), sequence.units.size()) &&
           leader.units[last_unit - 1] == sequence.units[last_unit - 1];
  });
}

void Worker::PlanChunk(const Sequence& sequence, bool others, int32_t* budget) {
  const int32_t begin = sequence.computed, left = sequence.length() - begin;
  const int32_t tokens = Share(left, *budget, others);
  if (tokens <= 0) return;
  AddChunk(sequence.wire_id, this, begin, tokens);
  *budget -= tokens;
}

void Worker::PlanPrompts(int32_t most) {
  int32_t budget =
      std::min(most, profile_.max_batch_tokens - static_cast<int32_t>(step_.rows.size()));
  std::vector<uint64_t> planned;
  for (uint64_t wire_id : running_) {
    const Sequence& sequence = *Find(wire_id);
    if (sequence.length() - sequence.computed > 1) planned.push_back(wire_id);
  }
  const size_t ahead = planned.size();
  const auto plan_running = [&](bool yielding) {
    for (size_t i = 0; i < ahead && budget > 0; ++i) {
      const Sequence& sequence = *Find(planned[i]);
      if (Yields(sequence) == yielding)
        PlanChunk(sequence, i + 1 < ahead || !waiting_.empty(), &budget);
    }
  };
  int patience = kLookAhead;
  const auto plan_waiting = [&](bool yielding) {
    for (auto it = waiting_.begin();
         it != waiting_.end() && budget > 0 && patience > 0 &&
         static_cast<int32_t>(running_.size()) < profile_.max_running;) {
      Sequence& sequence = *Find(*it);
      const bool there = IsThere(sequence.came);
      if (Yields(sequence) != yielding || !there || Follows(sequence)) {
        if (Yields(sequence) == yielding && there) --patience;
        ++it;
        continue;
      }
      if (!Admit(sequence)) break;
      it = waiting_.erase(it);
      running_.push_back(sequence.wire_id);
      planned.push_back(sequence.wire_id);
      PlanChunk(sequence, it != waiting_.end(), &budget);
    }
  };
  for (const bool yielding : {false, true}) {
    if (yielding && !any_yields_) break;
    plan_running(yielding);
    plan_waiting(yielding);
  }
  // Second pass: the budget that no later prompt took.
  for (size_t i = 0; i < planned.size() && budget > 0; ++i) {
    const Sequence& sequence = *Find(planned[i]);
    const auto chunk = std::find_if(step_.chunks.begin(), step_.chunks.end(),
                                    [&](const Chunk& c) { return c.wire_id == sequence.wire_id; });
    if (chunk == step_.chunks.end()) continue;
    const int32_t begin = sequence.computed + chunk->tokens;
    const int32_t more =
        std::min({sequence.length() - begin, profile_.chunk_tokens - chunk->tokens, budget});
    if (more <= 0) continue;
    AddChunk(sequence.wire_id, this, sequence.computed, more);
    budget -= more;
  }
}

void Worker::PlanJobs() {
  int32_t budget = profile_.max_batch_tokens;
  int looked = 0;
  std::erase_if(jobs_, [](const Job& job) {
    return !job.started && job.decode->Find(job.wire_id) == nullptr;
  });
  for (size_t i = 0; i < jobs_.size() && budget > 0; ++i) {
    Job& job = jobs_[i];
    if (!IsThere(job.came)) continue;
    if (!job.started && ++looked > kLookAhead) break;
    if (!job.started && !StartJob(job)) continue;
    const int32_t tokens = Share(job.tokens - job.computed, budget, i + 1 < jobs_.size());
    if (tokens <= 0) continue;
    AddChunk(job.wire_id, job.decode, job.computed, tokens);
    budget -= tokens;
  }
  for (size_t i = 0; i < step_.chunks.size() && budget > 0; ++i) {
    const Chunk& chunk = step_.chunks[i];
    const Job& job = *std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) {
      return j.wire_id == chunk.wire_id && j.decode == chunk.decode;
    });
    const int32_t more = std::min(
        {job.tokens - job.computed - chunk.tokens, profile_.chunk_tokens - chunk.tokens, budget});
    if (more <= 0) continue;
    AddChunk(job.wire_id, job.decode, job.computed, more);
    budget -= more;
  }
  // A fully cached prompt has nothing to compute.
  for (size_t i = 0; i < jobs_.size();) {
    if (jobs_[i].started && jobs_[i].computed >= jobs_[i].tokens) {
      FinishJob(jobs_[i]);
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

void Worker::EndRows() {
  for (uint64_t wire_id : step_.rows) {
    Sequence* sequence = Find(wire_id);
    if (sequence == nullptr) continue;
    ++sequence->computed;
    Emit(*sequence);
  }
}

void Worker::EndChunks() {
  for (const Chunk& chunk : step_.chunks) {
    Sequence* sequence = Find(chunk.wire_id);
    if (sequence == nullptr) continue;
    sequence->computed += chunk.tokens;
    computed_prompt_tokens_ += chunk.tokens;
    PublishPrompt(*sequence);
    if (sequence->computed < sequence->length()) continue;
    Emit(*sequence);
  }
}

void Worker::EndJobs() {
  for (const Chunk& chunk : step_.chunks) {
    const auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) {
      return j.wire_id == chunk.wire_id && j.decode == chunk.decode;
    });
    if (job == jobs_.end()) continue;
    job->computed += chunk.tokens;
    job->compute_ms += ToMs(step_.duration);
    computed_prompt_tokens_ += chunk.tokens;
    if (job->computed < job->tokens) continue;
    FinishJob(*job);
    jobs_.erase(job);
  }
}

}  // namespace aisp::simulate
