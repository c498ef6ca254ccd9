// Writes a Config as YAML, and the table of settings as Markdown.
#include <fmt/format.h>

#include <algorithm>

#include "config/config.h"

namespace aisp {
namespace {

std::string_view LeafOf(const Setting& s) {
  const std::string_view section = SectionOf(s);
  return std::string_view(s.key).substr(section.empty() ? 0 : section.size() + 1);
}

// Number of values of a secret setting.
size_t Count(const Setting& s) {
  if (const auto* const* list = std::get_if<std::vector<std::string>*>(&s.field))
    return (*list)->size();
  const auto* const* text = std::get_if<std::string*>(&s.field);
  return text != nullptr && !(*text)->empty() ? 1 : 0;
}

// What is printed instead of a secret setting.
std::string Empty(const Setting& s) {
  return std::holds_alternative<std::vector<std::string>*>(s.field) ? "[]" : "\"\"";
}

void Replace(std::string* text, std::string_view what, std::string_view with) {
  for (size_t at = text->find(what); at != std::string::npos; at = text->find(what, at))
    text->replace(at, what.size(), with), at += with.size();
}

// A cell of a Markdown table.
std::string Cell(std::string text) {
  Replace(&text, "|", "\\|");
  return text;
}

std::string Row(const Setting& s) {
  return Cell(fmt::format("`{}`", s.key)) + " | " +
         (s.flag.empty() ? "" : fmt::format("`{}`", s.flag)) + " | " +
         Cell(fmt::format("`{}`", s.Show())) + " | " +
         Cell(fmt::format("{}{}{}", s.help, s.Allowed().empty() ? "" : " ", s.Allowed()));
}

constexpr std::string_view kMarkdownHead = R"(# Settings

Made from the program by `make docs`; do not edit. Every setting has one name. In a file (`--config FILE`, YAML) it is a key:

```yaml
engine:
  block_tokens: 32
```

On the command line the same name is a flag, `--engine.block_tokens 32`; some have a short flag beside it. A switch is turned
on by `--NAME` and off by `--no-NAME` or `--NAME=false`. Flags win over the file, the file over the defaults. Sizes are
written 1048576, 64KiB or 1.5GiB, times 500ms, 2s, 5m or 1h, lists `a,b` (in YAML also `[a, b]`). `aisp --print-config` with
any of these flags prints what then holds, as YAML.
)";

}  // namespace

std::string PrintConfig(const Config& config, Secrets secrets) {
  Config copy = config;
  std::string out;
  std::string_view section;
  const SettingTable settings = BindSettings(&copy);
  for (const Setting& s : settings) {
    if (SectionOf(s) != section) {
      section = SectionOf(s);
      out += fmt::format("\n{}:  # {}\n", section, settings.SectionHelp(section));
    }
    const size_t hidden = secrets == Secrets::kHidden && s.secret ? Count(s) : 0;
    out += fmt::format("{}{}: {}  # {}{}", section.empty() ? "" : "  ", LeafOf(s),
                       hidden > 0 ? Empty(s) : s.Show(),
                       s.flag.empty() ? "" : fmt::format("{}: ", s.flag), s.help);
    if (!s.Allowed().empty()) out += " " + s.Allowed();
    if (hidden > 0) out += fmt::format(" ({} not shown.)", hidden);
    out += "\n";
  }
  return out;
}

std::string SettingsAsMarkdown() {
  Config defaults;
  const SettingTable settings = BindSettings(&defaults);
  std::string out(kMarkdownHead);
  std::string_view section = "none yet";
  for (const Setting& s : settings) {
    if (SectionOf(s) != section) {
      section = SectionOf(s);
      out += section.empty() ? "\n## The process\n" : fmt::format("\n## {}\n", section);
      out += fmt::format("\n{}\n\n| setting | short flag | default | |\n|---|---|---|---|\n",
                         settings.SectionHelp(section));
    }
    out += fmt::format("| {} |\n", Row(s));
  }
  return out;
}

}  // namespace aisp
