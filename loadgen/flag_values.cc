#include "loadgen/flag_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace aisp::loadgen {

Result<double> ParseNumber(const std::string& text, double min, double max,
                           std::string_view accepted) {
  const auto number = ParseDouble(text);
  if (!number || *number < min || *number > max) {
    return InvalidArgument(fmt::format("'{}' is not {}", Excerpt(text), accepted));
  }
  return *number;
}

Result<int64_t> ParseWhole(const std::string& text, int64_t min, int64_t max) {
  const auto number = ParseIntInRange(text, min, max);
  if (!number) {
    return InvalidArgument(
        fmt::format("'{}' is no whole number from {} to {}", Excerpt(text), min, max));
  }
  return *number;
}

FlagValues FlagParts(const FlagValues& values) {
  FlagValues out;
  for (const std::string& value : values) {
    for (const auto part : Split(value, ',')) {
      if (!Trim(part).empty()) out.emplace_back(Trim(part));
    }
  }
  return out;
}

Result<std::pair<std::string, std::string>> FlagPair(const std::string& text, char separator) {
  const size_t at = text.find(separator);
  if (at == 0 || at == std::string::npos) {
    return InvalidArgument(
        fmt::format("'{}' is not of the form NAME{}VALUE", Excerpt(text), separator));
  }
  return std::pair(std::string(Trim(text.substr(0, at))), std::string(Trim(text.substr(at + 1))));
}

FlagSetter SetText(std::string* field) {
  return [field](const FlagValues& v) -> Status {
    *field = v[0];
    return {};
  };
}

FlagSetter SetChoice(std::string* field, FlagValues choices) {
  return [field, choices = std::move(choices)](const FlagValues& v) -> Status {
    if (std::find(choices.begin(), choices.end(), v[0]) == choices.end()) {
      return InvalidArgument(
          fmt::format("'{}' is none of {}", Excerpt(v[0]), fmt::join(choices, ", ")));
    }
    *field = v[0];
    return {};
  };
}

FlagSetter SetSwitch(bool* field) {
  return [field](const FlagValues&) -> Status {
    *field = true;
    return {};
  };
}

FlagSetter SetRate(std::optional<double>* rate) {
  return [rate](const FlagValues& v) -> Status {
    if (v[0] == "inf") {
      *rate = std::numeric_limits<double>::infinity();
      return {};
    }
    AISP_ASSIGN_OR_RETURN(
        const double number,
        ParseNumber(v[0], 1e-9, 1e9, "a positive number of requests per second, or inf"));
    *rate = number;
    return {};
  };
}

FlagSetter SetHeader(std::vector<std::pair<std::string, std::string>>* headers) {
  return [headers](const FlagValues& v) -> Status {
    AISP_ASSIGN_OR_RETURN(auto pair, FlagPair(v[0], v[0].find(':') < v[0].find('=') ? ':' : '='));
    for (const char c : pair.first + pair.second) {
      if (static_cast<unsigned char>(c) < 0x20 && c != '\t') {
        return InvalidArgument(fmt::format("'{}' has a control character", Excerpt(v[0])));
      }
    }
    headers->push_back(std::move(pair));
    return {};
  };
}

FlagSetter SetMetrics(std::vector<std::string>* metrics) {
  return [metrics](const FlagValues& v) -> Status {
    static const FlagValues known = {"ttft", "tpot", "itl", "e2el"};
    metrics->clear();
    for (const std::string& name : FlagParts(v)) {
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        return InvalidArgument(
            fmt::format("'{}' is none of {}", Excerpt(name), fmt::join(known, ", ")));
      }
      metrics->push_back(name);
    }
    return {};
  };
}

FlagSetter SetNumbers(std::vector<double>* numbers, double min, double max, std::string_view each) {
  return [=](const FlagValues& v) -> Status {
    numbers->clear();
    for (const std::string& text : FlagParts(v)) {
      AISP_ASSIGN_OR_RETURN(const double number, ParseNumber(text, min, max, each));
      numbers->push_back(number);
    }
    return {};
  };
}

FlagSetter SetJsonObject(std::string* field) {
  return [field](const FlagValues& v) -> Status {
    const auto json = nlohmann::json::parse(v[0], nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      return InvalidArgument(fmt::format("'{}' is no JSON object", Excerpt(v[0])));
    }
    *field = json.dump();
    return {};
  };
}

}  // namespace aisp::loadgen
