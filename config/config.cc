#include "config/config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "common/strings.h"

namespace aisp {
namespace {

Status CheckRange(const Setting& s, int64_t value, std::string_view shown,
                  std::string_view origin) {
  if (value >= s.min && value <= s.max) return {};
  return InvalidArgument(fmt::format("{}: {} = {} is out of range; allowed: {} to {}", origin,
                                     s.key, shown, s.min, s.max));
}

Result<Duration> ParseDuration(std::string_view text) {
  struct Unit {
    std::string_view name;
    double ms;
  };
  static constexpr Unit kUnits[] = {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};
  for (const Unit& unit : kUnits) {
    if (text.size() <= unit.name.size() || !text.ends_with(unit.name)) continue;
    auto number = ParseDouble(text.substr(0, text.size() - unit.name.size()));
    if (number && *number >= 0 && *number * unit.ms < 1e12) return FromMs(*number * unit.ms);
    if (number) return InvalidArgument("negative or too long");
  }
  return InvalidArgument("not a duration");
}

std::string ShowDuration(Duration d) {
  const int64_t ms = d.count() / 1'000'000;
  return ms % 1000 == 0 && ms != 0 ? fmt::format("{}s", ms / 1000) : fmt::format("{}ms", ms);
}

// Parses `text` into one kind of field; the overload set is what SetFromText dispatches to.
struct TextSetter {
  const Setting& s;
  std::string_view text;
  std::string_view origin;

  tl::unexpected<Error> Wrong(std::string_view expected) const {
    if (s.secret) return InvalidArgument(fmt::format("{}: {} wants {}", origin, s.key, expected));
    return InvalidArgument(
        fmt::format("{}: {} wants {}, got '{}'", origin, s.key, expected, Excerpt(text)));
  }

  Status operator()(std::string* out) const {
    if (!s.choices.empty() &&
        std::find(s.choices.begin(), s.choices.end(), text) == s.choices.end()) {
      return Wrong(fmt::format("one of {}", fmt::join(s.choices, ", ")));
    }
    *out = std::string(text);
    return {};
  }
  Status operator()(int64_t* out) const {
    auto value = ParseInt(text);
    if (!value) return Wrong("a whole number");
    AISP_RETURN_IF_ERROR(CheckRange(s, *value, text, origin));
    *out = *value;
    return {};
  }
  Status operator()(bool* out) const {
    auto value = ParseBool(text);
    if (!value) return Wrong("true or false");
    *out = *value;
    return {};
  }
  Status operator()(ByteSize* out) const {
    auto value = ParseBytes(text);
    if (!value || *value > INT64_MAX) return Wrong("a size such as 1048576, 64KiB or 1.5GiB");
    AISP_RETURN_IF_ERROR(CheckRange(s, static_cast<int64_t>(*value), text, origin));
    out->bytes = static_cast<int64_t>(*value);
    return {};
  }
  Status operator()(Duration* out) const {
    auto value = ParseDuration(text);
    if (!value) return Wrong("a duration with a unit, such as 500ms, 2s or 5m");
    AISP_RETURN_IF_ERROR(CheckRange(s, value->count() / 1'000'000, text, origin));
    *out = *value;
    return {};
  }
  Status operator()(std::vector<std::string>* out) const {
    std::vector<std::string> parts;
    for (std::string_view part : Split(text, ',')) {
      if (Trim(part).empty()) return Wrong("a list such as a,b without empty parts");
      parts.emplace_back(Trim(part));
    }
    *out = std::move(parts);
    return {};
  }
};

std::string Where(const std::string& name, const YAML::Node& node) {
  return fmt::format("{}:{}", name, node.Mark().line + 1);
}

// Walks the mapping; every scalar or list must be a known setting.
class YamlReader {
 public:
  YamlReader(const std::string& name, std::vector<Setting> settings)
      : name_(name), settings_(std::move(settings)) {}

  Status Read(const YAML::Node& node, const std::string& prefix) {
    for (const auto& entry : node) {
      const std::string where = Where(name_, entry.first);
      if (!entry.first.IsScalar()) return InvalidArgument(where + ": a key must be a plain word");
      const std::string key = prefix + entry.first.Scalar();
      if (!seen_.insert(key).second)
        return InvalidArgument(fmt::format("{}: key '{}' stands here twice", where, key));
      if (entry.second.IsMap()) {
        if (!KnownSection(key)) return Unknown(where, key);
        AISP_RETURN_IF_ERROR(Read(entry.second, key + "."));
        continue;
      }
      AISP_RETURN_IF_ERROR(Set(where, key, entry.second));
    }
    return {};
  }

 private:
  bool KnownSection(const std::string& key) const {
    return std::any_of(settings_.begin(), settings_.end(),
                       [&](const Setting& s) { return s.key.starts_with(key + "."); });
  }

  tl::unexpected<Error> Unknown(const std::string& where, const std::string& key) const {
    return InvalidArgument(fmt::format(
        "{}: unknown key '{}'; `aisp serve --print-config` lists the known ones", where, key));
  }

  Status Set(const std::string& where, const std::string& key, const YAML::Node& value) {
    auto setting = std::find_if(settings_.begin(), settings_.end(),
                                [&](const Setting& s) { return s.key == key; });
    if (setting == settings_.end()) return Unknown(where, key);
    if (value.IsSequence()) {
      auto* list = std::get_if<std::vector<std::string>*>(&setting->field);
      if (list == nullptr)
        return InvalidArgument(fmt::format("{}: {} is one value, not a list", where, key));
      std::vector<std::string> parts;
      for (const auto& item : value) {
        if (!item.IsScalar())
          return InvalidArgument(fmt::format("{}: {} wants plain values", where, key));
        parts.push_back(item.Scalar());
      }
      **list = std::move(parts);
      return {};
    }
    if (!value.IsScalar()) return InvalidArgument(fmt::format("{}: {} has no value", where, key));
    return SetFromText(*setting, value.Scalar(), where);
  }

  const std::string& name_;
  std::vector<Setting> settings_;
  std::set<std::string> seen_;
};

// A double-quoted YAML scalar.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

struct Shower {
  std::string operator()(const std::string* v) const { return Quoted(*v); }
  std::string operator()(const int64_t* v) const { return std::to_string(*v); }
  std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
  std::string operator()(const ByteSize* v) const { return std::to_string(v->bytes); }
  std::string operator()(const Duration* v) const { return ShowDuration(*v); }
  std::string operator()(const std::vector<std::string>* v) const {
    std::vector<std::string> quoted;
    for (const std::string& item : *v) quoted.push_back(Quoted(item));
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  }
};

// How many values of a secret list there are.
size_t HiddenCount(const Setting& s) {
  const auto* list = std::get_if<std::vector<std::string>*>(&s.field);
  return list == nullptr ? 0 : (*list)->size();
}

}  // namespace

Status SetFromText(const Setting& setting, std::string_view text, std::string_view origin) {
  return std::visit(TextSetter{setting, text, origin}, setting.field);
}

Status LoadConfigText(const std::string& text, const std::string& name, Config* config) {
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return {};
    if (!root.IsMap())
      return InvalidArgument(name + ":1: a config file is a mapping of keys to values");
    return YamlReader(name, BindSettings(config)).Read(root, "");
  } catch (const YAML::Exception& e) {
    return InvalidArgument(fmt::format("{}:{}: {}", name, e.mark.line + 1, e.msg));
  }
}

Status LoadConfigFile(const std::string& path, Config* config) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(fmt::format("cannot read the config file '{}'", path));
  std::ostringstream text;
  text << in.rdbuf();
  return LoadConfigText(text.str(), path, config);
}

std::string PrintConfig(const Config& config, Secrets secrets) {
  Config copy = config;
  std::string out;
  std::string section;
  for (const Setting& s : BindSettings(&copy)) {
    const size_t dot = s.key.find('.');
    const std::string_view head =
        dot == std::string_view::npos ? std::string_view() : s.key.substr(0, dot);
    const std::string_view leaf = dot == std::string_view::npos ? s.key : s.key.substr(dot + 1);
    if (head != section) {
      section = head;
      out += section.empty() ? "\n" : fmt::format("\n{}:\n", section);
    }
    const std::string_view indent = section.empty() ? "" : "  ";
    const size_t hidden = secrets == Secrets::kHidden && s.secret ? HiddenCount(s) : 0;
    out += fmt::format("{}{}: {}  # {}", indent, leaf,
                       hidden > 0 ? "[]" : std::visit(Shower{}, s.field), s.help);
    if (!s.choices.empty()) out += fmt::format(" One of {}.", fmt::join(s.choices, ", "));
    if (hidden > 0) out += fmt::format(" ({} not shown.)", hidden);
    out += "\n";
  }
  return out;
}

}  // namespace aisp
