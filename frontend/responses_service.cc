#include "frontend/responses_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/responses_encoder.h"
#include "api/responses_request.h"
#include "common/strings.h"
#include "frontend/answer_ids.h"

namespace aisp {
namespace {

ApiError NotKept(const std::string& id, const char* param) {
  return ApiError(
      Code::kNotFound,
      fmt::format("no response '{}' is kept here: it was never stored, was deleted, had "
                  "to make room for others (http.max_stored_responses), or another "
                  "router has it; send the conversation in input",
                  Excerpt(id)),
      param, "response_not_found");
}

ApiResult<ResponsesRequest> Parse(const TextModel& model, ResponseStore& store,
                                  const std::string& tenant, const std::string& body) {
  return ParseResponses(body, model.limits, [&](const std::string& id) -> ApiResult<Value::List> {
    const auto kept = store.Find(tenant, id);
    if (kept == nullptr) return tl::unexpected(NotKept(id, "previous_response_id"));
    return kept->conversation;
  });
}

}  // namespace

ApiResult<PreparedRequest> PrepareResponse(const TextModel& model,
                                           std::shared_ptr<ResponseStore> store,
                                           const std::string& tenant, const std::string& body) {
  AISP_ASSIGN_OR_RETURN(ResponsesRequest request, Parse(model, *store, tenant, body));
  auto prepared = Prepare(model, std::move(request.chat));
  if (!prepared) return tl::unexpected(InResponsesWords(std::move(prepared).error()));
  ResponsesHead head;
  head.id = NewAnswerId("resp_");
  head.model = prepared->model_name;
  head.created_s = UnixTimeS();
  head.echo = std::move(request.echo);
  if (request.store) {
    head.keep = [store = std::move(store), tenant, id = head.id, items = std::move(request.items)](
                    const std::string& json, const Value::List& output) {
      Value::List conversation = items;
      conversation.insert(conversation.end(), output.begin(), output.end());
      store->Put(tenant, id, {json, std::move(conversation), items.size()});
    };
  }
  prepared->call_seed = head.id;
  prepared->gathers_answer = true;
  prepared->make_encoder = [head = std::move(head)] {
    return std::make_unique<ResponsesEncoder>(head);
  };
  return std::move(*prepared);
}

ApiResult<std::string> StoredResponseBody(ResponseStore& store, const std::string& tenant,
                                          const std::string& id) {
  const auto kept = store.Find(tenant, id);
  if (kept == nullptr) return tl::unexpected(NotKept(id, "response_id"));
  return kept->json;
}

namespace {

// A page of a list, as requested in the query.
struct Page {
  size_t limit = 20;
  bool newest_first = true;
  std::string after;  // id of the item before the first; "": from the start
};

ApiResult<Page> ReadPage(std::string_view query) {
  Page page;
  for (const std::string_view pair : Split(query, '&')) {
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string name(pair.substr(0, equals));
    const std::string value(pair.substr(std::min(equals + 1, pair.size())));
    const auto wrong = [&](const char* what) {
      return tl::unexpected(
          ApiError(Code::kInvalidArgument,
                   fmt::format("{} must be {}, but is '{}'", name, what, Excerpt(value)), name));
    };
    if (name == "limit") {
      constexpr int64_t kMost = 100;
      const auto limit = ParseIntInRange(value, 1, kMost);
      if (!limit) return wrong("an integer from 1 to 100");
      page.limit = static_cast<size_t>(*limit);
    } else if (name == "order") {
      if (value != "asc" && value != "desc") return wrong("asc or desc");
      page.newest_first = value == "desc";
    } else if (name == "after") {
      page.after = value;
    }
  }
  return page;
}

// An item as the list shows it: with an id and its text in parts.
Value ListedItem(const Value& item, std::string id) {
  Value::Map out = item.AsMap();
  const Value* type = out.Find("type");
  if (type == nullptr || type->IsNone()) out.Set("type", Value("message"));
  if (out.Find("id") == nullptr) out.Set("id", Value(std::move(id)));
  const Value* content = out.Find("content");
  if (content != nullptr && content->IsString()) {
    const Value* role = out.Find("role");
    const bool said = role != nullptr && role->IsString() && role->AsString() == "assistant";
    Value::Map part{{"type", said ? "output_text" : "input_text"}, {"text", *content}};
    if (said) part.Set("annotations", Value(Value::List()));
    out.Set("content", Value(Value::List{Value(std::move(part))}));
  }
  return Value(std::move(out));
}

std::string IdOf(const Value& item, const std::string& own_id) {
  const Value* id = item.AsMap().Find("id");
  if (id == nullptr) return own_id;
  return id->IsString() ? id->AsString() : "";
}

}  // namespace

ApiResult<std::string> InputItemsBody(ResponseStore& store, const std::string& tenant,
                                      const std::string& id, std::string_view query) {
  const auto kept = store.Find(tenant, id);
  if (kept == nullptr) return tl::unexpected(NotKept(id, "response_id"));
  AISP_ASSIGN_OR_RETURN(const Page page, ReadPage(query));
  // Maps a list position to an item and back; only the page's own items are built.
  const size_t count = kept->inputs;
  const auto at = [&](size_t place) { return page.newest_first ? count - 1 - place : place; };
  const auto own_id = [&](size_t item) { return fmt::format("{}_in_{}", id, item); };
  size_t from = 0;
  if (!page.after.empty()) {
    while (from < count && IdOf(kept->conversation[at(from)], own_id(at(from))) != page.after)
      ++from;
    if (from == count) {
      return tl::unexpected(ApiError(
          Code::kInvalidArgument,
          fmt::format("after names '{}', which is no item of this response", Excerpt(page.after)),
          "after"));
    }
    ++from;
  }
  const size_t end = std::min(count, from + page.limit);
  const bool more = end < count;
  Value::List shown;
  for (size_t place = from; place < end; ++place)
    shown.push_back(ListedItem(kept->conversation[at(place)], own_id(at(place))));
  Value::Map out{{"object", "list"}, {"data", Value(shown)}, {"has_more", more}};
  out.Set("first_id", shown.empty() ? Value() : Value(IdOf(shown.front(), "")));
  out.Set("last_id", shown.empty() ? Value() : Value(IdOf(shown.back(), "")));
  std::string json;
  AppendJson(Value(std::move(out)), &json);
  return json;
}

ApiResult<std::string> CountInputTokens(const TextModel& model, ResponseStore& store,
                                        const std::string& tenant, const std::string& body) {
  AISP_ASSIGN_OR_RETURN(const ResponsesRequest request, Parse(model, store, tenant, body));
  AISP_RETURN_IF_ERROR(model.CheckName(request.chat.model));
  const auto tokens = model.RenderChat(request.chat, request.chat.add_special_tokens);
  if (!tokens) return tl::unexpected(InResponsesWords(tokens.error()));
  return fmt::format(R"({{"object":"response.input_tokens","input_tokens":{}}})", tokens->size());
}

ApiResult<std::string> DeleteResponse(ResponseStore& store, const std::string& tenant,
                                      const std::string& id) {
  if (!store.Erase(tenant, id)) return tl::unexpected(NotKept(id, "response_id"));
  std::string quoted;
  AppendJsonString(id, &quoted);
  return fmt::format(R"({{"id":{},"object":"response","deleted":true}})", quoted);
}

}  // namespace aisp
