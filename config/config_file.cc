// Reads a Config from YAML.
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "common/strings.h"
#include "config/config.h"

namespace aisp {
namespace {

std::string Where(const std::string& name, const YAML::Node& node) {
  return fmt::format("{}:{}", name, node.Mark().line + 1);
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Plain scalars that are JSON (numbers, true, false, null) are not quoted.
std::string JsonOf(const YAML::Node& node) {
  std::string out;
  if (node.IsMap()) {
    for (const auto& entry : node) {
      out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", Quoted(entry.first.Scalar()),
                         JsonOf(entry.second));
    }
    return "{" + out + "}";
  }
  if (node.IsSequence()) {
    for (const auto& item : node) out += (out.empty() ? "" : ", ") + JsonOf(item);
    return "[" + out + "]";
  }
  if (node.IsNull()) return "null";
  const std::string& text = node.Scalar();
  const bool word = text == "true" || text == "false";
  const bool plain = node.Tag() != "!" && (word || ParseDouble(text).has_value());
  return plain ? text : Quoted(text);
}

// Visits the mapping; every scalar or list must be a known setting.
class YamlReader {
 public:
  YamlReader(const std::string& name, SettingTable settings)
      : name_(name), settings_(std::move(settings)) {}

  Status Read(const YAML::Node& node, const std::string& prefix) {
    for (const auto& entry : node) {
      const std::string where = Where(name_, entry.first);
      if (!entry.first.IsScalar()) return InvalidArgument(where + ": a key must be a plain word");
      const std::string key = prefix + entry.first.Scalar();
      if (!seen_.insert(key).second)
        return InvalidArgument(fmt::format("{}: key '{}' stands here twice", where, key));
      AISP_RETURN_IF_ERROR(ReadEntry(where, key, entry.second));
    }
    return {};
  }

 private:
  Status ReadEntry(const std::string& where, const std::string& key, const YAML::Node& value) {
    const Setting* setting = settings_.Find(key);
    if (settings_.IsSection(key)) {
      if (value.IsMap()) return Read(value, key + ".");
      if (value.IsNull()) return {};  // all of its lines are comments
      return InvalidArgument(fmt::format(
          "{}: {} is a section with keys below it, as {}{}", where, key, ExampleIn(key),
          value.IsScalar() ? fmt::format("; got '{}'", Excerpt(value.Scalar())) : "; got a list"));
    }
    if (setting == nullptr) return Unknown(where, key);
    if (value.IsMap() && setting->json) return SetFromText(*setting, JsonOf(value), where);
    if (value.IsMap()) {
      return InvalidArgument(
          fmt::format("{}: {} is one value, not a section", where, setting->Name()));
    }
    return Set(where, *setting, value);
  }

  Status Set(const std::string& where, const Setting& setting, const YAML::Node& value) const {
    if (value.IsScalar()) return SetFromText(setting, value.Scalar(), where);
    if (!value.IsSequence())
      return InvalidArgument(fmt::format("{}: {} has no value", where, setting.Name()));
    std::vector<std::string> items;
    for (const auto& item : value) {
      if (!item.IsScalar())
        return InvalidArgument(fmt::format("{}: {} wants plain values", where, setting.Name()));
      items.push_back(item.Scalar());
    }
    return SetList(setting, std::move(items), where);
  }

  std::string ExampleIn(const std::string& section) const {
    for (const Setting& s : settings_)
      if (SectionOf(s) == section) return s.key;
    return section;
  }

  tl::unexpected<Error> Unknown(const std::string& where, const std::string& key) const {
    const Setting* near = settings_.Nearest(key);
    return InvalidArgument(fmt::format(
        "{}: unknown key '{}'; {}`aisp --print-config` lists the known ones", where, Excerpt(key),
        near == nullptr ? "" : fmt::format("did you mean {}? ", near->Name())));
  }

  const std::string& name_;
  const SettingTable settings_;
  std::set<std::string> seen_;
};

// The first line indented by a tab, from 1; 0 if there is none.
int LineIndentedByTab(const std::string& text) {
  int number = 0;
  for (const std::string_view line : Split(text, '\n')) {
    ++number;
    const size_t first = line.find_first_not_of(' ');
    if (first != std::string_view::npos && line[first] == '\t') return number;
  }
  return 0;
}

}  // namespace

Status LoadConfigText(const std::string& text, const std::string& name, Config* config) {
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return {};
    if (!root.IsMap())
      return InvalidArgument(name + ":1: a config file is a mapping of keys to values");
    return YamlReader(name, BindSettings(config)).Read(root, "");
  } catch (const YAML::Exception& e) {
    if (const int line = LineIndentedByTab(text); line > 0) {
      return InvalidArgument(
          fmt::format("{}:{}: this line is indented by a tab; YAML wants spaces", name, line));
    }
    return InvalidArgument(fmt::format("{}:{}: {}", name, e.mark.line + 1, e.msg));
  }
}

Status LoadConfigFile(const std::string& path, Config* config) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return InvalidArgument(
        fmt::format("the config file '{}' is a directory; name the YAML file in it", path));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return NotFound(
        fmt::format("cannot read the config file '{}': {}", path, std::strerror(errno)));
  }
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad() || text.bad())
    return Unavailable(fmt::format("reading the config file '{}' failed", path));
  return LoadConfigText(text.str(), path, config);
}

}  // namespace aisp
