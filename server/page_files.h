// The text of server/page/*, embedded by CMake (cmake/Embed.cmake).
#pragma once

#include <string_view>

namespace aisp {

extern const std::string_view kPageHtml;
extern const std::string_view kPageCss;
extern const std::string_view kPageJs;

}  // namespace aisp
