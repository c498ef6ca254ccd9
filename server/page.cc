#include "server/page.h"

#include <array>
#include <string_view>

#include "frontend/frontend.h"
#include "server/page_files.h"

namespace aisp {
namespace {

struct File {
  std::string_view path;
  std::string_view type;
  std::string_view text;
};

// Only resources of this server may be loaded, run or contacted.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const File* Find(std::string_view path) {
  static const std::array<File, 3> kFiles = {{
      {"/", "text/html; charset=utf-8", kPageHtml},
      {"/page/page.css", "text/css; charset=utf-8", kPageCss},
      {"/page/page.js", "text/javascript; charset=utf-8", kPageJs},
  }};
  for (const File& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace

bool ServePage(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  const File* file = Find(request.path);
  if (file == nullptr) return false;
  if (request.method != "GET" && request.method != "HEAD") {
    AnswerUnknown(exchange, {"GET", "HEAD"});
    return true;
  }
  exchange.Respond(200,
                   {{"content-type", std::string(file->type)},
                    {"cache-control", "no-cache"},
                    {"content-security-policy", std::string(kPolicy)},
                    {"referrer-policy", "no-referrer"},
                    {"x-content-type-options", "nosniff"}},
                   std::string(file->text));
  return true;
}

}  // namespace aisp
