#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "common/hash.h"
#include "common/random.h"
#include "common/strings.h"
#include "loadgen/dataset.h"

namespace aisp::loadgen {
namespace {

using Json = nlohmann::json;

// Estimated tokens of an English text, within a fifth of most tokenizers.
int64_t GuessTokens(std::string_view text) {
  return std::max<int64_t>(1, static_cast<int64_t>(text.size()) / 4);
}

int64_t Scale(int64_t length, double factor) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(length) * factor));
}

int64_t OutputOr(const Options& o, int64_t of_dataset) { return o.output_len.value_or(of_dataset); }

Error At(size_t line, std::string message) {
  return Error{Code::kInvalidArgument, fmt::format("line {}: {}", line, message)};
}

// Calls `each` with the JSON object of every non-empty line.
Status ForEachJsonLine(std::istream& in, const std::function<Status(const Json&)>& each) {
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (Trim(line).empty()) continue;
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return tl::unexpected(At(number, "no JSON object: " + Excerpt(line)));
    if (const Status read = each(json); !read)
      return tl::unexpected(At(number, read.error().message));
  }
  return {};
}

Result<int64_t> IntField(const Json& json, const char* name) {
  const auto it = json.find(name);
  if (it == json.end() || !it->is_number()) {
    return InvalidArgument(fmt::format("there is no number '{}'", name));
  }
  const double value = it->get<double>();
  if (value < 0 || value > 1e12) {
    return InvalidArgument(fmt::format("'{}' = {} is out of range", name, value));
  }
  return static_cast<int64_t>(value);
}

// Shifts times so that the first request is at 0.
void StartAtZero(std::vector<WorkItem>* items) {
  if (items->empty()) return;
  std::stable_sort(items->begin(), items->end(),
                   [](const WorkItem& a, const WorkItem& b) { return a.at_s < b.at_s; });
  const double start = items->front().at_s;
  for (WorkItem& item : *items) item.at_s -= start;
}

uint64_t TailSeed(uint64_t seed, uint64_t index) {
  return SplitMix64(seed ^ SplitMix64(index + 0x5EED0000).Next()).Next();
}

}  // namespace

namespace {

// "": interactive.
Result<ServiceClass> ClassOf(std::string_view name) {
  if (name.empty()) return ServiceClass::kInteractive;
  if (const auto known = ServiceClassNamed(name)) return *known;
  return InvalidArgument(fmt::format("'{}' is no class; known: {}", Excerpt(name),
                                     fmt::join(kServiceClassNames, ", ")));
}

std::string StringOr(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

Result<std::vector<WorkItem>> ReadMooncake(std::istream& in, const Options& o) {
  std::vector<WorkItem> items;
  const int64_t block = Scale(kMooncakeBlock, o.length_scale);
  const auto read = [&](const Json& json) -> Status {
    WorkItem item;
    AISP_ASSIGN_OR_RETURN(const int64_t ms, IntField(json, "timestamp"));
    AISP_ASSIGN_OR_RETURN(const int64_t input, IntField(json, "input_length"));
    AISP_ASSIGN_OR_RETURN(const int64_t output, IntField(json, "output_length"));
    item.at_s = static_cast<double>(ms) * 1e-3 * o.time_scale;
    item.input_tokens = Scale(input, o.length_scale);
    item.output_tokens = OutputOr(o, Scale(output, o.length_scale));
    AISP_ASSIGN_OR_RETURN(item.service_class, ClassOf(StringOr(json, "class")));
    int64_t left = item.input_tokens;
    for (const Json& id : json.value("hash_ids", Json::array())) {
      if (!id.is_number_integer())
        return InvalidArgument("'hash_ids' has something that is no whole number");
      // The last block may be partial. Its id covers these tokens too, so equal ids are equal
      // prompts.
      const int64_t tokens = std::min(left, block);
      if (tokens == 0) break;
      item.parts.push_back(
          {HashBytes(fmt::format("block {} {}", o.seed, id.get<int64_t>())).lo, tokens});
      left -= tokens;
    }
    if (left > 0) item.parts.push_back({TailSeed(o.seed, items.size()), left});
    items.push_back(std::move(item));
    return {};
  };
  AISP_RETURN_IF_ERROR(ForEachJsonLine(in, read));
  StartAtZero(&items);
  return items;
}

Result<double> ParseTraceTime(std::string_view text) {
  if (const auto seconds = ParseDouble(text)) return *seconds;
  std::tm tm{};
  const std::string owned(text);
  const char* rest = strptime(owned.c_str(), "%Y-%m-%d", &tm);
  if (rest != nullptr && (*rest == ' ' || *rest == 'T')) rest = strptime(rest + 1, "%H:%M:%S", &tm);
  if (rest == nullptr) return InvalidArgument(fmt::format("'{}' is no time", Excerpt(text)));
  double fraction = 0;
  if (*rest == '.') {
    double unit = 0.1;
    for (++rest; *rest >= '0' && *rest <= '9'; ++rest, unit /= 10) fraction += unit * (*rest - '0');
  }
  return static_cast<double>(timegm(&tm)) + fraction;
}

Result<std::vector<WorkItem>> ReadCsvTrace(std::istream& in, const Options& o) {
  std::string line;
  std::getline(in, line);
  std::map<std::string, size_t> columns;
  const auto names = Split(Trim(line), ',');
  for (size_t i = 0; i < names.size(); ++i) columns[ToLowerAscii(Trim(names[i]))] = i;
  const auto column = [&](const std::vector<std::string>& of) -> Result<size_t> {
    for (const std::string& name : of) {
      if (const auto it = columns.find(name); it != columns.end()) return it->second;
    }
    return InvalidArgument(
        fmt::format("line 1: no column {}; it has {}", fmt::join(of, " or "), Excerpt(line)));
  };
  AISP_ASSIGN_OR_RETURN(const size_t time, column({"timestamp"}));
  AISP_ASSIGN_OR_RETURN(const size_t input, column({"contexttokens", "request tokens"}));
  AISP_ASSIGN_OR_RETURN(const size_t output, column({"generatedtokens", "response tokens"}));
  const auto classes = columns.find("class");
  std::vector<WorkItem> items;
  for (size_t number = 2; std::getline(in, line); ++number) {
    if (Trim(line).empty()) continue;
    const auto fields = Split(line, ',');
    if (fields.size() <= std::max({time, input, output})) {
      return tl::unexpected(At(number, "too few columns: " + Excerpt(line)));
    }
    const auto at = ParseTraceTime(Trim(fields[time]));
    const auto in_tokens = ParseIntInRange(Trim(fields[input]), 0, int64_t{1} << 40);
    const auto out_tokens = ParseIntInRange(Trim(fields[output]), 0, int64_t{1} << 40);
    if (!at || !in_tokens || !out_tokens) {
      return tl::unexpected(At(number, "not a time and two lengths: " + Excerpt(line)));
    }
    // BurstGPT has failed requests with empty answers.
    if (*in_tokens == 0 || *out_tokens == 0) continue;
    WorkItem item;
    if (classes != columns.end() && classes->second < fields.size()) {
      const auto named = ClassOf(ToLowerAscii(Trim(fields[classes->second])));
      if (!named) return tl::unexpected(At(number, named.error().message));
      item.service_class = *named;
    }
    item.at_s = *at * o.time_scale;
    item.input_tokens = Scale(*in_tokens, o.length_scale);
    item.output_tokens = OutputOr(o, Scale(*out_tokens, o.length_scale));
    item.parts.push_back({TailSeed(o.seed, items.size()), item.input_tokens});
    items.push_back(std::move(item));
  }
  StartAtZero(&items);
  return items;
}

namespace {

// {"prompt": TEXT}, {"messages": [...]}, {"turns": [TEXT...]} (the first) or {"question": TEXT}.
Status SetPrompt(const Json& json, bool chat, WorkItem* item) {
  if (const auto it = json.find("messages"); it != json.end() && it->is_array() && !it->empty()) {
    if (!chat) return InvalidArgument("'messages' need --endpoint /v1/chat/completions");
    item->messages_json = it->dump();
    item->input_tokens = GuessTokens(item->messages_json);
    return {};
  }
  for (const char* name : {"prompt", "question", "text"}) {
    if (const auto it = json.find(name); it != json.end() && it->is_string()) item->text = *it;
  }
  if (const auto it = json.find("turns"); it != json.end() && it->is_array() && !it->empty()) {
    if ((*it)[0].is_string()) item->text = (*it)[0];
  }
  if (item->text.empty()) {
    return InvalidArgument("there is no 'prompt', 'messages', 'turns', 'question' or 'text'");
  }
  item->input_tokens = GuessTokens(item->text);
  return {};
}

constexpr int64_t kCustomOutput = 256;

// The next turn of the conversation at the end of `items`.
WorkItem Turn(const std::string& text, int64_t output, int64_t conversation,
              const std::vector<WorkItem>* items) {
  WorkItem out;
  out.text = text;
  out.input_tokens = GuessTokens(text);
  out.output_tokens = output;
  out.conversation = conversation;
  const bool follows = !items->empty() && items->back().conversation == conversation;
  out.turn = follows ? items->back().turn + 1 : 0;
  return out;
}

// The text of one ShareGPT message.
std::string Said(const Json& message) {
  const bool text =
      message.is_object() && message.contains("value") && message["value"].is_string();
  return text ? message["value"].get<std::string>() : "";
}

}  // namespace

Result<std::vector<WorkItem>> ReadCustom(std::istream& in, const Options& o) {
  std::vector<WorkItem> items;
  int64_t conversations = 0;
  const bool chat = o.kind() != BackendKind::kCompletions;
  const auto read = [&](const Json& json) -> Status {
    if (!o.category.empty() && json.value("category", Json()) != Json(o.category)) return {};
    WorkItem item;
    AISP_RETURN_IF_ERROR(SetPrompt(json, chat, &item));
    int64_t output = kCustomOutput;
    for (const char* name : {"output_tokens", "output_length", "max_tokens"}) {
      if (!json.contains(name)) continue;
      AISP_ASSIGN_OR_RETURN(output, IntField(json, name));
    }
    item.output_tokens = std::max<int64_t>(1, OutputOr(o, output));
    const auto turns = json.find("turns");
    if (o.turns == 1 || turns == json.end() || !turns->is_array()) {
      if (o.turns > 1) item.conversation = conversations++;
      items.push_back(std::move(item));
      return {};
    }
    for (const Json& text : *turns) {
      if (!text.is_string()) return InvalidArgument("'turns' has something that is no text");
      WorkItem turn = Turn(text, item.output_tokens, conversations, &items);
      if (turn.turn < o.turns) items.push_back(std::move(turn));
    }
    ++conversations;
    return {};
  };
  AISP_RETURN_IF_ERROR(ForEachJsonLine(in, read));
  return items;
}

Result<std::vector<WorkItem>> ReadShareGpt(std::istream& in, const Options& o) {
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_array()) return InvalidArgument("no JSON list of conversations");
  std::vector<std::vector<WorkItem>> conversations;
  for (const Json& entry : file) {
    if (!entry.is_object()) continue;
    const auto messages = entry.find("conversations");
    if (messages == entry.end() || !messages->is_array()) continue;
    std::vector<WorkItem> turns;
    // Alternating questions and answers, up to the first incomplete pair.
    for (size_t i = 0; i + 1 < messages->size() && i < 2 * static_cast<size_t>(o.turns); i += 2) {
      const std::string ask = Said((*messages)[i]), answer = Said((*messages)[i + 1]);
      if (ask.empty() || answer.empty()) break;
      turns.push_back(Turn(ask, OutputOr(o, GuessTokens(answer)), 0, &turns));
    }
    if (!turns.empty()) conversations.push_back(std::move(turns));
  }
  SplitMix64 random(o.seed);
  for (size_t i = conversations.size(); i > 1; --i) {
    std::swap(conversations[i - 1], conversations[random.Below(i)]);
  }
  std::vector<WorkItem> items;
  for (size_t i = 0; i < conversations.size(); ++i) {
    for (WorkItem& turn : conversations[i]) {
      turn.conversation = o.turns > 1 ? static_cast<int64_t>(i) : -1;
      items.push_back(std::move(turn));
    }
  }
  return items;
}

}  // namespace aisp::loadgen
