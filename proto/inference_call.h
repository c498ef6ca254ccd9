// The calls of aisp.v1.Inference as the frontend sees them, without I/O and gRPC's types;
// implemented by net/inference_server.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "inference.pb.h"

namespace aisp {

using RpcMetadata = std::vector<std::pair<std::string, std::string>>;

struct RpcInfo {
  std::string method;  // "/aisp.v1.Inference/Generate"
  std::string peer;
  std::string request_id;  // the client's x-request-id or a new one; returned with the answer
  Instant received;
  Instant deadline = kNever;  // the client's; more than ten years away counts as none
  RpcMetadata metadata;       // lower-case names
  // First value; "" when absent.
  std::string_view Metadata(std::string_view name) const;
  // The time left by the client's deadline, at least a little and at most `most`; nullopt without
  // one.
  std::optional<Duration> Timeout(Duration most) const;
};

// One call and its answer. The handler keeps the shared_ptr until it has answered. Calls after the
// client is gone are ignored. A call dropped without Finish ends as INTERNAL.
class RpcCall {
 public:
  virtual ~RpcCall() = default;
  virtual const RpcInfo& info() const = 0;
  // Adds initial metadata; call before the first Write and Finish.
  virtual void AddHeader(std::string_view name, std::string_view value) = 0;
  // Ends the call when everything written was sent; call once.
  virtual void Finish(const Error& status, const RpcMetadata& trailers) = 0;
  enum class Gone { kClosed, kSlowReader, kShutdown };
  // The handler is called once, on the loop and never inside another call, if the client goes away
  // or its deadline passes before Finish.
  virtual void OnGone(std::function<void(Gone)> handler) = 0;
};

template <typename Request, typename Event>
class StreamCall : public RpcCall {
 public:
  virtual const Request& request() const = 0;
  // Queues an event; never blocks or calls back.
  virtual void Write(Event event) = 0;
};

template <typename Request, typename Response>
class UnaryCall : public RpcCall {
 public:
  virtual const Request& request() const = 0;
  // Fill it before Finish with OK.
  virtual Response* response() = 0;
};

using GenerateCall = StreamCall<v1::InferenceRequest, v1::InferenceEvent>;
using EmbedCall = UnaryCall<v1::EmbedRequest, v1::EmbedResponse>;
using ScoreCall = UnaryCall<v1::ScoreRequest, v1::ScoreResponse>;
using RerankCall = UnaryCall<v1::RerankRequest, v1::RerankResponse>;
using TokenizeCall = UnaryCall<v1::TokenizeRequest, v1::TokenizeResponse>;
using DetokenizeCall = UnaryCall<v1::DetokenizeRequest, v1::DetokenizeResponse>;
using ListModelsCall = UnaryCall<v1::ListModelsRequest, v1::ListModelsResponse>;

class InferenceHandler {
 public:
  virtual void Generate(std::shared_ptr<GenerateCall> call) = 0;
  virtual void Embed(std::shared_ptr<EmbedCall> call) = 0;
  virtual void Score(std::shared_ptr<ScoreCall> call) = 0;
  virtual void Rerank(std::shared_ptr<RerankCall> call) = 0;
  virtual void Tokenize(std::shared_ptr<TokenizeCall> call) = 0;
  virtual void Detokenize(std::shared_ptr<DetokenizeCall> call) = 0;
  virtual void ListModels(std::shared_ptr<ListModelsCall> call) = 0;

 protected:
  ~InferenceHandler() = default;
};

}  // namespace aisp
