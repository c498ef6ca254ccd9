#include "text/fill_in_middle.h"

#include <algorithm>

namespace aisp {
namespace {

constexpr FillInMiddle kFamilies[] = {
    {"Qwen2.5-Coder and CodeGemma",
     "<|fim_prefix|>",
     "<|fim_suffix|>",
     "<|fim_middle|>",
     false,
     {"<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|file_separator|>"}},
    {"StarCoder and Granite",
     "<fim_prefix>",
     "<fim_suffix>",
     "<fim_middle>",
     false,
     {"<|endoftext|>", "<fim_pad>", "<file_sep>", ""}},
    {"SantaCoder",
     "<fim-prefix>",
     "<fim-suffix>",
     "<fim-middle>",
     false,
     {"<|endoftext|>", "<fim-pad>", "", ""}},
    {"DeepSeek-Coder",
     "<｜fim▁begin｜>",
     "<｜fim▁hole｜>",
     "<｜fim▁end｜>",
     false,
     {"<｜end▁of▁sentence｜>", "", "", ""}},
    {"Code Llama", "▁<PRE>", "▁<SUF>", "▁<MID>", false, {"▁<EOT>", "", "", ""}},
    {"Codestral", "[SUFFIX]", "[PREFIX]", "", true, {"", "", "", ""}},
};

bool HasToken(const Tokenizer& tokenizer, std::string_view token) {
  return token.empty() || tokenizer.TokenToId(token).has_value();
}

}  // namespace

const FillInMiddle* FindFillInMiddle(const Tokenizer& tokenizer) {
  const auto* const found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const FillInMiddle& each) {
        return HasToken(tokenizer, each.begin) && HasToken(tokenizer, each.between) &&
               HasToken(tokenizer, each.end);
      });
  return found == std::end(kFamilies) ? nullptr : found;
}

std::string FillInMiddleNames() {
  std::string out;
  for (const FillInMiddle& each : kFamilies) {
    if (!out.empty()) out += ", ";
    out += each.name;
  }
  return out;
}

Result<std::vector<TokenId>> EncodeFillInMiddle(const Tokenizer& tokenizer,
                                                const FillInMiddle& format, std::string_view prompt,
                                                std::string_view suffix) {
  for (const std::string_view marker : {format.begin, format.between, format.end}) {
    if (marker.empty()) continue;
    if (prompt.find(marker) == prompt.npos && suffix.find(marker) == suffix.npos) continue;
    return InvalidArgument("prompt and suffix must not hold the control token " +
                           std::string(marker) + ", by which the middle is asked for");
  }
  AISP_ASSIGN_OR_RETURN(const std::vector<TokenId> around, tokenizer.Encode(""));
  std::vector<TokenId> out;
  // Only the tokens before a text (BOS) are added; one after it would end the prompt.
  if (tokenizer.BosId() && !around.empty() && around.front() == *tokenizer.BosId())
    out.push_back(around.front());
  const auto add = [&](std::string_view marker, std::string_view text) -> Status {
    if (!marker.empty()) out.push_back(*tokenizer.TokenToId(marker));
    if (text.empty()) return {};
    AISP_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                          tokenizer.Encode(text, /*add_special=*/false));
    out.insert(out.end(), ids.begin(), ids.end());
    return {};
  };
  AISP_RETURN_IF_ERROR(add(format.begin, format.suffix_first ? suffix : prompt));
  AISP_RETURN_IF_ERROR(add(format.between, format.suffix_first ? prompt : suffix));
  AISP_RETURN_IF_ERROR(add(format.end, ""));
  return out;
}

std::vector<TokenId> EndsOfMiddle(const Tokenizer& tokenizer, const FillInMiddle& format) {
  std::vector<TokenId> out;
  for (const std::string_view stop : format.stops) {
    if (stop.empty()) continue;
    if (const auto id = tokenizer.TokenToId(stop)) out.push_back(*id);
  }
  return out;
}

}  // namespace aisp
