// A guide that allows everything and never ends. For tests.
#pragma once

#include <vector>

#include "engine/draw_guide.h"

namespace aisp {

class AnyTokenGuide final : public DrawGuide {
 public:
  std::span<const uint32_t> Allowed() override { return words_; }
  bool Take(TokenId) override { return true; }
  void Rewind(size_t) override {}
  bool AtEnd() override { return false; }

 private:
  const std::vector<uint32_t> words_ = std::vector<uint32_t>(32, ~0u);  // of 1,000 tokens
};

}  // namespace aisp
