#include "frontend/inference_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "frontend/answer_ids.h"
#include "frontend/embedding_answer.h"
#include "frontend/embedding_service.h"
#include "frontend/text_service.h"

namespace aisp {
namespace {

constexpr Duration kRetry = std::chrono::seconds(1);

double NsToMs(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

// gRPC metadata is printable ASCII, but a param may quote the client's text.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c >= 0x7F) c = '?';
  }
  return text;
}

// gRPC sends the message as metadata, three bytes for each non-printable one, and clients accept 8
// KiB of metadata by default. A longer message would replace this error by another.
Error StatusOf(const ApiError& error) {
  constexpr size_t kMostBytes = 2048;
  return {error.code, CutMiddle(error.message, kMostBytes)};
}

RpcMetadata TrailersOf(const ApiError& error, Duration retry_after) {
  RpcMetadata trailers;
  if (!error.param.empty()) trailers.emplace_back("error-param", Printable(error.param));
  const std::string name = error.name.empty() ? std::string(ErrorCodeName(error.code)) : error.name;
  if (!name.empty()) trailers.emplace_back("error-code", name);
  if (error.code == Code::kResourceExhausted || error.code == Code::kUnavailable) {
    const Duration wait = retry_after > Duration{} ? retry_after : kRetry;
    trailers.emplace_back("retry-after-ms", std::to_string(static_cast<int64_t>(ToMs(wait))));
  }
  return trailers;
}

std::string GoneText(RpcCall::Gone why) {
  return why == RpcCall::Gone::kSlowReader ? "slow reader" : "cancelled, closed or out of time";
}

void AddLogprobs(std::span<const ChoiceLogprob> from,
                 google::protobuf::RepeatedPtrField<v1::TokenLogprob>* to) {
  for (const ChoiceLogprob& logprob : from) {
    if (!logprob.known) continue;
    v1::TokenLogprob* out = to->Add();
    out->set_token(logprob.bytes);
    out->set_token_id(logprob.token);
    out->set_logprob(logprob.logprob);
    out->set_rank(logprob.rank);
    for (const TopLogprob& top : logprob.top) {
      v1::TopLogprob* entry = out->add_top();
      entry->set_token(top.bytes);
      entry->set_token_id(top.token);
      entry->set_logprob(top.logprob);
    }
  }
}

// Writes the answer to one Generate.
class GrpcAnswer final : public AnswerSink {
 public:
  explicit GrpcAnswer(std::shared_ptr<GenerateCall> call) : call_(std::move(call)) {}

  void OnTraced(const std::string& traceparent) override {
    if (!traceparent.empty()) call_->AddHeader("traceparent", traceparent);
  }
  void OnPrepared(const PreparedRequest& prepared) override {
    prepared_ = &prepared;
    begun_.assign(prepared.choices(), false);
  }
  void OnRouted(const std::string& route) override { call_->AddHeader("x-aisp-route", route); }

  void OnProgress(ChoiceStream& choice) override {
    v1::InferenceEvent event;
    v1::ChoiceEvent* out = event.mutable_choice();
    out->set_index(choice.index());
    out->set_position(choice.completion_tokens());
    std::string text;
    if (!begun_[choice.index()]) {
      begun_[choice.index()] = true;
      if (!prepared_->echoes.empty())
        text = prepared_->echoes[choice.index() / prepared_->options.n];
      AddLogprobs(choice.prompt_logprobs(), out->mutable_prompt_logprobs());
    }
    text += choice.TakeText();
    for (AnswerPart& part : choice.TakeParts()) AddPart(choice.index(), &part, &text, out);
    out->set_text(std::move(text));
    for (const TokenId token : choice.TakeTokenIds()) out->add_token_ids(token);
    AddLogprobs(choice.TakeLogprobs(), out->mutable_logprobs());
    if (choice.ended()) out->set_finish_reason(std::string(choice.finish_reason()));
    call_->Write(std::move(event));
  }

  void OnDone(std::span<const std::unique_ptr<ChoiceStream>>, const AnswerUsage& usage) override {
    v1::InferenceEvent event;
    v1::Usage* out = event.mutable_usage();
    out->set_prompt_tokens(usage.prompt_tokens);
    out->set_completion_tokens(usage.completion_tokens);
    out->set_total_tokens(usage.prompt_tokens + usage.completion_tokens);
    out->set_cached_tokens(usage.cached_tokens);
    if (usage.timed) FillTiming(usage, out->mutable_timing());
    if (usage.draft_steps > 0) {
      v1::SpeculationUsage* speculation = out->mutable_speculation();
      speculation->set_drafted(usage.drafted);
      speculation->set_accepted(usage.accepted);
      speculation->set_mean_acceptance_length(usage.mean_acceptance_length());
    }
    call_->Write(std::move(event));
    call_->Finish({Code::kOk, ""}, {});
  }

  void OnFailed(const ApiError& error, Duration retry_after) override {
    call_->Finish(StatusOf(error), TrailersOf(error, retry_after));
  }

 private:
  void AddPart(uint32_t choice, AnswerPart* part, std::string* text, v1::ChoiceEvent* out) const {
    switch (part->kind) {
      case AnswerPart::Kind::kContent:
        *text += part->text;
        return;
      case AnswerPart::Kind::kReasoning:
        if (prepared_->include_reasoning) out->mutable_reasoning_content()->append(part->text);
        return;
      case AnswerPart::Kind::kCall: {
        v1::ToolCallDelta* call = out->add_tool_calls();
        call->set_index(part->call);
        call->set_id(
            MakeCallId(call_->info().request_id, choice, part->call, prepared_->parse.calls));
        call->set_name(std::move(part->text));
        return;
      }
      case AnswerPart::Kind::kArguments: {
        const int last = out->tool_calls_size() - 1;
        const bool known = last >= 0 && out->tool_calls(last).index() == part->call;
        v1::ToolCallDelta* call = known ? out->mutable_tool_calls(last) : out->add_tool_calls();
        call->set_index(part->call);
        call->mutable_arguments()->append(part->text);
        return;
      }
    }
  }

  static void FillTiming(const AnswerUsage& usage, v1::RequestTiming* out) {
    const v1::Timing& t = usage.timing;
    out->set_route(usage.route);
    out->set_ttft_ms(usage.ttft_ms);
    out->set_frontend_ms(usage.frontend_ms);
    out->set_queue_ms(NsToMs(t.queue_ns()));
    out->set_prefill_ms(NsToMs(t.prefill_ns()));
    out->set_transfer_ms(NsToMs(t.transfer_ns()));
    out->set_first_decode_ms(NsToMs(t.first_decode_ns()));
    out->set_kv_blocks_moved(t.kv_blocks_moved());
    out->set_kv_transport(t.kv_transport());
    out->set_preemptions(usage.preemptions);
    out->set_route_taken(usage.route_taken);
    out->set_fallback(usage.fallback);
  }

  const std::shared_ptr<GenerateCall> call_;
  const PreparedRequest* prepared_ = nullptr;
  std::vector<bool> begun_;  // choices whose first event was sent, including prompt logprobs
};

// Answers a request for vectors with one message, which the encoder has serialized.
template <typename Request, typename Response>
class VectorAnswer final : public AnswerSink {
 public:
  VectorAnswer(FrontendContext* context, std::shared_ptr<UnaryCall<Request, Response>> call)
      : context_(context), call_(std::move(call)) {}

  void OnTraced(const std::string& traceparent) override {
    if (!traceparent.empty()) call_->AddHeader("traceparent", traceparent);
  }
  void OnPrepared(const PreparedRequest& prepared) override { prepared_ = &prepared; }
  void OnRouted(const std::string& route) override { call_->AddHeader("x-aisp-route", route); }
  void OnProgress(ChoiceStream& choice) override { TakeVector(context_, *prepared_, choice); }
  void OnDone(std::span<const std::unique_ptr<ChoiceStream>>, const AnswerUsage& usage) override {
    AISP_CHECK(call_->response()->ParseFromString(
        prepared_->vectors->Finish("", UnixTimeS(), usage.prompt_tokens)));
    call_->Finish({Code::kOk, ""}, {});
  }
  void OnFailed(const ApiError& error, Duration retry_after) override {
    call_->Finish(StatusOf(error), TrailersOf(error, retry_after));
  }

 private:
  FrontendContext* const context_;
  const std::shared_ptr<UnaryCall<Request, Response>> call_;
  const PreparedRequest* prepared_ = nullptr;
};

}  // namespace

std::optional<Caller> InferenceService::Admit(RpcCall& call) {
  const RpcInfo& info = call.info();
  Caller caller{Caller::Surface::kGrpc, info.request_id, "", "", info.method, info.received};
  auto tenant = context_->tenants->Authenticate(info.Metadata("authorization"));
  if (!tenant) {
    context_->metrics.Count(Rejection::kUnauthenticated);
    Finish(call, caller, tenant.error());
    return std::nullopt;
  }
  caller.tenant = std::move(*tenant);
  return caller;
}

void InferenceService::Finish(RpcCall& call, const Caller& caller, const ApiError& error) {
  call.Finish(StatusOf(error), TrailersOf(error, {}));
  Outcome outcome;
  outcome.code = error.code;
  outcome.error = error.message;
  context_->log->Finished(caller, outcome);
}

template <typename Call, typename Prepare>
void InferenceService::Start(const std::shared_ptr<Call>& call, Prepare prepare,
                             std::unique_ptr<AnswerSink> sink) {
  auto caller = Admit(*call);
  if (!caller) return;
  const RpcInfo& info = call->info();
  GenerationJob::Request job;
  if (const auto timeout = info.Timeout(context_->model->limits.max_timeout))
    job.timeout = *timeout;
  job.prefill = PrefillPreferenceOf(info.Metadata("x-aisp-prefill"));
  auto objective = ObjectiveOf([&](std::string_view name) { return info.Metadata(name); });
  if (!objective) return Finish(*call, *caller, objective.error());
  job.objective = *objective;
  auto service_class = ParseClassHeader(info.Metadata("x-aisp-class"));
  if (!service_class) return Finish(*call, *caller, service_class.error());
  job.service_class = *service_class;
  auto key = ParseIdempotencyKey(info.Metadata("idempotency-key"));
  if (!key) return Finish(*call, *caller, key.error());
  job.idempotency_key = std::move(*key);
  if (!job.idempotency_key.empty()) {
    const auto& message = call->request();
    job.content =
        HashBytes(fmt::format("{} {}", message.GetTypeName(), message.SerializeAsString()));
  }
  job.caller = std::move(*caller);
  job.bytes = call->request().ByteSizeLong();
  job.trace = {std::string(info.Metadata("traceparent")), std::string(info.Metadata("tracestate"))};
  job.prepare = [call, model = context_->model, prepare]() -> ApiResult<PreparedRequest> {
    return prepare(*model, call->request());
  };
  const auto started = GenerationJob::Start(context_, std::move(job), std::move(sink));
  call->OnGone([weak = std::weak_ptr(started)](RpcCall::Gone why) {
    if (const auto alive = weak.lock()) alive->Abandon(GoneText(why));
  });
  after_();
}

template <typename Request, typename Response>
void InferenceService::StartVectors(const std::shared_ptr<UnaryCall<Request, Response>>& call,
                                    ApiResult<PreparedRequest> (*prepare)(const TextModel&,
                                                                          const Request&)) {
  Start(call, prepare, std::make_unique<VectorAnswer<Request, Response>>(context_, call));
}

void InferenceService::Generate(std::shared_ptr<GenerateCall> call) {
  const auto prepare = [](const TextModel& model,
                          const v1::InferenceRequest& wire) -> ApiResult<PreparedRequest> {
    AISP_ASSIGN_OR_RETURN(ClientRequest request, ParseInference(wire, model.limits));
    return std::visit([&model](auto& each) { return Prepare(model, std::move(each)); }, request);
  };
  Start(call, prepare, std::make_unique<GrpcAnswer>(call));
}

void InferenceService::Embed(std::shared_ptr<EmbedCall> call) {
  StartVectors(call, &PrepareEmbedding);
}
void InferenceService::Score(std::shared_ptr<ScoreCall> call) { StartVectors(call, &PrepareScore); }
void InferenceService::Rerank(std::shared_ptr<RerankCall> call) {
  StartVectors(call, &PrepareRerank);
}

template <typename Call, typename Work, typename Fill>
void InferenceService::OnPool(const std::shared_ptr<Call>& call, const Caller& caller,
                              const Work& work, const Fill& fill) {
  // The pool may outlive this object, but the loop then runs nothing that we posted.
  EventLoop* const loop = context_->loop;
  auto entered = context_->tenants->Enter(caller.tenant, context_->clock->Now());
  if (!entered) return Finish(*call, caller, entered.error().error);
  auto slot = std::make_shared<Tenants::Slot>(std::move(*entered));
  const auto turn = std::make_shared<PoolTurn>(
      context_->clock,
      std::min(call->info().deadline, caller.received + context_->default_timeout));
  call->OnGone([turn](RpcCall::Gone) { turn->Abandon(); });
  const bool taken = context_->pool->TrySubmit(
      call->request().ByteSizeLong(),
      [this, loop, call, caller, slot, turn, work, fill]() mutable {
        const ApiResult<void> wanted = turn->Check();
        auto result = wanted ? work() : tl::unexpected(wanted.error());
        loop->Post([this, call, caller, slot = std::move(slot), result = std::move(result), fill] {
          if (!result) return Finish(*call, caller, result.error());
          fill(*result, call->response());
          Finish(*call, caller, ApiError(Code::kOk, ""));
        });
      },
      context_->tenants->ShareOf(caller.tenant, 0));
  if (taken) return;
  Finish(*call, caller,
         ApiError(Code::kResourceExhausted,
                  "too many requests are being tokenized; try again shortly"));
}

void InferenceService::Tokenize(std::shared_ptr<TokenizeCall> call) {
  const auto caller = Admit(*call);
  if (!caller) return;
  const TextModel* model = context_->model;
  OnPool(
      call, *caller,
      [call, model]() -> ApiResult<Tokenized> {
        AISP_ASSIGN_OR_RETURN(const TokenizeRequest request,
                              ParseTokenize(call->request(), model->limits));
        return aisp::Tokenize(*model, request);
      },
      [model](const Tokenized& result, v1::TokenizeResponse* out) {
        out->mutable_tokens()->Add(result.tokens.begin(), result.tokens.end());
        out->set_count(static_cast<uint32_t>(result.tokens.size()));
        out->set_max_model_len(static_cast<uint32_t>(model->max_model_len));
        for (const std::string& piece : result.pieces) out->add_token_strs(piece);
      });
}

void InferenceService::Detokenize(std::shared_ptr<DetokenizeCall> call) {
  const auto caller = Admit(*call);
  if (!caller) return;
  const TextModel* model = context_->model;
  OnPool(
      call, *caller,
      [call, model]() -> ApiResult<std::string> {
        AISP_ASSIGN_OR_RETURN(const DetokenizeRequest request,
                              ParseDetokenize(call->request(), model->limits));
        return aisp::Detokenize(*model, request);
      },
      [](const std::string& text, v1::DetokenizeResponse* out) { out->set_prompt(text); });
}

void InferenceService::ListModels(std::shared_ptr<ListModelsCall> call) {
  const auto caller = Admit(*call);
  if (!caller) return;
  const TextModel& served = *context_->model;
  const auto add = [&](const std::string& id) {
    v1::Model* model = call->response()->add_models();
    model->set_id(id);
    model->set_created_s(context_->started_unix_s);
    model->set_max_model_len(static_cast<uint32_t>(served.max_model_len));
    return model;
  };
  add(served.name);
  for (const std::string& adapter : served.adapters->Names()) add(adapter)->set_parent(served.name);
  Finish(*call, *caller, ApiError(Code::kOk, ""));
}

}  // namespace aisp
