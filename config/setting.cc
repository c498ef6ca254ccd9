#include "config/setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <limits>
#include <utility>

#include "common/edit_distance.h"
#include "common/strings.h"

namespace aisp {
namespace {

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

std::string ShowDuration(int64_t ns) {
  constexpr std::pair<int64_t, std::string_view> kUnits[] = {
      {3'600'000, "h"}, {60'000, "m"}, {1000, "s"}};
  const int64_t ms = ns / 1'000'000;
  for (const auto& [length, name] : kUnits) {
    if (ms != 0 && ms % length == 0) return fmt::format("{}{}", ms / length, name);
  }
  return fmt::format("{}ms", ms);
}

std::string ShowBytes(int64_t bytes) {
  constexpr std::pair<int64_t, std::string_view> kUnits[] = {
      {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}};
  for (const auto& [size, name] : kUnits) {
    if (bytes != 0 && bytes % size == 0) return fmt::format("{}{}", bytes / size, name);
  }
  return std::to_string(bytes);
}

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

// The number in the setting's unit.
std::string ShowNumber(const Setting& s, int64_t value) {
  if (std::holds_alternative<Duration*>(s.field)) return ShowDuration(value);
  return s.unit == Setting::Unit::kBytes ? ShowBytes(value) : std::to_string(value);
}

// A choice "cuda:N" matches any number of up to four digits.
bool IsChoice(std::string_view choice, std::string_view value) {
  if (!choice.ends_with(":N")) return value == choice;
  const std::string_view before = choice.substr(0, choice.size() - 1);
  return value.starts_with(before) && ParseIntInRange(value.substr(before.size()), 0, 9999);
}

// Writes one kind of field; the overloads are the kinds, selected by SetFromText.
struct Setter {
  const Setting& s;
  std::string_view text;
  std::string_view origin;

  tl::unexpected<Error> Wrong(std::string_view wanted) const {
    const std::string got = s.secret ? "" : fmt::format(", got '{}'", Excerpt(text));
    return InvalidArgument(fmt::format("{}: {} wants {}{}", origin, s.Name(), wanted, got));
  }
  Status CheckChoice(std::string_view value) const {
    const auto is = [value](std::string_view choice) { return IsChoice(choice, value); };
    if (s.choices.empty() || std::any_of(s.choices.begin(), s.choices.end(), is)) return {};
    return Setter{s, value, origin}.Wrong(fmt::format("one of {}", fmt::join(s.choices, ", ")));
  }
  Status CheckRange(int64_t value) const {
    if (!s.ranged || (value >= s.min && value <= s.max)) return {};
    return InvalidArgument(fmt::format("{}: {} = {} is out of range; allowed: {} to {}", origin,
                                       s.Name(), Excerpt(text), ShowNumber(s, s.min),
                                       ShowNumber(s, s.max)));
  }

  Status operator()(std::string* out) const {
    AISP_RETURN_IF_ERROR(CheckChoice(text));
    *out = std::string(text);
    return {};
  }
  Status operator()(bool* out) const {
    const auto value = ParseBool(text);
    if (!value) return Wrong("true or false");
    *out = *value;
    return {};
  }
  Status operator()(double* out) const {
    const auto value = ParseDouble(text);
    if (!value) return Wrong("a number");
    if (s.ranged && (*value < static_cast<double>(s.min) || *value > static_cast<double>(s.max)))
      return CheckRange(*value < static_cast<double>(s.min) ? s.min - 1 : s.max + 1);
    *out = *value;
    return {};
  }
  template <std::integral T>
  Status operator()(T* out) const {
    int64_t value = 0;
    if (s.unit == Setting::Unit::kBytes) {
      const auto bytes = ParseBytes(text);
      if (!bytes || *bytes > INT64_MAX) return Wrong("a size such as 1048576, 64KiB or 1.5GiB");
      value = static_cast<int64_t>(*bytes);
    } else {
      const auto number = ParseInt(text);
      if (!number) return Wrong("a whole number");
      value = *number;
      AISP_RETURN_IF_ERROR(CheckChoice(std::to_string(value)));
    }
    AISP_RETURN_IF_ERROR(CheckRange(value));
    if (!std::in_range<T>(value)) {
      return Wrong(fmt::format("a number from {} to {}", std::numeric_limits<T>::min(),
                               std::numeric_limits<T>::max()));
    }
    *out = static_cast<T>(value);
    return {};
  }
  Status operator()(Duration* out) const {
    const auto value = ParseDuration(text);
    if (!value) return Wrong("a time with a unit, such as 500ms, 2s or 5m");
    AISP_RETURN_IF_ERROR(CheckRange(value->count()));
    *out = *value;
    return {};
  }
  Status operator()(std::vector<std::string>* /*out*/) const {
    std::vector<std::string> items;
    if (Trim(text).empty()) return SetList(s, items, origin);
    for (const std::string_view item : Split(text, ',')) {
      if (Trim(item).empty()) return Wrong("a list such as a,b without empty items");
      items.emplace_back(Trim(item));
    }
    return SetList(s, std::move(items), origin);
  }
};

struct Shower {
  const Setting& s;

  std::string operator()(const std::string* v) const { return Quoted(*v); }
  std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
  std::string operator()(const double* v) const { return fmt::format("{}", *v); }
  template <std::integral T>
  std::string operator()(const T* v) const {
    return ShowNumber(s, static_cast<int64_t>(*v));
  }
  std::string operator()(const Duration* v) const { return ShowDuration(v->count()); }
  std::string operator()(const std::vector<std::string>* v) const {
    std::vector<std::string> quoted;
    for (const std::string& item : *v) quoted.push_back(Quoted(item));
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  }
};

struct KindNamer {
  Setting::Unit unit;
  std::string_view operator()(const std::string*) const { return "TEXT"; }
  std::string_view operator()(const bool*) const { return ""; }
  std::string_view operator()(const double*) const { return "X"; }
  std::string_view operator()(const Duration*) const { return "TIME"; }
  std::string_view operator()(const std::vector<std::string>*) const { return "A,B,..."; }
  template <std::integral T>
  std::string_view operator()(const T*) const {
    return unit == Setting::Unit::kBytes ? "SIZE" : "N";
  }
};

// Lower case, no leading dashes, dashes as underscores: the form that Nearest compares.
std::string Plain(std::string_view word) {
  while (word.starts_with("-")) word.remove_prefix(1);
  std::string out = ToLowerAscii(word);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string_view LastWord(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

}  // namespace

Setting& Setting::Flag(std::string_view name) {
  flag = name;
  return *this;
}
Setting& Setting::Range(int64_t least, int64_t most) {
  ranged = true;
  min = least;
  max = most;
  return *this;
}
Setting& Setting::Range(Duration least, Duration most) {
  return Range(least.count(), most.count());
}
Setting& Setting::OneOf(std::vector<std::string_view> values) {
  choices = std::move(values);
  return *this;
}
Setting& Setting::Bytes() {
  unit = Unit::kBytes;
  return *this;
}
Setting& Setting::Json() {
  json = true;
  return *this;
}

Setting& Setting::Secret() {
  secret = true;
  return *this;
}

std::string Setting::Name() const { return flag.empty() ? key : fmt::format("{} ({})", key, flag); }

std::string_view Setting::Kind() const { return std::visit(KindNamer{unit}, field); }

std::string Setting::Allowed() const {
  if (!choices.empty()) return fmt::format("One of {}.", fmt::join(choices, ", "));
  if (!ranged) return "";
  return fmt::format("From {} to {}.", ShowNumber(*this, min), ShowNumber(*this, max));
}

std::string Setting::Show() const { return std::visit(Shower{*this}, field); }

void SettingTable::Section(std::string_view name, std::string_view what) {
  sections_.push_back({std::string(name), what});
}

Setting& SettingTable::Add(std::string_view name, Setting::Field field, std::string_view help) {
  const std::string& section = sections_.back().name;
  Setting s;
  s.key = section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
  s.field = field;
  s.help = help;
  settings_.push_back(std::move(s));
  return settings_.back();
}

const Setting* SettingTable::Find(std::string_view key) const {
  const auto it = std::find_if(settings_.begin(), settings_.end(),
                               [&](const Setting& s) { return s.key == key; });
  return it == settings_.end() ? nullptr : &*it;
}

bool SettingTable::IsSection(std::string_view name) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const Heading& h) { return !name.empty() && h.name == name; });
}

std::string_view SettingTable::SectionHelp(std::string_view name) const {
  const auto it = std::find_if(sections_.begin(), sections_.end(),
                               [&](const Heading& h) { return h.name == name; });
  return it == sections_.end() ? std::string_view() : it->what;
}

const Setting* SettingTable::Nearest(std::string_view word) const {
  const std::string wanted = Plain(word);
  const Setting* best = nullptr;
  size_t best_distance = std::min<size_t>(3, (wanted.size() + 1) / 3) + 1;
  for (const Setting& s : settings_) {
    for (const std::string_view name :
         {std::string_view(s.key), LastWord(s.key), std::string_view(s.flag)}) {
      if (name.empty()) continue;
      const size_t distance =
          std::min(EditDistance(wanted, Plain(name)), EditDistance(LastWord(wanted), Plain(name)));
      if (distance >= best_distance) continue;
      best_distance = distance;
      best = &s;
    }
  }
  return best;
}

std::string_view SectionOf(const Setting& setting) {
  const size_t dot = setting.key.find('.');
  return dot == std::string::npos ? std::string_view()
                                  : std::string_view(setting.key).substr(0, dot);
}

Status SetFromText(const Setting& setting, std::string_view text, std::string_view origin) {
  return std::visit(Setter{setting, text, origin}, setting.field);
}

Status SetList(const Setting& setting, std::vector<std::string> items, std::string_view origin) {
  auto* const* list = std::get_if<std::vector<std::string>*>(&setting.field);
  if (list == nullptr)
    return InvalidArgument(fmt::format("{}: {} is one value, not a list", origin, setting.Name()));
  for (const std::string& item : items)
    AISP_RETURN_IF_ERROR((Setter{setting, item, origin}.CheckChoice(item)));
  **list = std::move(items);
  return {};
}

}  // namespace aisp
