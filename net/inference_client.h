// InferenceClient: many concurrent streams of aisp.v1.Inference on one IoLoop: the gRPC side of
// aisp-loadgen.
//
// Loop thread: Generate, the listeners, and destroying calls and client. gRPC's threads only post.
// A listener must outlive its call, and the client its calls. The destructor waits until gRPC has
// released abandoned calls. The two blocking queries need no loop.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "inference.pb.h"
#include "net/io_loop.h"

namespace aisp {

using InferenceMetadata = std::vector<std::pair<std::string, std::string>>;

class InferenceListener {
 public:
  virtual void OnMetadata(std::string_view name, std::string_view value) = 0;
  virtual void OnEvent(const v1::InferenceEvent& event) = 0;
  // The last call. Code::kOk: the stream is complete.
  virtual void OnEnd(const Error& status, std::optional<Duration> retry_after) = 0;

 protected:
  ~InferenceListener() = default;
};

// A running stream. The destructor abandons it and silences the listener. Not inside a callback.
class InferenceCall {
 public:
  virtual ~InferenceCall() = default;
};

class InferenceClient {
 public:
  // `address`: host:port. Connects with the first call.
  InferenceClient(IoLoop* loop, const std::string& address);
  ~InferenceClient();
  InferenceClient(const InferenceClient&) = delete;
  InferenceClient& operator=(const InferenceClient&) = delete;

  // Keys of `metadata` are lower case. The listener is never called inside this call.
  std::unique_ptr<InferenceCall> Generate(v1::InferenceRequest request,
                                          const InferenceMetadata& metadata,
                                          InferenceListener* listener);

  static Result<v1::ListModelsResponse> ListModels(const std::string& address,
                                                   const InferenceMetadata& metadata,
                                                   Duration timeout);
  static Result<v1::TokenizeResponse> Tokenize(const std::string& address,
                                               const v1::TokenizeRequest& request,
                                               const InferenceMetadata& metadata, Duration timeout);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
