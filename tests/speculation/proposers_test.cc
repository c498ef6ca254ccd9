#include <gtest/gtest.h>

#include "speculation/ngram_proposer.h"
#include "speculation/suffix_proposer.h"

namespace aisp {
namespace {

std::vector<TokenId> ProposeFor(Proposer& proposer, const std::vector<TokenId>& tokens,
                                int32_t limit = 8, uint64_t id = 1, std::string_view scope = "") {
  DraftContext context;
  context.sequence = SequenceId(id);
  context.tokens = tokens;
  context.prompt_tokens = 1;
  context.limit = limit;
  context.scope = scope;
  TokenDraft draft;
  EXPECT_TRUE(proposer.Propose({&context, 1}, {&draft, 1}).has_value());
  EXPECT_EQ(draft.tokens.size(), draft.confidence.size());
  EXPECT_LE(static_cast<int32_t>(draft.tokens.size()), limit);
  return draft.tokens;
}

void End(Proposer& proposer, const std::vector<TokenId>& tokens, int32_t prompt, uint64_t id,
         std::string_view scope = "") {
  DraftContext context;
  context.sequence = SequenceId(id);
  context.tokens = tokens;
  context.prompt_tokens = prompt;
  context.scope = scope;
  proposer.Ended(context);
}

using Tokens = std::vector<TokenId>;

TEST(NgramProposer, GoesOnWhereTheLastTokensStoodBefore) {
  NgramProposer proposer({.min = 2, .max = 3});
  EXPECT_EQ(ProposeFor(proposer, {1, 2, 3, 4, 5, 1, 2}, 3), (Tokens{3, 4, 5}));
  EXPECT_EQ(ProposeFor(proposer, {1, 2, 3, 4, 5, 1, 2, 3}, 2), (Tokens{4, 5}));
}

TEST(NgramProposer, TheLongestGramWinsThenTheNewestPlace) {
  NgramProposer proposer({.min = 1, .max = 3});
  EXPECT_EQ(ProposeFor(proposer, {7, 8, 9, 1, 9, 2, 8, 9, 3, 7, 8, 9}, 1), (Tokens{1}));
  EXPECT_EQ(ProposeFor(proposer, {9, 1, 9, 2, 5, 9}, 1, 2), (Tokens{2}));
}

TEST(NgramProposer, HasNothingToSayWithoutAPlace) {
  NgramProposer proposer({.min = 2, .max = 4});
  EXPECT_TRUE(ProposeFor(proposer, {1, 2, 3, 4, 3}).empty());
  EXPECT_TRUE(ProposeFor(proposer, {1}, 8, 2).empty());
  End(proposer, {1}, 1, 2);
  EXPECT_EQ(proposer.sequences(), 1u);
}

TEST(SuffixProposer, CopiesFromItsOwnPrompt) {
  SuffixProposer proposer({});
  EXPECT_EQ(ProposeFor(proposer, {1, 2, 3, 4, 5, 6, 7, 1, 2, 3}, 4), (Tokens{4, 5, 6, 7}));
}

TEST(SuffixProposer, WhatFollowedMoreOftenIsProposed) {
  SuffixProposer proposer({.max_factor = 1});
  // 1 2 is followed by 3 twice and by 9 once, last.
  EXPECT_EQ(ProposeFor(proposer, {1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 9, 6, 1, 2}, 1), (Tokens{3}));
}

TEST(SuffixProposer, OneTokenIsAMatchWhereNothingLongerIs) {
  SuffixProposer proposer({});
  // 2 is followed by 3 twice and by 7 once, last; 9 2 did not occur before.
  EXPECT_EQ(ProposeFor(proposer, {1, 2, 3, 5, 6, 2, 3, 8, 2, 7, 9, 2}, 1), (Tokens{3}));
  // 7 2 did occur: then the matches of 2 alone do not count.
  EXPECT_EQ(ProposeFor(proposer, {7, 2, 4, 1, 2, 3, 1, 2, 3, 7, 2}, 1, 2), (Tokens{4}));
}

TEST(SuffixProposer, FinishedOutputsServeTheirOwnScopeOnly) {
  SuffixProposer proposer({});
  End(proposer, {50, 51, 52, 53, 54, 55, 56, 57}, 2, 1, "a");
  EXPECT_EQ(ProposeFor(proposer, {9, 52, 53, 54}, 3, 2, "a"), (Tokens{55, 56, 57}));
  EXPECT_TRUE(ProposeFor(proposer, {9, 52, 53, 54}, 3, 3, "b").empty());
}

TEST(SuffixProposer, WhatItKeepsIsBounded) {
  SuffixProposer proposer({.shared_tokens = 200, .scopes = 3});
  for (uint64_t id = 1; id <= 400; ++id) {
    Tokens tokens;
    for (TokenId t = 0; t < 20; ++t) tokens.push_back(static_cast<TokenId>(id) * 20 + t);
    const std::string scope = std::to_string(id % 8);
    ProposeFor(proposer, tokens, 4, id, scope);
    End(proposer, tokens, 1, id, scope);
    ASSERT_LE(proposer.scopes(), 3u);
    ASSERT_LE(proposer.shared_tokens(), 3 * 200);
  }
  EXPECT_EQ(proposer.sequences(), 0u);
  // The newest is still known.
  EXPECT_FALSE(ProposeFor(proposer, {8000, 8001, 8002, 8003, 8004}, 4, 900, "0").empty());
}

}  // namespace
}  // namespace aisp
