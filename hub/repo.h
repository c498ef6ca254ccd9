// HubRepo: a model's name on the hub, "org/name" or "org/name@revision". Pure values: any thread.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp {

struct HubRepo {
  std::string org;
  std::string name;
  std::string revision = "main";  // a branch, a tag or a commit

  std::string Id() const { return org + "/" + name; }
  std::string Shown() const { return revision == "main" ? Id() : Id() + "@" + revision; }
  std::string Folder() const { return "models--" + org + "--" + name; }
};

// Whether the text looks like a name: two parts with one slash, and no prefix that only a path has.
// It may still be invalid.
bool LooksLikeHubRepo(std::string_view text);

// INVALID_ARGUMENT says which part is wrong and what is allowed.
Result<HubRepo> ParseHubRepo(std::string_view text);

// 40 lower-case hexadecimal digits.
bool IsCommit(std::string_view text);
// `length` lower-case hexadecimal digits.
bool IsHex(std::string_view text, size_t length);

}  // namespace aisp
