// A reader of SSE as strict as the strictest client in use: it splits at empty lines, skips lines
// that begin with ':', and expects every other event to be `data: ` and one line. Everything else
// that a browser accepts (id:, event:, several data lines) is an error here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace aisp {

// The text after `data: ` in each event of a whole body.
inline Result<std::vector<std::string>> ReadStrictSse(std::string_view body) {
  constexpr std::string_view kEnd = "\n\n";
  constexpr std::string_view kData = "data: ";
  std::vector<std::string> events;
  while (!body.empty()) {
    const size_t end = body.find(kEnd);
    if (end == std::string_view::npos) {
      return InvalidArgument("the stream ends inside an event: '" + std::string(body) + "'");
    }
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + kEnd.size());
    if (event.starts_with(':')) continue;
    if (!event.starts_with(kData)) {
      return InvalidArgument("an event does not begin with 'data: ': '" + std::string(event) + "'");
    }
    if (event.find_first_of("\r\n") != std::string_view::npos) {
      return InvalidArgument("an event has more than one line: '" + std::string(event) + "'");
    }
    events.emplace_back(event.substr(kData.size()));
  }
  return events;
}

}  // namespace aisp
