// Setting: one named value of a Config; SettingTable: all of them.
//
// The table is the only place where a setting is named. Its key is the YAML path and, with two
// dashes, the flag (`engine.block_tokens`, `--engine.block_tokens`); some also have a short flag
// (`--block-size`). Parsing, `--help`, `--print-config` and docs/config.md are all made from it.
//
// To add a setting: a field in config/config.h and one Add in its section's settings_*.cc. Plain
// values; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/result.h"

namespace aisp {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

// One setting, bound to its field. Chained calls add details: t.Add("lease", &w.lease, "How long a
// peer may write.").Flag("--lease").Range(50ms, 10min);
struct Setting {
  using Field = std::variant<std::string*, bool*, double*, int32_t*, int64_t*, uint16_t*, size_t*,
                             Duration*, std::vector<std::string>*>;
  enum class Unit { kNone, kBytes };

  // A short flag besides `--KEY`.
  Setting& Flag(std::string_view name);
  // Minimum and maximum, both allowed.
  Setting& Range(int64_t least, int64_t most);
  Setting& Range(Duration least, Duration most);
  // The only allowed values; "x:N" matches any number N. For a list: the allowed items.
  Setting& OneOf(std::vector<std::string_view> values);
  // The number is a size: 1048576, 64KiB or 1.5GiB.
  Setting& Bytes();
  // The text is a word or a JSON object, which may be a YAML mapping.
  Setting& Json();
  // Never printed or quoted in an error.
  Setting& Secret();

  bool IsSwitch() const { return std::holds_alternative<bool*>(field); }
  std::string LongFlag() const { return "--" + key; }
  // "engine.block_tokens (--block-size)", for errors.
  std::string Name() const;
  // The kind of value: "N", "SIZE", "TIME", "TEXT", "A,B,..."; "" for a switch.
  std::string_view Kind() const;
  // "One of a, b." or "From 1 to 10."; "" when anything is allowed.
  std::string Allowed() const;
  // The field's value as YAML, secrets included.
  std::string Show() const;

  std::string key;  // YAML path
  Field field;
  std::string_view help;  // one sentence for operators: what it does, what 0 or "" means
  std::string_view flag;  // "" if none
  bool ranged = false;
  int64_t min = 0;  // for durations in nanoseconds
  int64_t max = 0;
  std::vector<std::string_view> choices;
  Unit unit = Unit::kNone;
  bool secret = false;
  bool json = false;
};

class SettingTable {
 public:
  // Settings added from now on are named "name.x"; "" for no section. `what` heads the section in
  // the docs.
  void Section(std::string_view name, std::string_view what);
  // The reference is valid until the next Add.
  Setting& Add(std::string_view name, Setting::Field field, std::string_view help);

  // By key; nullptr if unknown.
  const Setting* Find(std::string_view key) const;
  bool IsSection(std::string_view name) const;
  std::string_view SectionHelp(std::string_view name) const;
  // The setting whose key, last part of the key or short flag is most similar to `word` (ignoring
  // leading dashes; dashes equal underscores); nullptr if none is similar.
  const Setting* Nearest(std::string_view word) const;

  auto begin() const { return settings_.begin(); }
  auto end() const { return settings_.end(); }

 private:
  struct Heading {
    std::string name;
    std::string_view what;
  };
  std::vector<Heading> sections_;
  std::vector<Setting> settings_;
};

// "engine" for "engine.block_tokens", "" for "role".
std::string_view SectionOf(const Setting& setting);

// Sets one value from text, as a flag does. `origin` ("--port", "file:line") appears in errors.
Status SetFromText(const Setting& setting, std::string_view text, std::string_view origin);
// Sets a list from its items.
Status SetList(const Setting& setting, std::vector<std::string> items, std::string_view origin);

}  // namespace aisp
