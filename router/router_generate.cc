// What a decode worker is told of a request.
#include <algorithm>
#include <cstring>

#include "proto/hash_wire.h"
#include "proto/limits.h"
#include "proto/tenant.h"
#include "router/prefix_pulls.h"
#include "router/router_impl.h"

namespace aisp {

v1::GenerateRequest Router::Impl::MakeGenerate(const Request& request) const {
  v1::GenerateRequest out;
  const RouterRequest& spec = request.spec;
  out.set_request_id(request.wire_id);
  out.set_trace_id(spec.trace_id);
  out.set_choice(spec.choice);
  if (!spec.shares_tokens && !spec.tokens.empty()) {
    // Copied at once: Add, one by one, costs as much as hashing the tokens.
    const auto count = static_cast<int>(spec.tokens.size());
    out.mutable_tokens()->Reserve(count + static_cast<int>(request.answer.size()));
    std::memcpy(out.mutable_tokens()->AddNAlreadyReserved(count), spec.tokens.get().data(),
                spec.tokens.size() * sizeof(TokenId));
  }
  out.mutable_tokens()->Add(request.answer.begin(), request.answer.end());
  out.set_prompt_tokens(request.prompt_tokens);
  *out.mutable_sampling() = spec.sampling;
  out.set_max_new_tokens(spec.max_new_tokens);
  out.set_min_new_tokens(spec.min_new_tokens);
  out.mutable_stop_token_ids()->Add(spec.stop_token_ids.begin(), spec.stop_token_ids.end());
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(request.deadline - request.dispatched);
  out.set_timeout_ms(std::max<int64_t>(1, left.count()));
  out.set_priority(spec.priority);
  TenantShare tenant = spec.tenant;
  if (YieldsAt(request, request.dispatched)) {
    tenant.patience = request.ages - request.dispatched;
  } else {
    tenant.service_class = ServiceClass::kInteractive;
  }
  TenantToWire(tenant, out.mutable_tenant());
  out.set_pooling(spec.pooling);
  if (spec.prompt_logprobs >= 0) {
    out.set_prompt_logprobs(static_cast<uint32_t>(spec.prompt_logprobs));
    out.set_prompt_logprobs_from(request.prompt_scored);
  }
  out.set_cache_salt(spec.cache_scope);
  out.set_adapter(spec.adapter);
  if (!spec.answer_key.empty()) {
    v1::AnswerKey* key = out.mutable_answer_key();
    key->set_key(spec.answer_key);
    key->set_index(spec.answer_index);
    key->set_body(HashToWire(spec.content));
  }
  return out;
}

void Router::Impl::DescribePull(Request& request, const Choice& choice,
                                v1::GenerateRequest* generate) {
  const PullChoice& pull = choice.placement.pull;
  request.pulls_from.clear();
  if (pull.holder < 0) return;
  const v1::Register& holder = choice.states[static_cast<size_t>(pull.holder)]->info;
  request.pulls_from = holder.worker_id();
  const Placement& placement = choice.placement;
  const int to = placement.prefill >= 0 ? placement.prefill : placement.decode;
  request.pulls_to = choice.states[static_cast<size_t>(to)]->info.worker_id();
  // The time to begin allows for prediction errors, but not more than the pull would save.
  constexpr double kLeastMs = 10, kLeastLimitMs = 50, kWheneverMs = 2000;
  double begin_ms = std::clamp(2 * pull.pull_ms, kLeastMs, std::max(kLeastMs, pull.saved_ms));
  if (options.pulls == PrefixPulls::kAlways) begin_ms = kWheneverMs;
  const double limit_ms = begin_ms + std::max(kLeastLimitMs, 4 * pull.pull_ms);
  v1::PrefixSource* source = generate->mutable_pull();
  source->mutable_holder()->set_worker_id(holder.worker_id());
  source->mutable_holder()->set_incarnation(holder.incarnation());
  source->mutable_holder()->set_kv_address(holder.kv_address());
  source->set_tokens(static_cast<uint32_t>(pull.tokens));
  source->set_begin_within_us(static_cast<int64_t>(begin_ms * 1e3));
  source->set_limit_us(static_cast<int64_t>(limit_ms * 1e3));
}

// For the decode worker to choose between its streams and its prompts. A request that yields has no
// limits.
void Router::Impl::SetLimits(const Request& request, const Choice& choice,
                             v1::GenerateRequest* generate) const {
  const WorkerView& decode = choice.views[static_cast<size_t>(choice.placement.decode)];
  if (!decode.known || YieldsAt(request, clock->Now())) return;
  const Objective& asked = request.spec.objective;
  const double ttft_ms = asked.ttft_ms > 0 ? asked.ttft_ms : ToMs(options.slo_ttft);
  TokenLimits limits;
  limits.token_ms = asked.tpot_ms > 0 ? asked.tpot_ms : ToMs(options.slo_tpot);
  limits.answer_tokens = static_cast<int32_t>(pool.short_answers.tokens());
  const double waited_ms = ToMs(clock->Now() - request.submitted);
  if (request.emitted == 0 && ttft_ms > 0)
    limits.first_token_ms = std::max(1e-3, ttft_ms - waited_ms);
  if (choice.placement.prefill < 0) {
    const WorkerView with = WithPrefix(decode, choice.placement.pull.tokens);
    const auto tokens = static_cast<int32_t>(request.length());
    limits.uncached_tokens = tokens - std::min(KnownTokens(with), tokens - 1);
  }
  *generate->mutable_limits() = LimitsToWire(limits);
  *generate->mutable_limits()->mutable_cost() = CostToWire(decode.cost);
}

v1::GenerateRequest Router::Impl::GenerateFor(Request& request, const Choice& choice) {
  const Placement& placement = choice.placement;
  v1::GenerateRequest generate = MakeGenerate(request);
  const auto describe = [&](int index, v1::PrefillTarget* target) {
    const v1::Register& info = choice.states[static_cast<size_t>(index)]->info;
    request.prefill_workers.emplace(info.worker_id(), info.incarnation());
    target->set_worker_id(info.worker_id());
    target->set_incarnation(info.incarnation());
    target->set_kv_address(info.kv_address());
  };
  request.asks_prefill.reset();
  if (placement.prefill >= 0) {
    const v1::Register& first = choice.states[static_cast<size_t>(placement.prefill)]->info;
    request.asks_prefill.emplace(first.worker_id(), first.incarnation());
    describe(placement.prefill, generate.mutable_prefill());
    for (const int other : placement.fallbacks) describe(other, generate.add_prefill_fallbacks());
  }
  DescribePull(request, choice, &generate);
  SetLimits(request, choice, &generate);
  return generate;
}

}  // namespace aisp
