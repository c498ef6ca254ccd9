#include "loadgen/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/strings.h"
#include "loadgen/chunk_reader.h"

namespace aisp::loadgen {
namespace {

// Bodies are built on the loop, so launches are limited per turn of the loop.
constexpr int kLaunchesPerTurn = 32;
constexpr Duration kFirstBackoff = std::chrono::milliseconds(100);
constexpr Duration kMaxBackoff = std::chrono::seconds(30);

// Delay before arrival time 0, so that setting up is not part of any latency.
constexpr Duration kLeadTime = std::chrono::milliseconds(1);

// Limits for an answer; a choice index must be below the last.
constexpr int64_t kMostChunks = 1 << 20;
constexpr size_t kMostTextBytes = 64 << 20;
constexpr size_t kMostChoices = 1024;
constexpr size_t kMostFinishReasonBytes = 64;

Instant At(Instant start, double seconds) {
  return start + Duration(static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

// One request, from its due time to its end.
class Driver::Request final : public BackendListener {
 public:
  Request(Driver* driver, size_t index)
      : driver_(driver),
        index_(index),
        item_((*driver->items_)[index]),
        record_((*driver->records_)[index]) {
    if (item_.conversation < 0) return;
    item_.history = &driver->histories_[item_.conversation];
    answer_.asked = &(*driver->items_)[index];
  }

  void Send() {
    if (record_.status != RequestStatus::kPending) return;
    ++attempts_;
    record_.sent_s = driver_->Now();
    call_ = driver_->backend_->Start(item_, this);
    const double timeout_s = driver_->options_.request_timeout_s;
    timeout_ = driver_->loop_->RunAt(At(driver_->start_, record_.sent_s + timeout_s), [this,
                                                                                       timeout_s] {
      End(RequestStatus::kFailed, fmt::format("no end within --request-timeout {} s", timeout_s));
    });
  }
  void ArmCancel(SplitMix64* random) {
    if (driver_->options_.cancel_delay_s) {
      cancel_after_s_ = driver_->options_.cancel_delay_s;
      cancel_timer_ =
          driver_->loop_->RunAt(driver_->clock_.Now() + FromMs(1e3 * *cancel_after_s_), [this] {
            End(RequestStatus::kCancelled,
                fmt::format("abandoned after {} s, as asked", *cancel_after_s_));
          });
      return;
    }
    const auto chunks = static_cast<uint64_t>(std::max<int64_t>(item_.output_tokens - 1, 1));
    cancel_at_chunk_ = 1 + static_cast<int64_t>(random->Below(chunks));
  }
  void Abort(const std::string& reason) { End(RequestStatus::kCancelled, reason); }
  SpokenTurn TakeAnswer() { return std::move(answer_); }

  void OnResent() override { ++record_.resent; }
  void OnRoute(std::string_view route) override { record_.route = route; }
  void OnDelta(const Delta& delta) override;
  void OnUsage(const UsageCounts& usage) override {
    record_.tokens_from_usage = true;
    record_.input_tokens = usage.prompt_tokens;
    record_.output_tokens = usage.completion_tokens;
    record_.cached_tokens = usage.cached_tokens;
    record_.server = usage.server;
  }
  void OnEnd(const Ending& ending) override;

 private:
  // Why an answer exceeds what was requested; "": it does not.
  std::string Excess(const Delta& delta);
  void Retry(const Ending& ending);
  void KeepText(const Delta& delta);
  void End(RequestStatus status, const std::string& reason);

  Driver* driver_;
  const size_t index_;
  WorkItem item_;  // including history
  RequestRecord& record_;
  SpokenTurn answer_;  // for conversations
  std::unique_ptr<BackendCall> call_;
  std::shared_ptr<IoLoop::Timer> timeout_, cancel_timer_, retry_timer_;
  int64_t attempts_ = 0;
  size_t text_bytes_ = 0;
  int64_t cancel_at_chunk_ = -1;
  std::optional<double> cancel_after_s_;
};

std::string Driver::Request::Excess(const Delta& delta) {
  text_bytes_ += delta.raw_text.size() + delta.token_ids.size_bytes();
  if (record_.chunks >= kMostChunks) {
    return fmt::format("the answer has more than {} chunks", kMostChunks);
  }
  if (text_bytes_ > kMostTextBytes) {
    return fmt::format("the answer has more than {} bytes of text", kMostTextBytes);
  }
  if (delta.choice >= kMostChoices) {
    return fmt::format("the server answers for choice {}, which nobody asked for", delta.choice);
  }
  return "";
}

void Driver::Request::OnDelta(const Delta& delta) {
  if (record_.status != RequestStatus::kPending) return;
  if (const std::string excess = Excess(delta); !excess.empty()) {
    return End(RequestStatus::kFailed, excess);
  }
  if (delta.has_output || delta.finished) {
    const double now = driver_->Now();
    if (record_.first_s < 0) {
      record_.first_s = now;
    } else if (delta.has_output) {
      record_.gaps_ms.push_back(static_cast<float>(1e3 * (now - record_.last_s)));
    }
    if (delta.has_output || record_.last_s < 0) record_.last_s = now;
  }
  if (delta.finished) record_.finish_reason = Excerpt(delta.finish_reason, kMostFinishReasonBytes);
  if (driver_->options_.keep_texts) KeepText(delta);
  if (item_.conversation >= 0 && delta.choice == 0) {
    answer_.answer += delta.escaped ? UnescapeJson(delta.raw_text) : std::string(delta.raw_text);
    answer_.answer_ids.insert(answer_.answer_ids.end(), delta.token_ids.begin(),
                              delta.token_ids.end());
  }
  if (!delta.has_output) return;
  ++record_.chunks;
  ++driver_->chunks_;
  if (record_.chunks == cancel_at_chunk_ && !delta.finished) {
    End(RequestStatus::kCancelled,
        fmt::format("abandoned after {} chunks, as asked", record_.chunks));
  }
}

void Driver::Request::KeepText(const Delta& delta) {
  if (record_.texts.size() <= delta.choice) record_.texts.resize(delta.choice + 1);
  record_.texts[delta.choice] +=
      delta.escaped ? UnescapeJson(delta.raw_text) : std::string(delta.raw_text);
}

void Driver::Request::OnEnd(const Ending& ending) {
  if (record_.status != RequestStatus::kPending) return;
  record_.http_status = ending.http_status;
  if (ending.completed) return End(RequestStatus::kCompleted, "");
  if (ending.may_retry && attempts_ <= driver_->options_.retries) return Retry(ending);
  End(RequestStatus::kFailed, ending.reason);
}

void Driver::Request::Retry(const Ending& ending) {
  ++record_.retries;
  timeout_.reset();
  const Duration backoff = kFirstBackoff * (int64_t{1} << std::min<int64_t>(attempts_ - 1, 8));
  const Duration wait = std::min(ending.retry_after.value_or(backoff), kMaxBackoff);
  retry_timer_ = driver_->loop_->RunAt(driver_->clock_.Now() + wait, [this] { Send(); });
}

void Driver::Request::End(RequestStatus status, const std::string& reason) {
  if (record_.status != RequestStatus::kPending) return;
  record_.status = status;
  record_.reason = reason;
  record_.end_s = driver_->Now();
  if (!record_.tokens_from_usage) {
    record_.output_tokens = record_.chunks;
    record_.input_tokens = std::max<int64_t>(record_.asked_input_tokens, 0);
  }
  if (status == RequestStatus::kFailed) ++driver_->failed_;
  driver_->Ended(index_);
}

Driver::Driver(IoLoop* loop, Backend* backend, const DriverOptions& options,
               const std::vector<WorkItem>* items, std::vector<double> at_s,
               std::vector<RequestRecord>* records)
    : loop_(loop),
      backend_(backend),
      options_(options),
      items_(items),
      at_s_(std::move(at_s)),
      records_(records),
      first_turns_(FirstTurns(*items)) {
  AISP_CHECK(at_s_.size() == items_->size());
  records_->assign(items_->size(), {});
  live_.resize(items_->size());
}

Driver::~Driver() { *alive_ = false; }

void Driver::Start(std::function<void()> done) {
  done_ = std::move(done);
  start_ = clock_.Now() + kLeadTime;
  Pump();
}

double Driver::elapsed_s() const { return end_s_ >= 0 ? end_s_ : std::max(0.0, Now()); }

void Driver::Pump() {
  pump_posted_ = false;
  next_timer_.reset();
  const auto limit = static_cast<size_t>(options_.max_concurrency);
  for (int launched = 0; next_ < first_turns_.size(); ++launched) {
    const size_t index = first_turns_[next_];
    // Called again when a slot becomes free.
    if (limit > 0 && slots_ >= limit) return;
    if (at_s_[index] > Now()) {
      next_timer_ = loop_->RunAt(At(start_, at_s_[index]), [this] { Pump(); });
      return;
    }
    if (launched == kLaunchesPerTurn) return PumpSoon();
    ++next_;
    ++slots_;
    Launch(index, options_.closed_loop ? Now() : at_s_[index]);
  }
}

void Driver::PumpSoon() {
  if (std::exchange(pump_posted_, true)) return;
  loop_->Post([this, alive = alive_] {
    if (*alive) Pump();
  });
}

void Driver::Launch(size_t index, double intended_s) {
  RequestRecord& record = (*records_)[index];
  record.intended_s = intended_s;
  record.conversation = (*items_)[index].conversation;
  record.turn = (*items_)[index].turn;
  record.asked_input_tokens = (*items_)[index].made_up() ? (*items_)[index].input_tokens : -1;
  record.asked_output_tokens = (*items_)[index].output_tokens;
  ++in_flight_;
  live_[index] = std::make_unique<Request>(this, index);
  // Whether and when a request is abandoned depends only on the seed and its index.
  SplitMix64 random(options_.seed ^ (0xCA9CE1 + index * 0x9E3779B97F4A7C15));
  random.Next();
  if (random.Uniform() < options_.cancel_rate) live_[index]->ArmCancel(&random);
  live_[index]->Send();
}

void Driver::Ended(size_t index) {
  if (++ended_ == items_->size()) end_s_ = Now();
  loop_->Post([this, alive = alive_, index] {
    if (!*alive) return;
    // The slot is free only now, when an abandoned request's connection has closed.
    const SpokenTurn answer = live_[index]->TakeAnswer();
    live_[index].reset();
    --in_flight_;
    if ((*items_)[index].conversation >= 0) {
      histories_[(*items_)[index].conversation].push_back(answer);
    }
    GoOn(index);
    if (options_.max_concurrency > 0) PumpSoon();
    FinishIfAllEnded();
  });
}

bool Driver::HasNext(size_t index) const {
  return index + 1 < items_->size() && (*items_)[index + 1].turn > 0;
}

void Driver::GoOn(size_t index) {
  const RequestRecord& record = (*records_)[index];
  const WorkItem& item = (*items_)[index];
  if (HasNext(index) && (*records_)[index + 1].status == RequestStatus::kPending) {
    if (record.status != RequestStatus::kCompleted) {
      GiveUpAfter(index,
                  fmt::format("turn {} of its conversation was not answered", item.turn + 1));
    } else if (options_.needs_ids && histories_[item.conversation].back().answer_ids.empty() &&
               record.output_tokens > 0) {
      // Not counted as cancelled: the server cannot do what the run asked for.
      RequestRecord& next = (*records_)[index + 1];
      next.status = RequestStatus::kFailed;
      next.reason =
          "the answer before has no token ids (return_token_ids) to go on from; use chats or "
          "--prompt-format text";
      next.end_s = Now();
      ++failed_;
      if (++ended_ == items_->size()) end_s_ = Now();
      GiveUpAfter(index + 1, "its conversation could not go on");
    } else {
      const double due_s = record.end_s + options_.turn_delay_s;
      pauses_[index + 1] = loop_->RunAt(At(start_, due_s), [this, index, due_s] {
        const size_t next = index + 1;
        const double due = due_s;  // copied, since erasing the timer destroys its captures
        pauses_.erase(next);
        Launch(next, due);
      });
      return;
    }
  }
  histories_.erase(item.conversation);
  --slots_;
}

void Driver::GiveUpAfter(size_t index, const std::string& reason) {
  for (size_t next = index; HasNext(next); ++next) SetNotSent(next + 1, reason);
}

void Driver::SetNotSent(size_t index, const std::string& reason) {
  RequestRecord& record = (*records_)[index];
  if (record.status != RequestStatus::kPending) return;
  record.intended_s = std::max(at_s_[index], 0.0);
  record.end_s = Now();
  record.status = RequestStatus::kNotSent;
  record.reason = reason;
  record.conversation = (*items_)[index].conversation;
  record.turn = (*items_)[index].turn;
  if (++ended_ == items_->size()) end_s_ = Now();
}

void Driver::FinishIfAllEnded() {
  if (in_flight_ == 0 && ended_ == items_->size() && done_) std::exchange(done_, nullptr)();
}

void Driver::Abort(const std::string& reason) {
  next_timer_.reset();
  pauses_.clear();
  next_ = first_turns_.size();
  for (size_t i = 0; i < items_->size(); ++i) {
    if (!live_[i]) SetNotSent(i, reason + " before it was sent");
  }
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i]) live_[i]->Abort(reason);
  }
  if (ended_ == items_->size()) end_s_ = Now();
  loop_->Post([this, alive = alive_] {
    if (*alive) FinishIfAllEnded();
  });
}

}  // namespace aisp::loadgen
