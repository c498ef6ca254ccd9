// InferenceService: aisp.v1.Inference, on the same jobs as HTTP. Text requests become
// GenerationJobs whose sink writes events; everything else is answered from the pool. The I/O
// thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "frontend/generation_job.h"
#include "proto/inference_call.h"

namespace aisp {

class InferenceService final : public InferenceHandler {
 public:
  // `after`: runs after each call was handled, since the router's next timer may have changed.
  InferenceService(FrontendContext* context, std::function<void()> after)
      : context_(context), after_(std::move(after)) {}

  void Generate(std::shared_ptr<GenerateCall> call) override;
  void Embed(std::shared_ptr<EmbedCall> call) override;
  void Score(std::shared_ptr<ScoreCall> call) override;
  void Rerank(std::shared_ptr<RerankCall> call) override;
  void Tokenize(std::shared_ptr<TokenizeCall> call) override;
  void Detokenize(std::shared_ptr<DetokenizeCall> call) override;
  void ListModels(std::shared_ptr<ListModelsCall> call) override;

 private:
  // Authenticates the caller; empty when the call was refused.
  std::optional<Caller> Admit(RpcCall& call);
  // Starts a job for the call: `prepare` builds the request on a pool thread, `sink` answers.
  template <typename Call, typename Prepare>
  void Start(const std::shared_ptr<Call>& call, Prepare prepare, std::unique_ptr<AnswerSink> sink);
  // The same for requests answered with vectors.
  template <typename Request, typename Response>
  void StartVectors(const std::shared_ptr<UnaryCall<Request, Response>>& call,
                    ApiResult<PreparedRequest> (*prepare)(const TextModel&, const Request&));
  // Runs `work` on the pool, then fills the response with `fill`.
  template <typename Call, typename Work, typename Fill>
  void OnPool(const std::shared_ptr<Call>& call, const Caller& caller, const Work& work,
              const Fill& fill);
  void Finish(RpcCall& call, const Caller& caller, const ApiError& error);

  FrontendContext* const context_;
  const std::function<void()> after_;
};

}  // namespace aisp
