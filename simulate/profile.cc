#include "simulate/profile.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/prefix_hash.h"
#include "common/strings.h"

namespace aisp::simulate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxWorkers = 4096;
constexpr double kMostMs = 60'000;
// In decode_step_ms: an object that maps numbers of rows to additional ms.
constexpr const char* kMoreFrom = "more_from_rows";

// One number of a profile: its JSON key, its address, and its range.
struct Field {
  const char* group;  // "": the outermost object
  const char* key;
  double* number;  // exactly one of the three is set
  int32_t* count;
  int64_t* large;
  double min, max;
  bool optional = false;
};

std::vector<Field> FieldsOf(WorkerProfile* p) {
  const auto number = [](const char* group, const char* key, double* at, double min, double max) {
    return Field{group, key, at, nullptr, nullptr, min, max};
  };
  const auto optional = [](const char* group, const char* key, double* at, double min, double max) {
    return Field{group, key, at, nullptr, nullptr, min, max, /*optional=*/true};
  };
  const auto count = [](const char* key, int32_t* at, double min, double max) {
    return Field{"", key, nullptr, at, nullptr, min, max};
  };
  constexpr double kMs = kMostMs;
  StepCost::Decode& d = p->cost.decode;
  StepCost::Prefill& f = p->cost.prefill;
  return {
      number("decode_step_ms", "base", &d.base_ms, 0, kMs),
      number("decode_step_ms", "per_row", &d.per_row_ms, 0, kMs),
      number("decode_step_ms", "per_context_token", &d.per_context_ms, 0, 1),
      number("prompt_step_ms", "base", &f.base_ms, 0, kMs),
      number("prompt_step_ms", "per_token", &f.per_token_ms, 0, kMs),
      number("prompt_step_ms", "per_position_read", &f.per_prefill_context_ms, 0, 1),
      number("prompt_step_ms", "per_row", &f.per_row_ms, 0, kMs),
      number("prompt_step_ms", "per_context_token", &f.per_context_ms, 0, 1),
      optional("prompt_step_ms", "beside_rows", &p->beside_rows_ms, 0, kMs),
      optional("prompt_step_ms", "back_to_back", &p->back_to_back, 0, 10),
      optional("prompt_step_ms", "rest", &p->rest_ms, 1e-3, kMs),
      count("chunk_tokens", &p->chunk_tokens, 1, 1 << 20),
      count("max_batch_tokens", &p->max_batch_tokens, 1, 1 << 20),
      count("max_running", &p->max_running, 1, 1 << 16),
      count("block_tokens", &p->block_tokens, kHashUnitTokens, 1024),
      Field{"", "blocks", nullptr, nullptr, &p->blocks, 1, 1e9},
      number("", "kv_bytes_per_token", &p->kv_bytes_per_token, 1, 1e9),
      count("num_layers", &p->num_layers, 1, 1024),
      number("", "transfer_bytes_per_s", &p->transfer_bytes_per_s, 1e3, 1e13),
      number("", "handoff_ms", &p->handoff_ms, 0, kMs),
      number("", "message_ms", &p->message_ms, 0, kMs),
      number("", "frontend_ms", &p->frontend_ms, 0, kMs),
      number("", "step_jitter", &p->step_jitter, 0, 1),
      Field{"", "launched_ahead", nullptr, &p->launched_ahead, nullptr, 0, 1, /*optional=*/true},
  };
}

std::string PathOf(const Field& field) {
  return *field.group == '\0' ? field.key : fmt::format("{}.{}", field.group, field.key);
}

Status Read(const Json& json, const Field& field) {
  const Json* at = &json;
  if (*field.group != '\0') {
    const auto group = json.find(field.group);
    if (group == json.end() || !group->is_object())
      return InvalidArgument(fmt::format("there is no object '{}'", field.group));
    at = &*group;
  }
  const auto it = at->find(field.key);
  if (it == at->end() && field.optional) return {};
  if (it == at->end() || !it->is_number())
    return InvalidArgument(fmt::format("there is no number '{}'", PathOf(field)));
  const double value = it->get<double>();
  if (!(value >= field.min && value <= field.max)) {
    return InvalidArgument(
        fmt::format("'{}' is {}; it may be {} to {}", PathOf(field), value, field.min, field.max));
  }
  if (field.number != nullptr) *field.number = value;
  if (field.count != nullptr) *field.count = static_cast<int32_t>(value);
  if (field.large != nullptr) *field.large = static_cast<int64_t>(value);
  return {};
}

// Unknown keys are errors, because they are likely typing errors.
Status OnlyKnown(const Json& json, const std::vector<Field>& fields) {
  const auto known = [&](const std::string& group, const std::string& key) {
    return std::any_of(fields.begin(), fields.end(), [&](const Field& f) {
      return group.empty() ? f.key == key || f.group == key : f.group == group && f.key == key;
    });
  };
  for (const auto& [key, value] : json.items()) {
    if (key == "about") continue;
    if (!known("", key)) return InvalidArgument(fmt::format("'{}' is no key of a profile", key));
    if (!value.is_object()) continue;
    for (const auto& [inner, unused] : value.items()) {
      if (key == "decode_step_ms" && inner == kMoreFrom) continue;
      if (!known(key, inner))
        return InvalidArgument(fmt::format("'{}.{}' is no key of a profile", key, inner));
    }
  }
  return {};
}

Status ReadMoreFrom(const Json& json, std::map<int32_t, double>* more) {
  const auto group = json.find("decode_step_ms");
  if (group == json.end() || !group->is_object() || !group->contains(kMoreFrom)) return {};
  const Json& all = (*group)[kMoreFrom];
  if (!all.is_object())
    return InvalidArgument(fmt::format("'decode_step_ms.{}' is no object", kMoreFrom));
  for (const auto& [rows, ms] : all.items()) {
    const auto from = ParseIntInRange(rows, 1, 1 << 16);
    const bool fits = ms.is_number() && ms.get<double>() >= 0 && ms.get<double>() <= kMostMs;
    if (!from || !fits) {
      return InvalidArgument(fmt::format(
          "'decode_step_ms.{}' has '{}': {}; write rows and milliseconds, as in {{\"33\": 0.7}}",
          kMoreFrom, Excerpt(rows), Excerpt(ms.dump())));
    }
    (*more)[static_cast<int32_t>(*from)] = ms.get<double>();
  }
  return {};
}

Result<WorkerProfile> LoadProfile(const std::string& name, const std::string& folder) {
  const bool is_file = name.ends_with(".json");
  const std::string path = is_file ? name : folder + "/" + name + ".json";
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::vector<std::string> shipped;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".json") shipped.push_back(entry.path().stem());
    }
    std::sort(shipped.begin(), shipped.end());
    return NotFound(fmt::format("there is no worker profile '{}'; give a .json file or one of: {}",
                                name, fmt::join(shipped, ", ")));
  }
  std::ostringstream text;
  text << in.rdbuf();
  return ParseProfile(text.str(), is_file ? std::filesystem::path(path).stem().string() : name);
}

// "2P2D", "4D", "1P3D".
Status ParseCounts(std::string_view text, Fleet* fleet) {
  const auto wrong = [&] {
    return InvalidArgument(fmt::format(
        "'{}' says no number of workers; write 2P2D, or 4D for workers that prefill their own",
        Excerpt(text)));
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    const auto count = ParseIntInRange(text.substr(at, end - at), 0, kMaxWorkers);
    if (!count || end == text.size()) return wrong();
    const char role = text[end];
    if (role != 'P' && role != 'D') return wrong();
    (role == 'P' ? fleet->prefill : fleet->decode) += static_cast<int>(*count);
    at = end + 1;
  }
  if (fleet->prefill + fleet->decode == 0) return wrong();
  return {};
}

}  // namespace

Result<WorkerProfile> ParseProfile(std::string_view text, std::string name) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto at = [&](const Error& error) {
    return InvalidArgument(fmt::format("worker profile {}: {}", name, error.message));
  };
  if (!json.is_object()) return at({Code::kInvalidArgument, "it is no JSON object"});
  WorkerProfile profile;
  const std::vector<Field> fields = FieldsOf(&profile);
  if (const Status known = OnlyKnown(json, fields); !known) return at(known.error());
  for (const Field& field : fields) {
    if (const Status read = Read(json, field); !read) return at(read.error());
  }
  if (const Status read = ReadMoreFrom(json, &profile.more_from_rows); !read)
    return at(read.error());
  if (profile.block_tokens % kHashUnitTokens != 0) {
    return at({Code::kInvalidArgument, fmt::format("'block_tokens' is {}, no multiple of {}",
                                                   profile.block_tokens, kHashUnitTokens)});
  }
  profile.name = std::move(name);
  return profile;
}

std::string ProfileToJson(const WorkerProfile& profile) {
  WorkerProfile copy = profile;
  Json json;
  for (const Field& field : FieldsOf(&copy)) {
    Json& at = *field.group == '\0' ? json : json[field.group];
    if (field.number != nullptr) at[field.key] = *field.number;
    if (field.count != nullptr) at[field.key] = *field.count;
    if (field.large != nullptr) at[field.key] = *field.large;
  }
  for (const auto& [rows, ms] : profile.more_from_rows)
    json["decode_step_ms"][kMoreFrom][std::to_string(rows)] = ms;
  return json.dump(2) + "\n";
}

Result<std::vector<Fleet>> ParseFleets(std::string_view spec, const std::string& folder) {
  std::vector<Fleet> fleets;
  int workers = 0, decode = 0;
  for (std::string_view group : Split(spec, '+')) {
    const size_t colon = group.rfind(':');
    if (colon == std::string_view::npos || colon == 0) {
      return InvalidArgument(fmt::format(
          "'{}' names no workers; write PROFILE:2P2D, groups joined by '+'", Excerpt(group)));
    }
    Fleet fleet;
    AISP_RETURN_IF_ERROR(ParseCounts(group.substr(colon + 1), &fleet));
    AISP_ASSIGN_OR_RETURN(fleet.profile, LoadProfile(std::string(group.substr(0, colon)), folder));
    workers += fleet.prefill + fleet.decode;
    decode += fleet.decode;
    fleets.push_back(std::move(fleet));
  }
  if (decode == 0) {
    return InvalidArgument(
        fmt::format("'{}' has no decode worker, and every request needs one", Excerpt(spec)));
  }
  if (workers > kMaxWorkers) {
    return InvalidArgument(
        fmt::format("'{}' has {} workers; at most {}", Excerpt(spec), workers, kMaxWorkers));
  }
  return fleets;
}

}  // namespace aisp::simulate
