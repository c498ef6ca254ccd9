#include "bench/route.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <queue>
#include <unordered_map>

#include "common/metrics.h"
#include "common/prefix_hash.h"
#include "common/random.h"
#include "proto/fingerprint.h"
#include "proto/hash_wire.h"
#include "router/policy.h"
#include "router/router.h"

namespace aisp {
namespace {

constexpr Instant kStart{1'000'000'000};
constexpr Duration kReportEvery = std::chrono::milliseconds(50);
constexpr uint64_t kIncarnation = 1;
constexpr int32_t kBlockTokens = 64;
constexpr int32_t kBlocks = 4'096;  // of a worker's pool
constexpr int32_t kMaxRunning = 256;
constexpr int32_t kVocabulary = 1 << 30;

double CpuMicros() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

v1::Fingerprint MakeFingerprint() {
  v1::Fingerprint f;
  f.set_protocol_version(1);
  v1::KvLayoutDesc& kv = *f.mutable_kv_layout();
  kv.set_num_layers(32);
  kv.set_num_kv_heads(8);
  kv.set_head_dim(128);
  kv.set_dtype("bf16");
  kv.set_block_tokens(kBlockTokens);
  return f;
}

// Sends a worker's messages at fixed times: prefill takes 5 ms plus 10 us per uncached token, a
// decode step 5 ms.
struct FakeWorker {
  std::string id;
  LinkId link;
  bool prefill = false;
  int32_t rows = 0;
  int64_t queued_tokens = 0;
  uint64_t sequence = 0;
  uint64_t kv_sequence = 0;
  uint64_t requests = 0;
  Instant free_at;
  // Its prefix cache: units, with the number of recent prompts that hold them.
  std::unordered_map<Hash128, int32_t> held;
  std::deque<std::vector<Hash128>> prompts;
  size_t units = 0;
};

class Bench final : private LinkSender<v1::RouterMessage> {
 public:
  explicit Bench(const RouteBenchOptions& options)
      : options_(options),
        fingerprint_(MakeFingerprint()),
        random_(options.seed),
        router_(MakeOptions(options_), fingerprint_, &clock_, options.seed, this, &metrics_) {
    clock_.Set(kStart);
    for (int32_t i = 0; i < options.prefill + options.decode; ++i) Register(i, i < options.prefill);
  }

  RouteBench Run() {
    std::vector<double> placed_us;
    placed_us.reserve(static_cast<size_t>(options_.requests));
    for (int32_t i = 0; i < options_.requests; ++i) {
      RunUntil(kStart + FromMs(1e3 * i / options_.rate));
      RouterRequest request = MakeRequest();
      Duration hint{};
      const double begin = CpuMicros();
      const auto id = router_.Submit(std::move(request), &nobody_, &hint);
      placed_us.push_back(CpuMicros() - begin);
      if (!id) ++result_.refused;
      TakeSent();
    }
    Summarize(&placed_us);
    return result_;
  }

 private:
  struct Event {
    enum Kind : uint8_t { kFirstToken, kLastToken, kReport };
    Instant at;
    uint64_t order;
    Kind kind;
    size_t worker;
    uint64_t wire_id = 0;
    size_t computed_by = 0;
    int32_t tokens = 0;
    bool operator>(const Event& e) const { return at != e.at ? at > e.at : order > e.order; }
  };
  struct Nobody final : RequestObserver {
    void OnRouted(const RouteDecision& /*route*/) override {}
    void OnTokens(const v1::TokenEvent& /*event*/) override {}
    void OnFinish(v1::FinishReason /*reason*/, const Error& /*error*/, Duration /*hint*/) override {
    }
  };

  static RouterOptions MakeOptions(const RouteBenchOptions& options) {
    RouterOptions out;
    out.policy.name = options.policy;
    out.max_inflight = out.max_queued = 1'000'000;
    out.default_timeout = std::chrono::hours(1);
    return out;
  }

  void Register(int32_t index, bool prefill) {
    FakeWorker& worker = workers_.emplace_back();
    worker.id = fmt::format("{}{}", prefill ? 'p' : 'd', index);
    worker.link = LinkId(static_cast<uint64_t>(index) + 1);
    worker.prefill = prefill;
    worker.free_at = kStart;
    by_name_[worker.id] = static_cast<size_t>(index);
    router_.OnLinkUp(worker.link, worker.id);
    v1::WorkerMessage message;
    v1::Register& r = *message.mutable_register_();
    r.set_worker_id(worker.id);
    r.set_incarnation(kIncarnation);
    r.set_role(prefill ? v1::ROLE_PREFILL : v1::ROLE_DECODE);
    *r.mutable_fingerprint() = fingerprint_;
    r.set_kv_address(worker.id);
    r.set_host_id("bench");
    r.set_max_sequence_tokens(kBlocks * kBlockTokens);
    r.set_max_running(kMaxRunning);
    r.set_max_batch_tokens(8'192);
    r.set_max_prefill_chunk(2'048);
    r.set_first_tokens(true);
    router_.OnMessage(worker.link, std::move(message));
    Report(static_cast<size_t>(index));
  }

  RouterRequest MakeRequest() {
    const uint64_t prefix = random_.Below(static_cast<uint64_t>(options_.prefixes));
    SplitMix64 shared(options_.seed * 1'000'003 + prefix);
    std::vector<TokenId> tokens;
    tokens.reserve(static_cast<size_t>(options_.prefix_tokens) +
                   static_cast<size_t>(options_.own_tokens));
    for (int32_t i = 0; i < options_.prefix_tokens; ++i)
      tokens.push_back(static_cast<TokenId>(shared.Below(kVocabulary)));
    for (int32_t i = 0; i < options_.own_tokens; ++i)
      tokens.push_back(static_cast<TokenId>(random_.Below(kVocabulary)));
    RouterRequest request;
    request.tokens = std::move(tokens);
    request.max_new_tokens = static_cast<uint32_t>(options_.output_tokens);
    return request;
  }

  // The worker's own work does not count as router time.
  void Send(LinkId link, v1::RouterMessage message) override {
    if (message.has_generate()) sent_.emplace_back(link, std::move(message));
  }
  void Close(LinkId /*link*/) override {}

  void TakeSent() {
    for (const auto& [link, message] : sent_) Take(link.value - 1, message.generate());
    sent_.clear();
  }

  // The message was sent to the worker `decode`.
  void Take(size_t decode, const v1::GenerateRequest& generate) {
    const size_t computes =
        generate.has_prefill() ? by_name_.at(generate.prefill().worker_id()) : decode;
    FakeWorker& worker = workers_[computes];
    const std::vector<Hash128> units = UnitHashes(
        PrefixRoot(PrefixDigest(fingerprint_), "", generate.adapter(), generate.cache_salt()),
        {generate.tokens().data(), static_cast<size_t>(generate.tokens_size())});
    int32_t known = 0;
    while (known < static_cast<int32_t>(units.size()) &&
           worker.held.count(units[static_cast<size_t>(known)]) != 0)
      ++known;
    const int32_t left = generate.tokens_size() - known * kHashUnitTokens;
    known_tokens_ += known * kHashUnitTokens;
    asked_tokens_ += generate.tokens_size();
    worker.free_at = std::max(worker.free_at, clock_.Now()) + FromMs(0.01 * left);
    worker.queued_tokens += left;
    ++workers_[decode].rows;
    ++workers_[decode].requests;
    Schedule(worker.free_at + FromMs(5), Event::kFirstToken, decode, generate.request_id(),
             computes, left);
    Keep(&worker, units);
    constexpr uint64_t kPrime = 1'099'511'628'211;  // FNV-1a
    result_.placements = (result_.placements ^ decode) * kPrime;
    result_.placements = (result_.placements ^ computes) * kPrime;
  }

  // Caches its units, and evicts the least recently requested ones if there is no room.
  void Keep(FakeWorker* worker, const std::vector<Hash128>& units) {
    std::vector<Hash128> stored, removed;
    for (const Hash128& unit : units) {
      if (++worker->held[unit] == 1) stored.push_back(unit);
    }
    worker->prompts.push_back(units);
    constexpr size_t kMostUnits = size_t{kBlocks} * kBlockTokens / kHashUnitTokens;
    while (worker->held.size() > kMostUnits && worker->prompts.size() > 1) {
      const std::vector<Hash128>& oldest = worker->prompts.front();
      for (size_t i = oldest.size(); i-- > 0;) {
        const auto it = worker->held.find(oldest[i]);
        if (--it->second > 0) continue;
        removed.push_back(oldest[i]);
        worker->held.erase(it);
      }
      worker->prompts.pop_front();
    }
    ReportBlocks(worker, stored, removed);
  }

  void ReportBlocks(FakeWorker* worker, const std::vector<Hash128>& stored,
                    const std::vector<Hash128>& removed) {
    if (stored.empty() && removed.empty()) return;
    v1::WorkerMessage message;
    v1::KvEventBatch& batch = *message.mutable_kv_events();
    batch.set_incarnation(kIncarnation);
    batch.set_first_sequence(worker->kv_sequence);
    const auto add = [&batch](const std::vector<Hash128>& units, v1::KvEvent::Kind kind) {
      if (units.empty()) return;
      v1::KvEvent& event = *batch.add_events();
      event.set_kind(kind);
      for (const Hash128& unit : units) event.add_unit_hashes(HashToWire(unit));
    };
    add(removed, v1::KvEvent::REMOVED);
    add(stored, v1::KvEvent::STORED);
    worker->kv_sequence += static_cast<uint64_t>(batch.events_size());
    later_.push_back({worker->link, std::move(message)});
  }

  void Report(size_t index) {
    FakeWorker& worker = workers_[index];
    v1::WorkerMessage message;
    v1::Telemetry& t = *message.mutable_telemetry();
    t.set_incarnation(kIncarnation);
    t.set_sequence(++worker.sequence);
    t.set_ready(true);
    t.set_running(static_cast<uint32_t>(worker.rows));
    t.set_queued_prefill_tokens(static_cast<uint64_t>(worker.queued_tokens));
    t.set_queued_prefill_context(static_cast<uint64_t>(worker.queued_tokens) * 1'000);
    const auto used = static_cast<uint32_t>(
        worker.rows * (options_.prefix_tokens + options_.own_tokens) / kBlockTokens);
    t.set_total_blocks(kBlocks);
    t.set_free_blocks(kBlocks - std::min<uint32_t>(used, kBlocks));
    t.set_requests_total(worker.requests);
    for (uint32_t i = 0; i < 8; ++i) {
      v1::StepSample& step = *t.add_steps();
      const bool prompt = worker.prefill || i % 4 == 0;
      step.set_prefill_tokens(prompt ? 256 + 16 * i : 0);
      step.set_prefill_context(prompt ? 256'000 : 0);
      if (!worker.prefill) step.set_decode_rows(static_cast<uint32_t>(worker.rows) + 1);
      step.set_duration_ns(5'000'000 + step.prefill_tokens() * 10'000);
    }
    Hear(worker.link, std::move(message));
    Schedule(clock_.Now() + kReportEvery, Event::kReport, index);
  }

  void Schedule(Instant at, Event::Kind kind, size_t worker, uint64_t wire_id = 0,
                size_t computed_by = 0, int32_t tokens = 0) {
    events_.push({at, next_order_++, kind, worker, wire_id, computed_by, tokens});
  }

  void Hear(LinkId link, v1::WorkerMessage message) {
    const double begin = CpuMicros();
    router_.OnMessage(link, std::move(message));
    heard_us_ += CpuMicros() - begin;
  }

  // In batches: two clock readings cost as much as handling a short message.
  void HearLater() {
    if (later_.empty()) return;
    std::vector<std::pair<LinkId, v1::WorkerMessage>> messages = std::exchange(later_, {});
    const double begin = CpuMicros();
    for (auto& [link, message] : messages) router_.OnMessage(link, std::move(message));
    heard_us_ += CpuMicros() - begin;
  }

  void Handle(const Event& event) {
    if (event.kind == Event::kReport) return Report(event.worker);
    FakeWorker& worker = workers_[event.worker];
    v1::WorkerMessage message;
    v1::TokenEvent& tokens = *message.mutable_tokens()->add_events();
    tokens.set_request_id(event.wire_id);
    const auto prompt = static_cast<uint32_t>(options_.prefix_tokens + options_.own_tokens);
    if (event.kind == Event::kFirstToken) {
      workers_[event.computed_by].queued_tokens -= event.tokens;
      tokens.set_first_position(prompt);
      tokens.add_tokens(0);
      if (event.computed_by != event.worker)
        tokens.mutable_timing()->set_prefill_worker(workers_[event.computed_by].id);
      Schedule(clock_.Now() + FromMs(5.0 * options_.output_tokens), Event::kLastToken, event.worker,
               event.wire_id);
    } else {
      --worker.rows;
      tokens.set_first_position(prompt + 1);
      for (int32_t i = 1; i < options_.output_tokens; ++i) tokens.add_tokens(0);
      tokens.set_finish(v1::FINISH_LENGTH);
    }
    Hear(worker.link, std::move(message));
  }

  void RunUntil(Instant until) {
    while (true) {
      HearLater();
      if (events_.empty() || events_.top().at > until) break;
      const Event event = events_.top();
      events_.pop();
      clock_.Set(std::max(clock_.Now(), event.at));
      if (router_.NextTimer() <= clock_.Now()) {
        const double begin = CpuMicros();
        router_.OnTimer(clock_.Now());
        heard_us_ += CpuMicros() - begin;
      }
      TakeSent();
      Handle(event);
    }
    clock_.Set(std::max(clock_.Now(), until));
  }

  void Summarize(std::vector<double>* us) {
    std::sort(us->begin(), us->end());
    double sum = 0;
    for (const double each : *us) sum += each;
    const auto count = static_cast<double>(us->size());
    const auto at = [us](double part) {
      return (*us)[static_cast<size_t>(part * static_cast<double>(us->size() - 1))];
    };
    result_.workers = static_cast<int32_t>(workers_.size());
    result_.requests = static_cast<int64_t>(us->size());
    result_.place_mean_us = sum / count;
    result_.place_p50_us = at(0.5);
    result_.place_p99_us = at(0.99);
    result_.place_max_us = us->back();
    result_.heard_us = heard_us_ / count;
    result_.cached = asked_tokens_ > 0
                         ? static_cast<double>(known_tokens_) / static_cast<double>(asked_tokens_)
                         : 0;
  }

  const RouteBenchOptions options_;
  const v1::Fingerprint fingerprint_;
  SplitMix64 random_;
  ManualClock clock_;
  Metrics metrics_;
  Nobody nobody_;
  Router router_;
  std::deque<FakeWorker> workers_;
  std::unordered_map<std::string, size_t> by_name_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t next_order_ = 0;
  std::vector<std::pair<LinkId, v1::RouterMessage>> sent_;
  std::vector<std::pair<LinkId, v1::WorkerMessage>> later_;  // not delivered inside router calls
  double heard_us_ = 0;
  int64_t known_tokens_ = 0, asked_tokens_ = 0;
  RouteBench result_;
};

}  // namespace

Result<RouteBench> BenchRoute(const RouteBenchOptions& options) {
  if (const auto known = MakeRoutingPolicy({options.policy, {}}); !known)
    return tl::unexpected(known.error());
  if (options.decode < 1) return InvalidArgument("every request needs a decode worker");
  return Bench(options).Run();
}

std::string ToTable(const RouteBenchOptions& options, const RouteBench& b) {
  return fmt::format("{:<14}{:>8}{:>10}{:>9}{:>10}{:>8}{:>8}{:>8}{:>12}{:>14}\n", "policy",
                     "workers", "requests", "cached", "place us", "p50", "p99", "most",
                     "hearing us", "requests/s") +
         fmt::format(
             "{:<14}{:>8}{:>10}{:>8.1f}%{:>10.1f}{:>8.1f}{:>8.1f}{:>8.0f}{:>12.1f}{:>14.0f}\n",
             options.policy, b.workers, b.requests, 100 * b.cached, b.place_mean_us, b.place_p50_us,
             b.place_p99_us, b.place_max_us, b.heard_us, b.PerSecond());
}

std::string ToJson(const RouteBenchOptions& options, const RouteBench& b) {
  return fmt::format(
      "{{\"policy\": \"{}\", \"workers\": {}, \"requests\": {}, \"refused\": {}, "
      "\"cached\": {:.4f}, \"place_us\": {{\"mean\": {:.2f}, \"p50\": {:.2f}, \"p99\": {:.2f}, "
      "\"max\": {:.1f}}}, \"hearing_us\": {:.2f}, \"requests_per_s\": {:.0f}}}",
      options.policy, b.workers, b.requests, b.refused, b.cached, b.place_mean_us, b.place_p50_us,
      b.place_p99_us, b.place_max_us, b.heard_us, b.PerSecond());
}

}  // namespace aisp
