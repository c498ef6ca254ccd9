#include "decode/codec.h"

#include <algorithm>

#include "proto/limits.h"
#include "proto/tenant.h"
#include "worker/sampling_codec.h"

namespace aisp {

namespace {

Pooling PoolingFromWire(v1::Pooling pooling) {
  switch (pooling) {
    case v1::POOL_MEAN:
      return Pooling::kMean;
    case v1::POOL_LAST:
      return Pooling::kLast;
    case v1::POOL_FIRST:
      return Pooling::kFirst;
    default:
      return Pooling::kNone;
  }
}

}  // namespace

SequenceRequest SequenceFromWire(const v1::GenerateRequest& wire, const SharedTokens& shared) {
  SequenceRequest request;
  request.tokens = shared;
  request.tokens.insert(request.tokens.end(), wire.tokens().begin(), wire.tokens().end());
  request.prompt_tokens =
      static_cast<int32_t>(wire.prompt_tokens() > 0 ? wire.prompt_tokens() : request.tokens.size());
  if (wire.has_sampling()) request.sampling = SamplingFromWire(wire.sampling(), wire.choice());
  request.sampling.choice = wire.choice();
  request.max_new_tokens = static_cast<int32_t>(wire.max_new_tokens());
  request.min_new_tokens = static_cast<int32_t>(wire.min_new_tokens());
  request.stop_token_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  request.cache_scope = wire.cache_salt();
  request.adapter = wire.adapter();
  request.priority = wire.priority();
  request.tenant = TenantFromWire(wire.tenant());
  if (wire.sampling().has_max_draft_tokens())
    request.max_draft_tokens = static_cast<int32_t>(wire.sampling().max_draft_tokens());
  request.pooling = PoolingFromWire(wire.pooling());
  if (wire.has_prompt_logprobs())
    request.prompt_logprobs = static_cast<int32_t>(wire.prompt_logprobs());
  request.limits = LimitsFromWire(wire.limits());
  if (wire.limits().has_cost()) request.step_cost = CostFromWire(wire.limits().cost());
  request.prompt_logprobs_from = std::max(1, static_cast<int32_t>(wire.prompt_logprobs_from()));
  return request;
}

v1::FinishReason FinishToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_NONE;
    case FinishReason::kStop:
      return v1::FINISH_STOP;
    case FinishReason::kLength:
      return v1::FINISH_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_CANCELLED;
    case FinishReason::kError:
      return v1::FINISH_ERROR;
  }
  return v1::FINISH_ERROR;
}

void ErrorToWire(const Error& error, Fault fault, v1::Error* wire) {
  wire->set_code(static_cast<int>(error.code));
  wire->set_message(error.message);
  wire->set_retryable(MayRetry(fault));
  wire->set_fault(static_cast<v1::Fault>(fault));
}

void DraftsToWire(const DraftCounts& drafts, v1::DraftCounts* wire) {
  wire->set_steps(static_cast<uint32_t>(drafts.steps));
  wire->set_drafted(static_cast<uint32_t>(drafts.drafted));
  wire->set_accepted(static_cast<uint32_t>(drafts.accepted));
}

void AppendOutput(const TokenOutput& output, v1::TokenEvent* event) {
  if (!output.prompt_logprobs.empty()) {
    v1::PromptLogprobs* prompt = event->mutable_prompt_logprobs();
    if (prompt->logprobs_size() == 0)
      prompt->set_first_position(static_cast<uint32_t>(output.prompt_logprobs_from));
    for (const TokenLogprob& each : output.prompt_logprobs)
      LogprobToWire(each, prompt->add_logprobs());
  }
  event->mutable_embedding()->Add(output.embedding.begin(), output.embedding.end());
  if (output.token >= 0) {
    if (event->tokens_size() == 0)
      event->set_first_position(static_cast<uint32_t>(output.position));
    event->add_tokens(output.token);
    if (output.logprob) LogprobToWire(*output.logprob, event->add_logprobs());
  } else if (event->tokens_size() == 0) {
    event->set_first_position(static_cast<uint32_t>(output.position));
  }
  if (output.finish == FinishReason::kNone) return;
  event->set_finish(FinishToWire(output.finish));
  if (output.finish == FinishReason::kError)
    ErrorToWire(output.error, output.fault, event->mutable_error());
}

}  // namespace aisp
