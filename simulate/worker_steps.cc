// What a simulated step holds and what it leaves behind.
#include <algorithm>

#include "common/check.h"
#include "simulate/worker.h"

namespace aisp::simulate {
namespace {

// Prompts of a prefill worker that are looked at when the first ones find no room.
constexpr int kLookAhead = 16;

}  // namespace

void Worker::Plan() {
  if (step_.running) return;
  step_ = Step{};
  if (prefill()) {
    PlanJobs();
  } else {
    PlanDecode();
    PlanPrompts();
  }
  if (step_.rows.empty() && step_.chunks.empty()) return;
  BeginStep();
}

void Worker::BeginStep() {
  step_.running = true;
  step_.begin = world_->Now();
  step_.duration = FromMs(profile_.cost.StepMs(step_.shape) * Jitter());
  // A step takes some time whatever its profile says, or the world would stand still.
  step_.duration = std::max(step_.duration, Duration(1000));
  world_->StepEndsAt(*this, step_.begin + step_.duration);
}

// Rows for what decodes already and for what arrived from prefill workers; a sequence that finds no
// block for its next token takes those of the one that came last.
void Worker::PlanDecode() {
  while (!kv_ready_.empty() && static_cast<int32_t>(running_.size()) < profile_.max_running) {
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

// A block for its next token, if it needs one: where there is none, of those that run behind it.
bool Worker::Grow(Sequence& sequence, size_t place) {
  const int64_t held = static_cast<int64_t>(sequence.shared) + sequence.private_blocks;
  const int64_t missing = std::max<int64_t>(0, (sequence.length() + block_ - 1) / block_ - held);
  while (!cache_.Take(missing)) {
    if (running_.size() <= place + 1) return false;
    Preempt(running_.back());
  }
  sequence.private_blocks += missing;
  return true;
}

void Worker::Preempt(uint64_t wire_id) {
  ++preemptions_;
  Sequence& sequence = *Find(wire_id);
  GiveBack(sequence);
  std::erase(running_, wire_id);
  waiting_.push_front(wire_id);
}

// The blocks of its prompt, those of its prefix that are here shared with others.
bool Worker::Admit(Sequence& sequence) {
  const std::vector<Hash128> names =
      BlockNames(sequence.units, PromptBlocks(std::min(sequence.prompt, sequence.length() - 1)));
  const size_t held = cache_.Match(names);
  const int64_t needed = sequence.length() / block_ + 1 - static_cast<int64_t>(held);
  if (needed > cache_.available()) return false;
  cache_.Use({names.data(), held});
  if (!cache_.Take(needed)) {
    cache_.Release({names.data(), held});
    return false;
  }
  sequence.shared = held;
  sequence.private_blocks = needed;
  sequence.computed = static_cast<int32_t>(held) * block_;
  return true;
}

void Worker::PlanPrompts() {
  int32_t budget = profile_.max_batch_tokens - static_cast<int32_t>(step_.rows.size());
  const auto compute = [&](const Sequence& sequence) {
    const int32_t left = sequence.length() - sequence.computed;
    const int32_t tokens = std::min({left, profile_.chunk_tokens, budget});
    if (tokens <= 0) return;
    budget -= tokens;
    step_.chunks.push_back({sequence.wire_id, this, tokens});
    step_.shape.prefill_tokens += tokens;
    step_.shape.prefill_context +=
        static_cast<double>(PromptWork::Of(sequence.computed, tokens).context);
  };
  for (uint64_t wire_id : running_) {
    const Sequence& sequence = *Find(wire_id);
    if (sequence.length() - sequence.computed > 1) compute(sequence);
  }
  while (budget > 0 && !waiting_.empty() &&
         static_cast<int32_t>(running_.size()) < profile_.max_running) {
    Sequence& sequence = *Find(waiting_.front());
    if (!Admit(sequence)) return;
    waiting_.pop_front();
    running_.push_back(sequence.wire_id);
    compute(sequence);
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
    if (!job.started && ++looked > kLookAhead) break;
    if (!job.started && !StartJob(job)) continue;
    const int32_t tokens = std::min({job.tokens - job.computed, profile_.chunk_tokens, budget});
    if (tokens <= 0) continue;
    budget -= tokens;
    step_.chunks.push_back({job.wire_id, job.decode, tokens});
    step_.shape.prefill_tokens += tokens;
    step_.shape.prefill_context +=
        static_cast<double>(PromptWork::Of(job.computed, tokens).context);
  }
  // A prompt that is cached as a whole has nothing to compute.
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
    if (sequence->computed < sequence->length()) continue;
    PublishPrompt(*sequence);
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
