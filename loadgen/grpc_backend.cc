#include "loadgen/grpc_backend.h"

#include <fmt/format.h>

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "common/strings.h"
#include "net/inference_client.h"

namespace aisp::loadgen {
namespace {

constexpr Duration kQuestionTimeout = std::chrono::seconds(10);
constexpr std::chrono::milliseconds kReadyPoll{250};
constexpr size_t kSampleWords = 128;

InferenceMetadata MetadataOf(const Options& options) {
  InferenceMetadata out;
  if (!options.api_key.empty()) out.emplace_back("authorization", "Bearer " + options.api_key);
  for (const auto& [name, value] : options.headers) out.emplace_back(ToLowerAscii(name), value);
  return out;
}

// The corresponding HTTP status (docs/api.md), so that reports of both are comparable.
int HttpStatusOf(Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
    case Code::kFailedPrecondition:
      return 400;
    case Code::kUnauthenticated:
      return 401;
    case Code::kPermissionDenied:
      return 403;
    case Code::kNotFound:
      return 404;
    case Code::kResourceExhausted:
      return 429;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

// All numbers of a message by name, as in HTTP's usage.aisp.
void NumbersOf(const google::protobuf::Message& message, const std::string& prefix,
               ServerValues* out) {
  using Field = google::protobuf::FieldDescriptor;
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const Field* field = message.GetDescriptor()->field(i);
    if (field->is_repeated()) continue;
    const std::string name = prefix + field->name();
    if (field->cpp_type() == Field::CPPTYPE_DOUBLE) {
      out->emplace_back(name, reflection->GetDouble(message, field));
    } else if (field->cpp_type() == Field::CPPTYPE_UINT32) {
      out->emplace_back(name, reflection->GetUInt32(message, field));
    } else if (field->cpp_type() == Field::CPPTYPE_UINT64) {
      out->emplace_back(name, static_cast<double>(reflection->GetUInt64(message, field)));
    } else if (field->cpp_type() == Field::CPPTYPE_MESSAGE &&
               reflection->HasField(message, field)) {
      NumbersOf(reflection->GetMessage(message, field), name + ".", out);
    }
  }
}

class GrpcCall final : public BackendCall, public InferenceListener {
 public:
  explicit GrpcCall(BackendListener* listener) : listener_(listener) {}
  void Start(InferenceClient* client, v1::InferenceRequest request,
             const InferenceMetadata& metadata) {
    call_ = client->Generate(std::move(request), metadata, this);
  }

  void OnMetadata(std::string_view name, std::string_view value) override {
    if (name == "x-aisp-route") listener_->OnRoute(value);
  }
  void OnEvent(const v1::InferenceEvent& event) override {
    begun_ = true;
    if (event.has_usage()) {
      const v1::Usage& usage = event.usage();
      UsageCounts counts{usage.prompt_tokens(), usage.completion_tokens(), usage.cached_tokens()};
      NumbersOf(usage.timing(), "", &counts.server);
      return listener_->OnUsage(counts);
    }
    const v1::ChoiceEvent& choice = event.choice();
    Delta delta;
    delta.has_output = !choice.text().empty() || choice.token_ids_size() > 0;
    delta.finished = !choice.finish_reason().empty();
    delta.finish_reason = choice.finish_reason();
    delta.choice = choice.index();
    delta.raw_text = choice.text();
    delta.token_ids = {choice.token_ids().data(), static_cast<size_t>(choice.token_ids_size())};
    finished_ |= delta.finished;
    listener_->OnDelta(delta);
  }
  void OnEnd(const Error& status, std::optional<Duration> retry_after) override {
    Ending ending;
    ending.http_status = HttpStatusOf(status.code);
    ending.retry_after = retry_after;
    if (status.code != Code::kOk) {
      ending.reason =
          fmt::format("gRPC {}: {}", CodeName(status.code), Excerpt(status.message, 300));
      ending.may_retry = status.code == Code::kUnavailable && !begun_;
    } else if (!finished_) {
      ending.reason = "the stream was truncated: no finish_reason came";
    }
    ending.completed = ending.reason.empty();
    listener_->OnEnd(ending);
  }

 private:
  BackendListener* listener_;
  bool begun_ = false;
  bool finished_ = false;
  std::unique_ptr<InferenceCall> call_;
};

class GrpcBackend final : public Backend {
 public:
  GrpcBackend(IoLoop* loop, const Options& options, const std::string& model,
              const PromptMaker* prompts)
      : client_(loop, options.grpc_address), metadata_(MetadataOf(options)), prompts_(prompts) {
    common_.set_model(model);
    if (options.ignore_eos) common_.set_ignore_eos(true);
    if (options.temperature) common_.set_temperature(*options.temperature);
    if (options.top_p) common_.set_top_p(*options.top_p);
    if (options.min_p) common_.set_min_p(*options.min_p);
    if (options.top_k) common_.set_top_k(static_cast<int32_t>(*options.top_k));
    if (options.frequency_penalty) common_.set_frequency_penalty(*options.frequency_penalty);
    if (options.presence_penalty) common_.set_presence_penalty(*options.presence_penalty);
    if (options.repetition_penalty) common_.set_repetition_penalty(*options.repetition_penalty);
  }

  std::unique_ptr<BackendCall> Start(const WorkItem& item, BackendListener* listener) override {
    auto call = std::make_unique<GrpcCall>(listener);
    call->Start(&client_, Request(item), metadata_);
    return call;
  }

 private:
  v1::InferenceRequest Request(const WorkItem& item) const {
    v1::InferenceRequest request = common_;
    request.set_max_tokens(item.output_tokens);
    if (!item.messages_json.empty()) {
      SetMessages(item.messages_json, &request);
    } else if (!item.made_up()) {
      std::string text;
      if (item.history != nullptr) {
        for (const SpokenTurn& turn : *item.history) {
          text += turn.asked->text + turn.answer + "\n";
        }
      }
      request.set_prompt(text + item.text);
    } else {
      if (item.conversation >= 0) request.set_return_token_ids(true);
      for (const TokenId id : prompts_->LongIds(item)) {
        request.mutable_prompt_token_ids()->add_ids(id);
      }
    }
    return request;
  }
  static void SetMessages(const std::string& json, v1::InferenceRequest* request) {
    for (const auto& message : nlohmann::json::parse(json)) {
      v1::ChatMessage* out = request->mutable_chat()->add_messages();
      if (!message.is_object()) continue;
      const auto text = [&](const char* name) {
        const auto it = message.find(name);
        return it != message.end() && it->is_string() ? it->get<std::string>() : std::string();
      };
      out->set_role(text("role"));
      out->set_content(text("content"));
    }
  }

  InferenceClient client_;
  InferenceMetadata metadata_;
  const PromptMaker* prompts_;
  v1::InferenceRequest common_;
};

Result<v1::ListModelsResponse> AwaitModels(const Options& options) {
  const SteadyClock clock;
  const Instant deadline = clock.Now() + FromMs(1e3 * options.wait_ready_s);
  for (;;) {
    auto models =
        InferenceClient::ListModels(options.grpc_address, MetadataOf(options), kQuestionTimeout);
    if (models) return models;
    if (clock.Now() >= deadline) {
      return tl::unexpected(models.error().WithContext(
          fmt::format("gRPC at {} (--grpc-address; --wait-ready S waits)", options.grpc_address)));
    }
    std::this_thread::sleep_for(kReadyPoll);
  }
}

}  // namespace

std::unique_ptr<Backend> MakeGrpcBackend(IoLoop* loop, const Options& options,
                                         const std::string& model, const PromptMaker* prompts) {
  return std::make_unique<GrpcBackend>(loop, options, model, prompts);
}

Result<Target> AskGrpcServer(const Options& options, bool made_up) {
  Target target;
  AISP_ASSIGN_OR_RETURN(const v1::ListModelsResponse models, AwaitModels(options));
  target.model = options.model;
  for (const v1::Model& model : models.models()) {
    if (target.model.empty()) target.model = model.id();
    if (model.id() == target.model) target.max_model_len = model.max_model_len();
  }
  if (options.max_model_len > 0) target.max_model_len = options.max_model_len;
  if (!made_up) return target;
  target.prompts.vocab = static_cast<int32_t>(options.vocab_size);
  if (target.prompts.vocab > 0) return target;
  v1::TokenizeRequest question;
  question.set_model(target.model);
  question.set_prompt(SampleWords(kSampleWords));
  question.set_add_special_tokens(false);
  const auto answer = InferenceClient::Tokenize(options.grpc_address, question, MetadataOf(options),
                                                kQuestionTimeout);
  if (!answer) {
    return tl::unexpected(answer.error().WithContext(
        "token ids for prompts: give --vocab-size N, for Tokenize says"));
  }
  AISP_ASSIGN_OR_RETURN(target.prompts.pool,
                        PoolOf({answer->tokens().begin(), answer->tokens().end()}));
  return target;
}

}  // namespace aisp::loadgen
