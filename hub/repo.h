// HubRepo: the name of a model on the hub, "org/name" or "org/name@revision". Pure values: any
// thread.
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

// Two parts with one slash between them, and nothing that only a path has at its beginning: whether
// the text may be meant as a name. It need not be a valid one.
bool LooksLikeHubRepo(std::string_view text);

// INVALID_ARGUMENT says which part is wrong, and what is allowed in it.
Result<HubRepo> ParseHubRepo(std::string_view text);

// 40 hexadecimal digits in lower case.
bool IsCommit(std::string_view text);
// `length` hexadecimal digits in lower case.
bool IsHex(std::string_view text, size_t length);

}  // namespace aisp
