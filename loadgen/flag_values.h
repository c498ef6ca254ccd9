// Setters of Options' fields for flag values, with errors that name the value and what is accepted.
// Pure; the fields must outlive the setters.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/strings.h"
#include "loadgen/flag_table.h"

namespace aisp::loadgen {

using FlagSetter = std::function<Status(const FlagValues&)>;

// INVALID_ARGUMENT "'x' is no whole number from min to max".
Result<int64_t> ParseWhole(const std::string& text, int64_t min, int64_t max);
// Splits "a,b" or "a b", with any mix of both.
FlagValues FlagParts(const FlagValues& values);
// "name=value" or "name: value".
Result<std::pair<std::string, std::string>> FlagPair(const std::string& text, char separator);

FlagSetter SetText(std::string* field);
FlagSetter SetChoice(std::string* field, FlagValues choices);
FlagSetter SetSwitch(bool* field);
FlagSetter SetRate(std::optional<double>* rate);
FlagSetter SetHeader(std::vector<std::pair<std::string, std::string>>* headers);
FlagSetter SetMetrics(std::vector<std::string>* metrics);
FlagSetter SetNumbers(std::vector<double>* numbers, double min, double max, std::string_view each);
FlagSetter SetJsonObject(std::string* field);

template <typename Field>
FlagSetter SetInteger(Field* field, int64_t min, int64_t max = int64_t{1} << 40) {
  return [field, min, max](const FlagValues& v) -> Status {
    AISP_ASSIGN_OR_RETURN(const int64_t number, ParseWhole(v[0], min, max));
    *field = static_cast<uint64_t>(number);
    return {};
  };
}
template <typename Field>
FlagSetter SetReal(Field* field, double min, double max, std::string_view accepted) {
  return [=](const FlagValues& v) -> Status {
    AISP_ASSIGN_OR_RETURN(*field, ParseNumber(v[0], min, max, accepted));
    return {};
  };
}

}  // namespace aisp::loadgen
