// The first token that comes with the KV: exactly the token that this worker would have drawn,
// whatever the request asks for. None comes where the prefill worker cannot know what the draw
// depends on.
#include "decode/first_token.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "common/random.h"
#include "tests/decode/any_token_guide.h"
#include "tests/worker/role_rig.h"
#include "worker/sampling_codec.h"

namespace aisp {
namespace {

using Prefill = v1::DecodeToPrefill;
using Done = v1::PrefillDone;

// The answer of a single engine to the request.
ExpectedEnd Oracle(const RoleRig& rig, const v1::GenerateRequest& wire) {
  SequenceRequest request;
  request.tokens = {wire.tokens().begin(), wire.tokens().end()};
  request.prompt_tokens = static_cast<int32_t>(wire.prompt_tokens());
  request.sampling = SamplingFromWire(wire.sampling(), wire.choice());
  request.max_new_tokens = static_cast<int32_t>(wire.max_new_tokens());
  request.min_new_tokens = static_cast<int32_t>(wire.min_new_tokens());
  request.stop_token_ids = {wire.stop_token_ids().begin(), wire.stop_token_ids().end()};
  return ExpectedOutput(rig.options.model, request);
}

void ExpectAsAlone(RoleRig& rig, const v1::GenerateRequest& wire) {
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(wire.request_id()); }));
  const RouterStandIn::Answer& answer = rig.router->answers.at(wire.request_id());
  const ExpectedEnd expected = Oracle(rig, wire);
  EXPECT_EQ(answer.tokens, expected.tokens) << wire.ShortDebugString();
  EXPECT_EQ(answer.finish == v1::FINISH_STOP, expected.finish == FinishReason::kStop);
  EXPECT_EQ(answer.finishes, 1);
  EXPECT_EQ(answer.timings.size(), 1u);
  std::vector<float> logprobs;
  for (const v1::TokenEvent& event : answer.events)
    for (const auto& each : event.logprobs()) logprobs.push_back(each.logprob());
  EXPECT_EQ(logprobs, expected.logprobs);
}

// Counts the first tokens that were asked for and that came.
struct Watched {
  explicit Watched(const RigOptions& options = {}) : rig(options) {
    rig.kv_links.on_up = [this](Prefill& m) {
      asked += m.has_prefill() && m.prefill().has_draw() ? 1 : 0;
      return !on_up || on_up(m);
    };
    rig.kv_links.on_down = [this](v1::PrefillToDecode& m) {
      if (m.has_done()) drawn += m.done().has_drawn() ? 1 : 0;
      return !on_down || on_down(m);
    };
  }
  RoleRig rig;
  int asked = 0, drawn = 0;
  std::function<bool(Prefill&)> on_up;
  std::function<bool(v1::PrefillToDecode&)> on_down;
};

v1::GenerateRequest RandomRequest(const RoleRig& rig, uint64_t id, SplitMix64& random) {
  const auto one_in = [&](uint64_t n) { return random.Below(n) == 0; };
  std::vector<TokenId> prompt = MakePrompt(200, 1 + random.Below(60));
  prompt.resize(2 + random.Below(150));
  if (one_in(2)) prompt.back() = static_cast<TokenId>(random.Below(1000));
  v1::GenerateRequest request = rig.MakeRequest(id, prompt, 1 + random.Below(40));
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_seed(random.Next());
  if (one_in(3)) sampling.set_temperature(0);
  if (one_in(3)) sampling.set_num_logprobs(static_cast<int32_t>(random.Below(3)));
  if (one_in(3)) sampling.set_frequency_penalty(0.5f);
  if (one_in(4)) sampling.set_repetition_penalty(1.2f);
  if (one_in(3)) request.set_choice(static_cast<uint32_t>(random.Below(8)));
  if (one_in(3)) {
    // Half of all tokens, so that the first token is often among them.
    for (int32_t t = 0; t < 1000; t += 2) request.add_stop_token_ids(t);
    if (one_in(2)) request.set_min_new_tokens(1 + static_cast<uint32_t>(random.Below(4)));
  }
  if (!one_in(3)) return request;
  // A takeover: some of the answer was emitted by another worker.
  const ExpectedEnd whole = Oracle(rig, request);
  for (size_t i = 0; i + 1 < whole.tokens.size() && i < 3; ++i) request.add_tokens(whole.tokens[i]);
  return request;
}

TEST(FirstToken, IsTheOneThatThisWorkerWouldHaveDrawnWhateverIsAskedFor) {
  for (const int depth : {1, 2}) {
    RigOptions options;
    options.model.max_depth = depth;
    options.decode_blocks = 20;  // streams are preempted, grants refused
    options.limits.max_prefill_chunk = 48;
    options.limits.max_batch_tokens = 64;
    options.decode.max_granted_blocks_per_peer = 20;
    Watched w(options);
    w.rig.Attach();
    SplitMix64 random(static_cast<uint64_t>(depth));
    uint64_t id = 0;
    for (int wave = 0; wave < 60; ++wave) {
      std::vector<v1::GenerateRequest> requests;
      for (uint64_t n = 1 + random.Below(6); n > 0; --n)
        requests.push_back(RandomRequest(w.rig, ++id, random));
      for (const auto& request : requests) w.rig.router->Generate("d", request);
      for (const auto& request : requests) ExpectAsAlone(w.rig, request);
    }
    w.rig.RunFor(std::chrono::milliseconds(20));
    w.rig.ExpectAllBlocksBack();
    EXPECT_GT(w.drawn, 60);
    EXPECT_GE(w.asked, w.drawn);
    EXPECT_GT(w.rig.decode->engine->Preemptions(), 0u);
  }
}

TEST(FirstToken, OneThatEndsItsRequestNeedsNoStepHere) {
  Watched w;
  w.rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 1));
  w.rig.ExpectAnswer(1, prompt, 1);
  v1::GenerateRequest stops = w.rig.MakeRequest(2, MakePrompt(100, 2), 9);
  stops.add_stop_token_ids(Oracle(w.rig, stops).tokens.at(0));
  w.rig.router->Generate("d", stops);
  ExpectAsAlone(w.rig, stops);
  EXPECT_EQ(w.rig.router->answers[2].finish, v1::FINISH_STOP);
  EXPECT_EQ(w.rig.decode->executor->steps(), 0u);
  w.rig.RunFor(std::chrono::milliseconds(5));
  w.rig.ExpectAllBlocksBack();
}

TEST(FirstToken, ItsTimeHasNoFirstDecodeAndAddsUp) {
  Watched w;
  w.rig.Attach();
  const Instant sent = w.rig.clock.Now();
  const auto prompt = MakePrompt(100, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 3));
  ASSERT_TRUE(w.rig.RunUntil([&] { return !w.rig.router->answers[1].tokens.empty(); }));
  const v1::Timing timing = w.rig.router->answers[1].timings.at(0);
  EXPECT_EQ(timing.first_decode_ns(), 0);
  const int64_t sum = timing.queue_ns() + timing.prefill_ns() + timing.transfer_ns();
  EXPECT_LE(sum, (w.rig.clock.Now() - sent).count());
  EXPECT_GE(sum, (w.rig.clock.Now() - sent - 3 * w.rig.tick).count());
  for (const v1::TraceSpan& span : timing.spans()) EXPECT_NE(span.name(), "first decode");
}

TEST(FirstToken, IsPublishedWithTheBlockOfTheLastTokenForOthers) {
  Watched w;
  w.rig.Attach();
  const auto prompt = MakePrompt(64, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 1));
  w.rig.ExpectAnswer(1, prompt, 1);
  std::vector<TokenId> longer = prompt;
  longer.push_back(5);
  v1::GenerateRequest local = w.rig.MakeRequest(2, longer, 4);
  local.clear_prefill();
  w.rig.router->Generate("d", local);
  w.rig.ExpectAnswer(2, longer, 4);
  EXPECT_EQ(w.rig.router->answers[2].timings.at(0).cached_tokens(), 64u);
}

TEST(FirstToken, APromptThatFillsThePoolEndsBehindItsFirstToken) {
  RigOptions options;
  options.decode_blocks = 4;
  Watched w(options);
  w.rig.Attach();
  const auto prompt = MakePrompt(64, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 5));
  ASSERT_TRUE(w.rig.RunUntil([&] { return w.rig.Finished(1); }));
  EXPECT_EQ(w.rig.router->answers[1].tokens.size(), 1u);
  EXPECT_EQ(w.rig.router->answers[1].error.code(), static_cast<int>(Code::kResourceExhausted));
  w.rig.ExpectAllBlocksBack();
}

TEST(FirstToken, AGuideKeepsTheDrawHere) {
  RigOptions options;
  options.decode.guides = [](const v1::GenerateRequest&, const DecodeOptions::OnGuide&) {
    return Result<std::shared_ptr<DrawGuide>>(std::make_shared<AnyTokenGuide>());
  };
  Watched w(options);
  w.rig.Attach();
  v1::GenerateRequest request = w.rig.MakeRequest(1, MakePrompt(100, 1), 4);
  request.mutable_sampling()->mutable_constraint()->set_kind(v1::Constraint::JSON_OBJECT);
  w.rig.router->Generate("d", request);
  w.rig.ExpectAnswer(1, MakePrompt(100, 1), 4);
  EXPECT_EQ(w.asked, 0);
  EXPECT_EQ(w.rig.prefills[0]->executor->rows_computed(), 99u);
  EXPECT_EQ(w.rig.decode->executor->rows_computed(), 4u);
}

TEST(FirstToken, WhatDrawsNothingAsksForNone) {
  SequenceRequest request;
  request.tokens = {1, 2, 3};
  request.prompt_tokens = 3;
  EXPECT_TRUE(MayBeDrawnElsewhere(request));
  request.max_new_tokens = 0;
  EXPECT_FALSE(MayBeDrawnElsewhere(request));
  request.max_new_tokens = 4;
  request.pooling = Pooling::kLast;
  EXPECT_FALSE(MayBeDrawnElsewhere(request));
}

TEST(FirstToken, APrefillWorkerOfBeforeThereWereAnyBringsKvAlone) {
  Watched w;
  w.on_down = [](v1::PrefillToDecode& m) {
    if (m.has_hello()) m.mutable_hello()->clear_draws();
    return true;
  };
  w.rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 4));
  w.rig.ExpectAnswer(1, prompt, 4);
  EXPECT_EQ(w.asked, 0);
  EXPECT_EQ(w.rig.decode->executor->rows_computed(), 4u);
}

TEST(FirstToken, KvThatIsOneTokenShortIsNotBelieved) {
  Watched w;
  w.on_up = [](Prefill& m) {
    if (m.has_prefill()) m.mutable_prefill()->clear_draw();
    return true;
  };
  w.rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 4));
  w.rig.ExpectAnswer(1, prompt, 4);
  EXPECT_EQ(w.rig.prefills[0]->executor->rows_computed(), 99u);
  EXPECT_EQ(w.rig.decode->executor->rows_computed(), 103u);
}

TEST(FirstToken, OneThatCouldNotBeDrawnIsDrawnHere) {
  Watched w;
  w.rig.Attach();
  w.rig.prefills[0]->executor->row_fault = [](const SampleRow&) -> Status {
    return ResourceExhausted("no room for what its penalties name");
  };
  const auto prompt = MakePrompt(100, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 4));
  w.rig.ExpectAnswer(1, prompt, 4);
  EXPECT_EQ(w.drawn, 0);
  EXPECT_EQ(w.rig.decode->executor->rows_computed(), 4u) << "the KV came nevertheless";
}

TEST(FirstToken, ADrawThatFailsIsTriedHere) {
  Watched w;
  w.rig.Attach();
  w.rig.prefills[0]->executor->row_fault = [](const SampleRow&) -> Status {
    return Internal("the logits are not finite");
  };
  const auto prompt = MakePrompt(100, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 4));
  w.rig.ExpectAnswer(1, prompt, 4);
  EXPECT_EQ(w.rig.decode->executor->rows_computed(), 103u) << "KV of such a step is not believed";
  w.rig.RunFor(std::chrono::milliseconds(5));
  w.rig.ExpectAllBlocksBack();
}

TEST(FirstToken, WhatCannotHaveBeenAskedForIsDataLoss) {
  const std::function<void(Done&)> wrongs[] = {
      [](Done& done) { done.mutable_drawn()->set_token(-1); },
      [](Done& done) { done.mutable_drawn()->set_token(1000); },
      [](Done& done) { done.mutable_drawn()->mutable_logprobs()->set_logprob(-1); },
      [](Done& done) { done.set_token_layers(done.token_layers() - 2); },
  };
  for (const auto& wrong : wrongs) {
    Watched w;
    w.on_down = [&](v1::PrefillToDecode& m) {
      if (m.has_done()) wrong(*m.mutable_done());
      return true;
    };
    w.rig.Attach();
    const auto prompt = MakePrompt(100, 1);
    w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 4));
    w.rig.ExpectAnswer(1, prompt, 4);
    EXPECT_EQ(w.rig.decode->executor->rows_computed(), 103u);
    EXPECT_NE(
        w.rig.metrics.Render().find("aisp_kv_data_loss_total{role=\"decode\",worker=\"d\"} 1\n"),
        std::string::npos);
    w.rig.RunFor(std::chrono::milliseconds(5));
    w.rig.ExpectAllBlocksBack();
  }
}

// As the first token of an answer that has no tokens yet.
Status CheckFirst(const v1::DrawnToken& drawn, int32_t num_logprobs, int32_t vocabulary) {
  v1::FirstDraw asked;
  asked.mutable_sampling()->set_num_logprobs(num_logprobs);
  return CheckDrawn(drawn, asked, 0, vocabulary);
}

TEST(FirstToken, AStopTokenThatMayNotComeYetIsNotBelieved) {
  v1::FirstDraw asked;
  asked.mutable_sampling()->set_num_logprobs(-1);
  asked.set_min_new_tokens(2);
  asked.add_stop_token_ids(7);
  v1::DrawnToken drawn;
  drawn.set_token(7);
  EXPECT_FALSE(CheckDrawn(drawn, asked, 0, 10));
  EXPECT_FALSE(CheckDrawn(drawn, asked, 1, 10));
  EXPECT_TRUE(CheckDrawn(drawn, asked, 2, 10));
  drawn.set_token(6);
  EXPECT_TRUE(CheckDrawn(drawn, asked, 0, 10));
}

TEST(FirstToken, LogprobsThatAreNoneAreNotBelieved) {
  for (const float wrong : {NAN, INFINITY, -INFINITY, 3.0f}) {
    v1::DrawnToken drawn;
    drawn.set_token(7);
    drawn.mutable_logprobs()->set_logprob(wrong);
    EXPECT_FALSE(CheckFirst(drawn, 1, 10)) << wrong;
    drawn.mutable_logprobs()->set_logprob(-1);
    drawn.mutable_logprobs()->add_top_ids(3);
    drawn.mutable_logprobs()->add_top_logprobs(wrong);
    EXPECT_FALSE(CheckFirst(drawn, 1, 10)) << wrong;
    drawn.mutable_logprobs()->set_top_logprobs(0, -0.5f);
    EXPECT_TRUE(CheckFirst(drawn, 1, 10));
  }
}

// The prefill worker's timings reach clients, metrics and placements.
TEST(FirstToken, WorkThatNobodyCanHaveDoneIsCutToWhatWasSeen) {
  for (const int64_t ns : {INT64_MAX, INT64_MIN, int64_t{-1}}) {
    Watched w;
    w.on_down = [&](v1::PrefillToDecode& m) {
      if (!m.has_done()) return true;
      Done& done = *m.mutable_done();
      done.set_queue_ns(ns);
      done.set_prefill_ns(ns);
      done.set_transfer_ns(ns);
      done.set_prefill_cached_tokens(UINT32_MAX);
      done.set_blocks(UINT32_MAX);
      done.mutable_pull()->set_result(v1::PrefixPull::FILLED);
      done.mutable_pull()->set_duration_ns(ns);
      done.mutable_pull()->set_promotion_ns(INT64_MAX);
      done.mutable_pull()->set_tokens(UINT32_MAX);
      for (int i = 0; i < 5000; ++i) {
        v1::TraceSpan& span = *done.add_spans();
        span.set_name(std::string(10'000, 'n'));
        span.set_start_ns(ns);
        span.set_duration_ns(INT64_MAX);
      }
      return true;
    };
    w.rig.Attach();
    const Instant sent = w.rig.clock.Now();
    const auto prompt = MakePrompt(100, 1);
    w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 3));
    w.rig.ExpectAnswer(1, prompt, 3);
    const v1::Timing timing = w.rig.router->answers[1].timings.at(0);
    const int64_t seen = (w.rig.clock.Now() - sent).count();
    for (const int64_t part :
         {timing.queue_ns(), timing.prefill_ns(), timing.transfer_ns(), timing.transfer_total_ns(),
          timing.pull().duration_ns(), timing.pull().promotion_ns()}) {
      EXPECT_GE(part, 0);
      EXPECT_LE(part, seen);
    }
    EXPECT_LE(timing.cached_tokens(), 100u);
    EXPECT_LE(timing.kv_blocks_moved(), 100u);
    EXPECT_LE(timing.pull().tokens(), 100u);
    EXPECT_LT(timing.spans_size(), 200);
    EXPECT_LT(timing.ByteSizeLong(), 400'000u);
    for (const v1::TraceSpan& span : timing.spans()) {
      EXPECT_GE(span.start_ns(), 0);
      EXPECT_LE(span.start_ns(), seen);
      EXPECT_LE(span.duration_ns(), seen);
    }
  }
}

TEST(FirstToken, LogprobsThatWereAskedForMustCome) {
  v1::DrawnToken drawn;
  drawn.set_token(7);
  EXPECT_TRUE(CheckFirst(drawn, -1, 10));
  EXPECT_FALSE(CheckFirst(drawn, 0, 10));
  drawn.mutable_logprobs()->set_logprob(-0.5f);
  EXPECT_TRUE(CheckFirst(drawn, 0, 10));
  EXPECT_FALSE(CheckFirst(drawn, -1, 10));
  drawn.mutable_logprobs()->add_top_ids(3);
  EXPECT_FALSE(CheckFirst(drawn, 2, 10)) << "an id without its logprob";
  drawn.mutable_logprobs()->add_top_logprobs(-0.25f);
  EXPECT_TRUE(CheckFirst(drawn, 2, 10));
  EXPECT_FALSE(CheckFirst(drawn, 0, 10)) << "more than were asked for";
}

TEST(FirstToken, ASecondWordOfItChangesNothing) {
  Watched w;
  std::vector<v1::PrefillToDecode> dones;
  w.on_down = [&](v1::PrefillToDecode& m) {
    if (m.has_done()) dones.push_back(m);
    return true;
  };
  w.rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  w.rig.router->Generate("d", w.rig.MakeRequest(1, prompt, 40));
  ASSERT_TRUE(w.rig.RunUntil([&] { return !w.rig.router->answers[1].tokens.empty(); }));
  ASSERT_EQ(dones.size(), 1u);
  w.rig.decode->decode->peer_links()->OnMessage(LinkId(1), dones[0]);
  w.rig.ExpectAnswer(1, prompt, 40);
  w.rig.RunFor(std::chrono::milliseconds(5));
  w.rig.ExpectAllBlocksBack();
}

TEST(FirstToken, OneThatComesAfterTheCancelIsForNobody) {
  Watched w;
  w.rig.Attach();
  w.rig.prefills[0]->transport->hold = true;
  w.rig.router->Generate("d", w.rig.MakeRequest(1, MakePrompt(100, 1), 4));
  ASSERT_TRUE(w.rig.RunUntil([&] { return w.rig.prefills[0]->transport->queued() > 0; }));
  w.rig.prefills[0]->paused = true;
  w.rig.router->Cancel("d", 1);
  w.rig.RunFor(std::chrono::milliseconds(2));
  w.rig.prefills[0]->transport->hold = false;
  w.rig.prefills[0]->transport->Land();
  w.rig.prefills[0]->paused = false;
  w.rig.RunFor(std::chrono::milliseconds(5));
  EXPECT_TRUE(w.rig.router->answers[1].events.empty());
  w.rig.ExpectAllBlocksBack();
}

}  // namespace
}  // namespace aisp
