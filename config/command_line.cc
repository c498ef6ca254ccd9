#include "config/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/edit_distance.h"
#include "common/strings.h"

namespace aisp {
namespace {

std::string Nearest(std::string_view flag, const std::vector<Setting>& settings,
                    std::span<const ExtraFlag> extras) {
  std::string best;
  size_t best_distance = 4;
  auto consider = [&](std::string_view name) {
    const size_t d = name.empty() ? 99 : EditDistance(flag, name);
    if (d < best_distance) {
      best_distance = d;
      best = std::string(name);
    }
  };
  for (const Setting& s : settings) consider(s.flag);
  for (const ExtraFlag& e : extras) consider(e.name);
  return best.empty() ? "" : fmt::format("; did you mean {}?", best);
}

bool IsSwitch(const Setting& s) { return std::holds_alternative<bool*>(s.field); }

// One pass over the arguments; `apply` false collects only --config, so that the file comes under the flags.
class Parser {
 public:
  Parser(std::span<const std::string> args, std::span<const ExtraFlag> extras, CommandLine* out)
      : args_(args), extras_(extras), out_(out), settings_(BindSettings(&out->config)) {}

  Status Run(bool apply) {
    apply_ = apply;
    for (index_ = 0; index_ < args_.size(); ++index_) {
      const std::string& arg = args_[index_];
      if (arg == "--") {
        if (apply_)
          out_->positional.insert(out_->positional.end(), args_.begin() + index_ + 1, args_.end());
        return {};
      }
      if (arg.size() < 2 || arg[0] != '-') {
        if (apply_) out_->positional.push_back(arg);
        continue;
      }
      AISP_RETURN_IF_ERROR(Flag(arg));
    }
    return {};
  }

 private:
  Status Flag(const std::string& arg) {
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    std::optional<std::string> inline_value;
    if (equals != std::string::npos) inline_value = arg.substr(equals + 1);
    if (name == "--help" || name == "-h") return Mark(out_->help);
    if (name == "--version") return Mark(out_->version);
    if (name == "--print-config") return Mark(out_->print_config);
    if (name == "--config") {
      AISP_ASSIGN_OR_RETURN(std::string path, Value(name, inline_value));
      return apply_ ? Status() : LoadConfigFile(path, &out_->config);
    }
    for (const ExtraFlag& extra : extras_) {
      if (extra.name != name) continue;
      std::string value;
      if (!extra.value.empty()) {
        AISP_ASSIGN_OR_RETURN(value, Value(name, inline_value));
      }
      if (apply_) out_->extra.emplace_back(name.substr(2), value);
      return {};
    }
    return SettingFlag(name, inline_value);
  }

  Status SettingFlag(const std::string& name, const std::optional<std::string>& inline_value) {
    for (const Setting& s : settings_) {
      const bool named = name == s.flag || (name.starts_with("--") && name.substr(2) == s.key);
      const bool negated =
          IsSwitch(s) && !s.flag.empty() && name == fmt::format("--no-{}", s.flag.substr(2));
      if (!named && !negated) continue;
      std::string value = negated ? "false" : "true";
      if (!IsSwitch(s)) {
        AISP_ASSIGN_OR_RETURN(value, Value(name, inline_value));
      } else if (inline_value) {
        if (negated) return InvalidArgument(fmt::format("{} takes no value", name));
        value = *inline_value;
      }
      return apply_ ? SetFromText(s, value, name) : Status();
    }
    return InvalidArgument(
        fmt::format("unknown flag '{}'{}", Excerpt(name), Nearest(name, settings_, extras_)));
  }

  Result<std::string> Value(const std::string& name,
                            const std::optional<std::string>& inline_value) {
    if (inline_value) return *inline_value;
    if (index_ + 1 >= args_.size()) return InvalidArgument(fmt::format("{} wants a value", name));
    return args_[++index_];
  }

  Status Mark(bool& flag) {
    flag = true;
    return {};
  }

  std::span<const std::string> args_;
  std::span<const ExtraFlag> extras_;
  CommandLine* out_;
  std::vector<Setting> settings_;
  size_t index_ = 0;
  bool apply_ = false;
};

}  // namespace

std::string CommandLine::Extra(std::string_view name, std::string_view fallback) const {
  for (auto it = extra.rbegin(); it != extra.rend(); ++it) {
    if (it->first == name) return it->second;
  }
  return std::string(fallback);
}

bool CommandLine::HasExtra(std::string_view name) const {
  return std::any_of(extra.begin(), extra.end(), [&](const auto& e) { return e.first == name; });
}

Result<CommandLine> ParseCommandLine(std::span<const std::string> args,
                                     std::span<const ExtraFlag> extras) {
  CommandLine out;
  Parser parser(args, extras, &out);
  AISP_RETURN_IF_ERROR(parser.Run(/*apply=*/false));
  AISP_RETURN_IF_ERROR(parser.Run(/*apply=*/true));
  return out;
}

std::string HelpForSettings(std::span<const std::string_view> prefixes,
                            std::span<const ExtraFlag> extras) {
  std::string out;
  auto line = [&](std::string_view flag, std::string_view help) {
    out += fmt::format("  {:<28} {}\n", flag, help);
  };
  for (const ExtraFlag& e : extras)
    line(e.value.empty() ? std::string(e.name) : fmt::format("{} {}", e.name, e.value), e.help);
  Config defaults;
  for (const Setting& s : BindSettings(&defaults)) {
    const bool wanted =
        std::any_of(prefixes.begin(), prefixes.end(), [&](auto p) { return s.key.starts_with(p); });
    if (!wanted) continue;
    std::string help(s.help);
    if (!s.choices.empty()) help += fmt::format(" One of {}.", fmt::join(s.choices, ", "));
    line(s.flag.empty() ? fmt::format("--{}", s.key) : std::string(s.flag), help);
  }
  line("--config FILE", "YAML file with any of these settings; flags win over it.");
  line("--print-config", "Print every setting as it stands, as YAML, and exit.");
  return out;
}

}  // namespace aisp
