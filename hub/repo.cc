#include "hub/repo.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr size_t kMaxPart = 96;       // the hub's own limit
constexpr size_t kMaxRevision = 250;  // must fit in a file name on every file system

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

Status CheckPart(std::string_view part, std::string_view what, std::string_view whole) {
  const auto edge = [](char c) { return c == '-' || c == '.'; };
  const bool good = !part.empty() && part.size() <= kMaxPart &&
                    std::all_of(part.begin(), part.end(), IsNameCharacter) && !edge(part.front()) &&
                    !edge(part.back()) && part.find("--") == std::string_view::npos &&
                    part.find("..") == std::string_view::npos;
  if (good) return {};
  return InvalidArgument(
      fmt::format("'{}': the {} '{}' is no name on the hub; 1 to {} letters, digits, '-', '_' and "
                  "'.', not twice in a row and not at an end",
                  Excerpt(whole), what, Excerpt(part), kMaxPart));
}

// A revision becomes a path below refs/, so it must be a safe one.
Status CheckRevision(std::string_view revision, std::string_view whole) {
  const auto allowed = [](char c) { return IsNameCharacter(c) || c == '/' || c == '+'; };
  bool good = !revision.empty() && revision.size() <= kMaxRevision &&
              std::all_of(revision.begin(), revision.end(), allowed);
  for (const std::string_view part : Split(revision, '/'))
    good =
        good && !part.empty() && part.front() != '.' && part.find("..") == std::string_view::npos;
  if (good) return {};
  return InvalidArgument(fmt::format(
      "'{}': '{}' is no revision; after the @ stands a branch, a tag or a commit, of 1 to {} "
      "letters, digits and '-_.+/'",
      Excerpt(whole), Excerpt(revision), kMaxRevision));
}

}  // namespace

bool LooksLikeHubRepo(std::string_view text) {
  const std::string_view id = text.substr(0, text.find('@'));
  if (id.empty() || id.front() == '/' || id.front() == '.' || id.front() == '~') return false;
  const size_t slash = id.find('/');
  return slash != std::string_view::npos && slash + 1 < id.size() &&
         id.find('/', slash + 1) == std::string_view::npos && !id.ends_with(".json");
}

Result<HubRepo> ParseHubRepo(std::string_view text) {
  const size_t at = text.find('@');
  const auto parts = Split(text.substr(0, at), '/');
  if (parts.size() != 2) {
    return InvalidArgument(fmt::format(
        "'{}' is no model of the hub; org/name or org/name@revision is expected", Excerpt(text)));
  }
  HubRepo repo{std::string(parts[0]), std::string(parts[1])};
  AISP_RETURN_IF_ERROR(CheckPart(repo.org, "organisation", text));
  AISP_RETURN_IF_ERROR(CheckPart(repo.name, "model", text));
  if (at != std::string_view::npos) {
    repo.revision = std::string(text.substr(at + 1));
    AISP_RETURN_IF_ERROR(CheckRevision(repo.revision, text));
  }
  return repo;
}

bool IsHex(std::string_view text, size_t length) {
  return text.size() == length && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsCommit(std::string_view text) { return IsHex(text, 40); }

}  // namespace aisp
