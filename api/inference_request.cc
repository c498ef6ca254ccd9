#include "api/inference_request.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <cmath>

#include "api/fields.h"

namespace aisp {
namespace {

namespace pb = google::protobuf;

ApiError TooDeep(const ApiLimits& limits) {
  return ApiError(Code::kInvalidArgument, "the request is nested deeper than " +
                                              std::to_string(limits.max_json_depth) + " levels");
}

Value FromStruct(const pb::Struct& from);

// 3.0 on the wire becomes the integer 3, so that templates and errors show it as 3.
Value FromDouble(double number) {
  constexpr double kExact = 9007199254740992.0;
  const bool whole = std::abs(number) < kExact && std::trunc(number) == number;
  return whole ? Value(static_cast<int64_t>(number)) : Value(number);
}

Value FromStructValue(const pb::Value& from) {
  switch (from.kind_case()) {
    case pb::Value::kBoolValue:
      return Value(from.bool_value());
    case pb::Value::kNumberValue:
      return FromDouble(from.number_value());
    case pb::Value::kStringValue:
      return Value(from.string_value());
    case pb::Value::kStructValue:
      return FromStruct(from.struct_value());
    case pb::Value::kListValue: {
      Value::List list;
      for (const pb::Value& item : from.list_value().values())
        list.push_back(FromStructValue(item));
      return Value(std::move(list));
    }
    default:
      return Value();
  }
}

Value FromStruct(const pb::Struct& from) {
  Value::Map map;
  for (const auto& [key, value] : from.fields()) map.Set(key, FromStructValue(value));
  return Value(std::move(map));
}

Value FromScalar(const pb::Message& message, const pb::FieldDescriptor* field) {
  const pb::Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      return Value(reflection->GetBool(message, field));
    case pb::FieldDescriptor::CPPTYPE_INT32:
      return Value(int64_t{reflection->GetInt32(message, field)});
    case pb::FieldDescriptor::CPPTYPE_INT64:
      return Value(reflection->GetInt64(message, field));
    case pb::FieldDescriptor::CPPTYPE_DOUBLE:
      return FromDouble(reflection->GetDouble(message, field));
    default:
      return Value(reflection->GetString(message, field));
  }
}

// The scalar fields that are set, by name; the names are those of the HTTP bodies.
Value::Map ScalarsOf(const pb::Message& message) {
  std::vector<const pb::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  Value::Map map;
  for (const pb::FieldDescriptor* field : fields) {
    if (field->is_repeated() || field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    map.Set(std::string(field->name()), FromScalar(message, field));
  }
  return map;
}

template <typename Repeated>
Value ListOf(const Repeated& items) {
  Value::List list;
  list.reserve(static_cast<size_t>(items.size()));
  for (const auto& item : items) list.push_back(Value(item));
  return Value(std::move(list));
}

Value ListOfIds(const pb::RepeatedField<int32_t>& ids) {
  Value::List list;
  list.reserve(static_cast<size_t>(ids.size()));
  for (const int32_t id : ids) list.push_back(Value(int64_t{id}));
  return Value(std::move(list));
}

Value ListOfStructs(const pb::RepeatedPtrField<pb::Struct>& items) {
  Value::List list;
  for (const pb::Struct& item : items) list.push_back(FromStruct(item));
  return Value(std::move(list));
}

void AddChat(const v1::Chat& chat, Value::Map* map) {
  Value::List messages;
  for (const v1::ChatMessage& message : chat.messages()) {
    Value::Map entry = ScalarsOf(message);
    entry.Set("content", Value(message.content()));
    if (message.tool_calls_size() > 0) entry.Set("tool_calls", ListOfStructs(message.tool_calls()));
    messages.push_back(Value(std::move(entry)));
  }
  map->Set("messages", Value(std::move(messages)));
  if (chat.tools_size() > 0) map->Set("tools", ListOfStructs(chat.tools()));
  if (chat.has_chat_template_kwargs()) {
    map->Set("chat_template_kwargs", FromStruct(chat.chat_template_kwargs()));
  }
  if (chat.has_add_generation_prompt()) {
    map->Set("add_generation_prompt", Value(chat.add_generation_prompt()));
  }
  if (chat.has_continue_final_message()) {
    map->Set("continue_final_message", Value(chat.continue_final_message()));
  }
}

Value::Map BodyOf(const v1::InferenceRequest& request) {
  Value::Map map = ScalarsOf(request);
  if (request.has_prompt_token_ids()) {
    map.Set("prompt", ListOfIds(request.prompt_token_ids().ids()));
  }
  if (request.logit_bias_size() > 0) {
    Value::Map bias;
    for (const auto& [token, amount] : request.logit_bias()) {
      bias.Set(std::to_string(token), FromDouble(amount));
    }
    map.Set("logit_bias", Value(std::move(bias)));
  }
  if (request.stop_size() > 0) map.Set("stop", ListOf(request.stop()));
  if (request.stop_token_ids_size() > 0) {
    map.Set("stop_token_ids", ListOfIds(request.stop_token_ids()));
  }
  if (request.has_structured_outputs()) {
    const v1::StructuredOutputs& wanted = request.structured_outputs();
    Value::Map structured = ScalarsOf(wanted);
    if (wanted.choice_size() > 0) structured.Set("choice", ListOf(wanted.choice()));
    map.Set("structured_outputs", Value(std::move(structured)));
  }
  if (request.has_speculation()) map.Set("speculation", FromStructValue(request.speculation()));
  if (request.has_tool_choice()) map.Set("tool_choice", FromStructValue(request.tool_choice()));
  if (request.has_chat()) AddChat(request.chat(), &map);
  return map;
}

ApiResult<ClientRequest> ParseChatInput(Value::Map map, const ApiLimits& limits) {
  Fields fields(&map);
  int32_t logprobs = -1;
  fields.IntInto("logprobs", 0, limits.max_logprobs, &logprobs);
  bool echo = false;
  fields.Bool("echo", &echo);
  if (echo) fields.Refuse("echo", "echo is for prompts: a chat's text is the template's");
  if (!fields.ok()) return fields.error();
  map.Set("logprobs", Value(logprobs >= 0));
  if (logprobs >= 0) map.Set("top_logprobs", Value(int64_t{logprobs}));
  auto chat = ParseChat(map, limits);
  if (!chat) return tl::unexpected(std::move(chat).error());
  return ClientRequest(std::move(*chat));
}

}  // namespace

ApiResult<ClientRequest> ParseInference(const v1::InferenceRequest& request,
                                        const ApiLimits& limits) {
  Value::Map map = BodyOf(request);
  if (map.depth() > static_cast<uint32_t>(limits.max_json_depth)) {
    return tl::unexpected(TooDeep(limits));
  }
  if (request.has_chat()) return ParseChatInput(std::move(map), limits);
  if (request.input_case() == v1::InferenceRequest::INPUT_NOT_SET) {
    return tl::unexpected(ApiError(Code::kInvalidArgument,
                                   "the input is missing: one of prompt, prompt_token_ids and chat",
                                   "prompt"));
  }
  auto completion = ParseCompletion(map, limits);
  if (!completion) return tl::unexpected(std::move(completion).error());
  return ClientRequest(std::move(*completion));
}

ApiResult<EmbeddingRequest> ParseEmbedding(const v1::EmbedRequest& request,
                                           const ApiLimits& limits) {
  Value::Map map = ScalarsOf(request);
  if (request.input_size() > 0 && request.input_token_ids_size() > 0) {
    return tl::unexpected(ApiError(Code::kInvalidArgument,
                                   "give input or input_token_ids, not both", "input_token_ids"));
  }
  if (request.input_size() > 0) map.Set("input", ListOf(request.input()));
  if (request.input_token_ids_size() > 0) {
    Value::List lists;
    for (const v1::TokenIds& each : request.input_token_ids())
      lists.push_back(ListOfIds(each.ids()));
    map.Set("input", Value(std::move(lists)));
  }
  return ParseEmbedding(map, limits);
}

ApiResult<ScoreRequest> ParseScore(const v1::ScoreRequest& request, const ApiLimits& limits) {
  Value::Map map = ScalarsOf(request);
  if (request.text_1_size() > 0) map.Set("text_1", ListOf(request.text_1()));
  if (request.text_2_size() > 0) map.Set("text_2", ListOf(request.text_2()));
  return ParseScore(map, limits);
}

ApiResult<RerankRequest> ParseRerank(const v1::RerankRequest& request, const ApiLimits& limits) {
  Value::Map map = ScalarsOf(request);
  if (request.documents_size() > 0) map.Set("documents", ListOf(request.documents()));
  return ParseRerank(map, limits);
}

ApiResult<TokenizeRequest> ParseTokenize(const v1::TokenizeRequest& request,
                                         const ApiLimits& limits) {
  Value::Map map = ScalarsOf(request);
  if (request.has_chat()) AddChat(request.chat(), &map);
  if (map.depth() > static_cast<uint32_t>(limits.max_json_depth)) {
    return tl::unexpected(TooDeep(limits));
  }
  return ParseTokenize(map, limits);
}

ApiResult<DetokenizeRequest> ParseDetokenize(const v1::DetokenizeRequest& request,
                                             const ApiLimits& limits) {
  Value::Map map = ScalarsOf(request);
  map.Set("tokens", ListOfIds(request.tokens()));
  return ParseDetokenize(map, limits);
}

}  // namespace aisp
