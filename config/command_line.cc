#include "config/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/edit_distance.h"
#include "common/strings.h"

namespace aisp {
namespace {

// A hint such as "; did you mean --port?", or where to look the flag up.
std::string Hint(std::string_view flag, const SettingTable& settings,
                 std::span<const ExtraFlag> extras) {
  std::string best;
  size_t best_distance = 4;
  for (const ExtraFlag& e : extras) {
    const size_t d = EditDistance(flag, e.name);
    if (d >= best_distance) continue;
    best_distance = d;
    best = std::string(e.name);
  }
  if (const Setting* near = settings.Nearest(flag); best.empty() && near != nullptr) {
    best = near->LongFlag();
    if (!near->flag.empty() && near->flag != best) best += fmt::format(" ({})", near->flag);
  }
  return best.empty() ? "; --help lists the known ones" : fmt::format("; did you mean {}?", best);
}

// One pass over the arguments. `apply` false collects only --config, so that flags override the
// file.
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
      const bool named = (!s.flag.empty() && name == s.flag) || name == s.LongFlag();
      const bool negated = s.IsSwitch() && Negates(name, s);
      if (!named && !negated) continue;
      std::string value = negated ? "false" : "true";
      if (!s.IsSwitch()) {
        AISP_ASSIGN_OR_RETURN(value, Value(name, inline_value));
      } else if (inline_value) {
        if (negated) return InvalidArgument(fmt::format("{} takes no value", name));
        value = *inline_value;
      }
      return apply_ ? SetFromText(s, value, name) : Status();
    }
    return InvalidArgument(
        fmt::format("unknown flag '{}'{}", Excerpt(name), Hint(name, settings_, extras_)));
  }

  static bool Negates(std::string_view name, const Setting& s) {
    if (!name.starts_with("--no-")) return false;
    name.remove_prefix(5);
    return name == s.key || (!s.flag.empty() && name == s.flag.substr(2));
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
  const SettingTable settings_;
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

Result<int64_t> CommandLine::ExtraInt(std::string_view name, int64_t fallback, int64_t min,
                                      int64_t max) const {
  if (!HasExtra(name)) return fallback;
  const std::string text = Extra(name);
  const auto value = ParseInt(text);
  if (!value) {
    return InvalidArgument(fmt::format("--{} wants a whole number, got '{}'", name, Excerpt(text)));
  }
  if (*value < min || *value > max) {
    return InvalidArgument(
        fmt::format("--{} {} is out of range; allowed: {} to {}", name, *value, min, max));
  }
  return *value;
}

Result<double> CommandLine::ExtraNumber(std::string_view name, double fallback, double min,
                                        double max) const {
  if (!HasExtra(name)) return fallback;
  const std::string text = Extra(name);
  const auto value = ParseDouble(text);
  if (!value)
    return InvalidArgument(fmt::format("--{} wants a number, got '{}'", name, Excerpt(text)));
  if (*value < min || *value > max) {
    return InvalidArgument(
        fmt::format("--{} {} is out of range; allowed: {} to {}", name, *value, min, max));
  }
  return *value;
}

std::string HelpForSettings(std::span<const std::string_view> prefixes,
                            std::span<const ExtraFlag> extras) {
  std::string out;
  auto entry = [&](std::string_view flags, std::string_view help) {
    out += fmt::format("  {}\n      {}\n", flags, help);
  };
  auto with_value = [](std::string_view flag, std::string_view value) {
    return value.empty() ? std::string(flag) : fmt::format("{} {}", flag, value);
  };
  for (const ExtraFlag& e : extras) entry(with_value(e.name, e.value), e.help);
  Config defaults;
  for (const Setting& s : BindSettings(&defaults)) {
    const bool wanted =
        std::any_of(prefixes.begin(), prefixes.end(), [&](auto p) { return s.key.starts_with(p); });
    if (!wanted) continue;
    std::string flags = with_value(s.LongFlag(), s.Kind());
    if (!s.flag.empty()) flags = fmt::format("{:<34}  {}", flags, s.flag);
    entry(flags, fmt::format("{}{}{} Default: {}.", s.help, s.Allowed().empty() ? "" : " ",
                             s.Allowed(), s.Show()));
  }
  entry("--config FILE", "YAML file with any of these settings; flags win over it.");
  entry("--print-config", "Print every setting as it stands, as YAML, and exit.");
  return out;
}

}  // namespace aisp
