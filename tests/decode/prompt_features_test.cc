// The drafter on the decode worker reads features of the end of a prompt that a prefill worker has
// computed: they come with the KV, under the same epoch, or are known to be absent.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "engine/eagle.h"
#include "speculation/speculator.h"
#include "tests/support/provenance_head.h"
#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

constexpr int32_t kWindow = 40;
constexpr size_t kRowBytes = kProvenanceFeatures * sizeof(float);

// A decode worker with a draft head that is always right, unless it is given features of another
// sequence.
struct Rig {
  explicit Rig(RigOptions options = {}) : rig(Options(std::move(options))) {
    rig.kv_links.on_up = [this](v1::DecodeToPrefill& m) {
      asked += m.has_prefill() && m.prefill().has_features() ? 1 : 0;
      return true;
    };
    rig.kv_links.on_down = [this](v1::PrefillToDecode& m) {
      if (m.has_done()) {
        if (m.done().has_features()) ++sent, rows += m.done().features().rows().size() / kRowBytes;
        if (change) change(m.mutable_done());
      }
      return true;
    };
    rig.Attach();
  }

  RigOptions Options(RigOptions o) {
    o.model.gives_features = true;
    o.model.max_draws = 40;
    o.limits.max_draft_rows = 32;
    o.limits.max_sequences = 4;
    if (o.decode.feature_layers.empty()) o.decode.feature_layers = {1, 2};
    if (o.prefill.feature_layers.empty()) o.prefill.feature_layers = {1, 2};
    auto made = std::make_unique<ProvenanceHead>(o.model, ProvenanceHeadOptions{});
    head = made.get();
    o.speculator = std::make_shared<Speculator>(
        SpeculatorOptions{.num_tokens = 4, .adaptive = false},
        std::make_unique<EagleProposer>(
            EagleOptions{.min_probability = 0, .feature_window = kWindow}, std::move(made)),
        &clock);
    return o;
  }

  // Sends the prompt and expects the answer of a single engine; returns the draft counts.
  v1::DraftCounts Answer(uint64_t id, const std::vector<TokenId>& prompt, int32_t tokens,
                         bool remote = true) {
    v1::GenerateRequest request = rig.MakeRequest(id, prompt, tokens);
    if (!remote) request.clear_prefill();
    rig.router->Generate("d", request);
    rig.ExpectAnswer(id, prompt, tokens);
    v1::DraftCounts last;
    for (const v1::TokenEvent& event : rig.router->answers.at(id).events) {
      if (event.has_drafts()) last = event.drafts();
    }
    EXPECT_EQ(last.accepted(), last.drafted()) << "an exact head was given something else";
    return last;
  }

  ManualClock clock;
  ProvenanceHead* head = nullptr;
  RoleRig rig;
  int asked = 0, sent = 0;
  size_t rows = 0;
  std::function<void(v1::PrefillDone*)> change;
};

// The first step after the prompt already verifies a draft.
TEST(PromptFeatures, TheFirstDraftReadsTheLastWindowOfThePrompt) {
  Rig r;
  const v1::DraftCounts drafts = r.Answer(1, MakePrompt(100, 1), 21);
  EXPECT_EQ(r.sent, 1);
  EXPECT_EQ(r.rows, static_cast<size_t>(kWindow));
  EXPECT_EQ(r.head->shortest_context, kWindow);
  // The first token came with the KV; the steps produce 5, 5, 5 and 5.
  EXPECT_EQ(drafts.accepted(), 16u);
  EXPECT_EQ(r.rig.decode->executor->steps(), 4u);
}

// For which positions it drafts, and how many features it has there; in one process the last step
// of some prompts has one row.
TEST(PromptFeatures, DraftsAreThoseOfOneProcess) {
  RigOptions options;
  options.limits.max_batch_tokens = options.limits.max_prefill_chunk = 32;
  for (const int32_t length : {17, 33, 39, 40, 41, 64, 65, 100, 130}) {
    SCOPED_TRACE(length);
    const std::vector<TokenId> prompt = MakePrompt(length, 1);
    Rig split(options), without_token(options), one(options);
    without_token.change = [](v1::PrefillDone* done) { done->clear_drawn(); };
    split.Answer(1, prompt, 40);
    without_token.Answer(1, prompt, 40);
    one.Answer(1, prompt, 40, /*remote=*/false);
    EXPECT_EQ(split.sent + without_token.sent, 2);
    EXPECT_EQ(one.asked, 0);
    EXPECT_FALSE(one.head->draws.empty());
    EXPECT_EQ(split.head->draws, one.head->draws);
    EXPECT_EQ(without_token.head->draws, one.head->draws);
    EXPECT_EQ(split.rig.decode->executor->steps(), 39u / 5 + 1);
  }
}

// On both sides features stay on a device, and are fetched only for sending.
TEST(PromptFeatures, OverTwoDevicesDraftsAreThoseOfOneProcess) {
  RigOptions options;
  options.limits.max_batch_tokens = options.limits.max_prefill_chunk = 32;
  options.model.most_kept_features = 32;
  for (const int32_t length : {17, 33, 40, 64, 65, 130}) {
    SCOPED_TRACE(length);
    const std::vector<TokenId> prompt = MakePrompt(length, 1);
    Rig split(options), one(options);
    split.Answer(1, prompt, 40);
    one.Answer(1, prompt, 40, /*remote=*/false);
    EXPECT_EQ(split.sent, 1);
    EXPECT_EQ(split.rows, static_cast<size_t>(std::min(length, kWindow)));
    EXPECT_EQ(split.head->draws, one.head->draws);
    // After the prompt's last token nothing was fetched.
    EXPECT_EQ(split.rig.decode->executor->features_kept(), 0u);
  }
}

TEST(PromptFeatures, OfAPromptInChunksOnlyTheWindowIsKept) {
  RigOptions options;
  options.limits.max_batch_tokens = options.limits.max_prefill_chunk = 17;
  Rig r(options);
  for (int32_t length = 20; length < 80; length += 3) {
    const size_t before = r.rows;
    r.head->shortest_context = -1;
    r.Answer(static_cast<uint64_t>(length), MakePrompt(length, static_cast<uint64_t>(length)), 12);
    const int32_t window = std::min(length, kWindow);
    EXPECT_EQ(r.rows - before, static_cast<size_t>(window)) << length;
    EXPECT_EQ(r.head->shortest_context, window) << length;
  }
}

// Prompts with a common beginning: their feature windows reach into the prefix hit.
TEST(PromptFeatures, OfWhatThePrefillWorkerHadCachedTheFeaturesWereKept) {
  Rig r;
  r.Answer(1, MakePrompt(100, 1), 6);
  std::vector<TokenId> longer = MakePrompt(100, 1);
  for (TokenId t = 1; t <= 5; ++t) longer.push_back(t);
  r.rig.decode->engine->blocks().ClearCache();
  r.rows = 0;
  r.head->shortest_context = -1;
  r.Answer(2, longer, 12);
  EXPECT_EQ(r.rows, static_cast<size_t>(kWindow));
  EXPECT_EQ(r.head->shortest_context, kWindow);
}

// The decode worker has both from the first time; no prefill worker is asked again.
TEST(PromptFeatures, OfWhatTheDecodeWorkerHadCachedTheFeaturesWereKept) {
  Rig r;
  r.Answer(1, MakePrompt(100, 1), 6);
  r.head->shortest_context = -1;
  r.Answer(2, MakePrompt(100, 1), 12, /*remote=*/false);
  EXPECT_EQ(r.sent, 1);
  EXPECT_EQ(r.head->shortest_context, kWindow);
}

TEST(PromptFeatures, AWorkerOfBeforeSendsNoneAndTheHeadBeginsBehindThePrompt) {
  Rig r;
  r.change = [](v1::PrefillDone* done) { done->clear_features(); };
  const v1::DraftCounts drafts = r.Answer(1, MakePrompt(100, 1), 21);
  EXPECT_EQ(r.head->shortest_context, 1);
  EXPECT_GT(drafts.accepted(), 0u);
}

TEST(PromptFeatures, OtherLayersAreNotSent) {
  RigOptions options;
  options.prefill.feature_layers = {1, 3};
  Rig r(options);
  r.Answer(1, MakePrompt(100, 1), 21);
  EXPECT_EQ(r.asked, 1);
  EXPECT_EQ(r.sent, 0);
  EXPECT_EQ(r.head->shortest_context, 1);
}

TEST(PromptFeatures, APrefillWorkerBoundsWhatItSends) {
  RigOptions options;
  options.prefill.max_feature_bytes = 7 * kRowBytes + 3;
  Rig r(options);
  r.Answer(1, MakePrompt(100, 1), 21);
  EXPECT_EQ(r.rows, 7u);
  EXPECT_EQ(r.head->shortest_context, 7);
}

TEST(PromptFeatures, WithoutAFirstTokenTheLastRowIsComputedHere) {
  Rig r;
  r.change = [](v1::PrefillDone* done) { done->clear_drawn(); };
  r.Answer(1, MakePrompt(100, 1), 21);
  EXPECT_EQ(r.rows, static_cast<size_t>(kWindow));
  EXPECT_EQ(r.head->shortest_context, kWindow);
  EXPECT_EQ(r.rig.decode->executor->rows_computed(), 1u + 4 * 5);
}

TEST(PromptFeatures, ALinkWithoutRoomCarriesTheKvsEndAlone) {
  Rig r;
  r.rig.kv_links.takes_no_offers = true;
  r.Answer(1, MakePrompt(100, 1), 21);
  EXPECT_EQ(r.asked, 1);
  EXPECT_EQ(r.sent, 0);
  EXPECT_EQ(r.head->shortest_context, 1);
}

TEST(PromptFeatures, WhatWasNotAskedForIsNotUsed) {
  using Features = v1::PromptFeatures;
  const std::vector<std::function<void(Features*)>> wrong = {
      [](Features* f) { f->mutable_rows()->pop_back(); },
      [](Features* f) { f->set_begin(f->begin() - 1); },
      [](Features* f) { f->set_begin(f->begin() + 1); },
      [](Features* f) { f->set_begin(std::numeric_limits<uint32_t>::max()); },
      [](Features* f) { f->clear_rows(); },
      [](Features* f) {
        f->set_rows(std::string(100 * kRowBytes, '\0'));
        f->set_begin(0);
      },
      [](Features* f) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        std::memcpy(f->mutable_rows()->data(), &nan, sizeof nan);
      },
  };
  Rig r;
  uint64_t id = 0;
  for (const auto& spoil : wrong) {
    r.change = [&](v1::PrefillDone* done) { spoil(done->mutable_features()); };
    r.head->shortest_context = -1;
    ++id;
    r.Answer(id, MakePrompt(100, id), 12);
    EXPECT_EQ(r.head->shortest_context, 1) << id;
  }
}

TEST(PromptFeatures, WhoWantsNoDraftsAsksForNone) {
  Rig r;
  v1::GenerateRequest request = r.rig.MakeRequest(1, MakePrompt(100, 1), 12);
  request.mutable_sampling()->set_max_draft_tokens(0);
  r.rig.router->Generate("d", request);
  r.rig.ExpectAnswer(1, MakePrompt(100, 1), 12);
  EXPECT_EQ(r.asked, 0);
  EXPECT_EQ(r.sent, 0);
}

// In a takeover the prefill worker also computes the tokens that were drawn elsewhere.
TEST(PromptFeatures, OfATakeoverTheWindowEndsWithWhatWasEmitted) {
  Rig r;
  const std::vector<TokenId> prompt = MakePrompt(60, 1);
  v1::GenerateRequest request = r.rig.MakeRequest(1, prompt, 30);
  const std::vector<TokenId> emitted =
      ExpectedTokens(r.rig.options.model, prompt, 10, request.sampling().seed());
  for (const TokenId token : emitted) request.add_tokens(token);
  r.rig.router->Generate("d", request);
  ASSERT_TRUE(r.rig.RunUntil([&] { return r.rig.Finished(1); }));
  EXPECT_EQ(r.sent, 1);
  EXPECT_EQ(r.head->shortest_context, kWindow);
  EXPECT_EQ(r.rig.prefills[0]->executor->rows_computed(), 70u);
  const auto& events = r.rig.router->answers.at(1).events;
  EXPECT_EQ(events.back().drafts().accepted(), events.back().drafts().drafted());
  EXPECT_EQ(r.rig.router->answers.at(1).tokens.size(), 20u);
}

}  // namespace
}  // namespace aisp
