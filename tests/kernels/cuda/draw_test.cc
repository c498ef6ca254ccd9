// Drawing on the device against the host's sampler: the same token for the same logits, parameters
// and seed.
#include "engine/sampler.h"
#include "tests/kernels/cuda/gpu.h"

namespace aisp {
namespace {

struct Case {
  SamplingParams params;
  std::vector<TokenId> prompt, generated, banned;
  std::vector<uint32_t> mask;  // empty: none
};

std::vector<TokenEdit> EditsOf(const Case& c, int32_t vocabulary) {
  std::vector<TokenEdit> all(static_cast<size_t>(vocabulary));
  const auto known = [&](TokenId t) { return t >= 0 && t < vocabulary; };
  const SamplingParams& p = c.params;
  if (p.repetition_penalty != 1) {
    for (const auto* list : {&c.prompt, &c.generated}) {
      for (TokenId t : *list) {
        if (known(t)) all[static_cast<size_t>(t)].repeated = 1;
      }
    }
  }
  if (p.presence_penalty != 0 || p.frequency_penalty != 0) {
    for (TokenId t : c.generated) {
      if (known(t)) ++all[static_cast<size_t>(t)].count;
    }
  }
  for (const auto& [t, bias] : p.logit_bias) {
    if (known(t)) all[static_cast<size_t>(t)].bias += bias;
  }
  for (TokenId t : c.banned) {
    if (known(t)) all[static_cast<size_t>(t)].banned = 1;
  }
  std::vector<TokenEdit> out;
  for (size_t t = 0; t < all.size(); ++t) {
    all[t].token = static_cast<int32_t>(t);
    if (all[t].repeated != 0 || all[t].count != 0 || all[t].bias != 0 || all[t].banned != 0)
      out.push_back(all[t]);
  }
  return out;
}

class DrawRig {
 public:
  DrawRig(CudaBackend* gpu, int32_t vocabulary, int32_t rows)
      : gpu_(*gpu), stream_(std::move(*gpu->device->CreateStream())), vocabulary_(vocabulary) {
    logits_ = std::make_unique<TwinTensor>(*gpu->device, *stream_, DType::kF32,
                                           std::initializer_list<int64_t>{rows, vocabulary});
    ProgrammeBuilder b;
    b.Draw(b.Given(logits_->gpu, RowSet::kLogits));
    programme_ = b.Finish();
    memory_ = std::move(*gpu->device->Allocate(size_t{64} << 20, MemoryKind::kDevice));
  }
  TwinTensor& logits() { return *logits_; }

  std::vector<DrawnToken> Draw(const std::vector<Case>& cases, uint32_t position) {
    const auto [rows, edits, masks] = InputsOf(cases, position);
    auto* base = static_cast<std::byte*>(memory_.data());
    constexpr size_t kEdits = 1 << 20, kDrawn = 48 << 20, kSlots = 50 << 20, kMasks = 52 << 20;
    Device& device = *gpu_.device;
    AISP_CHECK(edits.size() * sizeof(TokenEdit) < kDrawn - kEdits);
    AISP_CHECK(device.Copy(base, rows.data(), rows.size() * sizeof(DrawRow), *stream_).has_value());
    AISP_CHECK(device.Copy(base + kEdits, edits.data(), edits.size() * sizeof(TokenEdit), *stream_)
                   .has_value());
    AISP_CHECK(device.Copy(base + kMasks, masks.data(), masks.size() * 4, *stream_).has_value());
    DrawParams p;
    p.masks = reinterpret_cast<const uint32_t*>(base + kMasks);
    p.mask_words = static_cast<int32_t>(MaskWords());
    p.rows = reinterpret_cast<const DrawRow*>(base);
    p.edits = reinterpret_cast<const TokenEdit*>(base + kEdits);
    p.num_rows = static_cast<int32_t>(rows.size());
    p.filters = std::any_of(rows.begin(), rows.end(), [](const DrawRow& r) {
      return r.temperature > 0 && (r.top_k > 0 || r.top_p < 1 || r.min_p > 0);
    });
    p.drawn = reinterpret_cast<DrawnToken*>(base + kDrawn);
    StepInputs inputs;
    inputs.draw = p;
    inputs.slot_tokens = reinterpret_cast<int32_t*>(base + kSlots);
    Bucket bucket;
    bucket.part = StepPart::kDraw;
    bucket.draws = p.num_rows;
    auto step = gpu_.ops->Prepare(programme_, gpu_.ops->Canonical(bucket));
    AISP_CHECK_MSG(step.has_value(), step.error().message);
    const Status drawn = (*step)->Run(inputs, {}, *stream_);
    AISP_CHECK_MSG(drawn.has_value(), drawn.error().message);
    std::vector<DrawnToken> out(rows.size());
    std::vector<int32_t> slots(rows.size());
    AISP_CHECK(
        device.Copy(out.data(), p.drawn, out.size() * sizeof(DrawnToken), *stream_).has_value());
    AISP_CHECK(
        device.Copy(slots.data(), inputs.slot_tokens, slots.size() * 4, *stream_).has_value());
    const Status done = device.Synchronize(*stream_);
    AISP_CHECK_MSG(done.has_value(), done.error().message);
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i].token >= 0) {
        EXPECT_EQ(slots[i], out[i].token);
      }
    }
    return out;
  }

  SampledToken OnHost(const Case& c, size_t row, uint32_t position) {
    if (!sampler_) sampler_.emplace(vocabulary_);
    SampleRow r;
    r.position = position;
    r.params = &c.params;
    r.prompt = c.prompt;
    r.generated = c.generated;
    r.banned = c.banned;
    r.mask = c.mask;
    const float* logits = logits_->host.as<float>() + static_cast<int64_t>(row) * vocabulary_;
    return sampler_->Sample({logits, static_cast<size_t>(vocabulary_)}, r);
  }

 private:
  struct Inputs {
    std::vector<DrawRow> rows;
    std::vector<TokenEdit> edits;
    std::vector<uint32_t> masks;
  };
  size_t MaskWords() const { return static_cast<size_t>(vocabulary_ + 31) / 32; }
  // A row for each case, and the arrays that the rows point to.
  Inputs InputsOf(const std::vector<Case>& cases, uint32_t position) const {
    Inputs in;
    for (const Case& c : cases) {
      DrawRow r;
      if (!c.mask.empty()) r.mask = static_cast<int32_t>(in.masks.size() / MaskWords());
      in.masks.insert(in.masks.end(), c.mask.begin(), c.mask.end());
      r.logit_index = r.slot = static_cast<int32_t>(in.rows.size());
      r.position = position;
      r.choice = c.params.choice;
      r.seed = c.params.seed;
      r.temperature = c.params.temperature;
      r.top_p = c.params.top_p;
      r.min_p = c.params.min_p;
      r.top_k = c.params.top_k;
      r.presence_penalty = c.params.presence_penalty;
      r.frequency_penalty = c.params.frequency_penalty;
      r.repetition_penalty = c.params.repetition_penalty;
      r.num_logprobs = c.params.num_logprobs;
      const auto own = EditsOf(c, vocabulary_);
      r.edit_begin = static_cast<int32_t>(in.edits.size());
      r.edit_count = static_cast<int32_t>(own.size());
      in.edits.insert(in.edits.end(), own.begin(), own.end());
      r.drawn_at = static_cast<int32_t>(in.rows.size());
      in.rows.push_back(r);
    }
    return in;
  }

  CudaBackend& gpu_;
  std::unique_ptr<Stream> stream_;
  const int32_t vocabulary_;
  std::unique_ptr<TwinTensor> logits_;
  Programme programme_;
  Buffer memory_;
  std::optional<Sampler> sampler_;
};

Case RandomCase(std::mt19937& random, int32_t vocabulary) {
  const auto chance = [&](int n) { return random() % static_cast<unsigned>(n) == 0; };
  Case c;
  SamplingParams& p = c.params;
  p.seed = random();
  p.choice = random() % 4;
  p.temperature = chance(4) ? 0.0f : 0.3f + static_cast<float>(random() % 100) / 60.0f;
  // Few and many candidates are drawn by different code.
  if (chance(2)) p.top_k = static_cast<int32_t>(1 + random() % (chance(4) ? 3000 : 60));
  if (chance(2)) p.top_p = 0.05f + static_cast<float>(random() % 95) / 100.0f;
  if (chance(3)) p.min_p = static_cast<float>(random() % 30) / 100.0f;
  if (chance(3)) p.presence_penalty = 0.7f;
  if (chance(3)) p.frequency_penalty = 0.3f;
  if (chance(3)) p.repetition_penalty = 1.3f;
  if (chance(3)) {
    // A map: each token once.
    for (int i = 0; i < 5; ++i)
      p.logit_bias.emplace_back(
          static_cast<TokenId>((random() % 100) * 5 + static_cast<unsigned>(i)),
          static_cast<float>(random() % 10) - 5);
  }
  if (chance(4)) c.banned = {static_cast<TokenId>(random() % static_cast<unsigned>(vocabulary))};
  if (chance(3)) {
    // Masks of few tokens or of many; never of only the banned one.
    const unsigned one_in = chance(2) ? 2 : static_cast<unsigned>(vocabulary / 3);
    c.mask.resize(static_cast<size_t>(vocabulary + 31) / 32);
    for (unsigned t = 0; t < static_cast<unsigned>(vocabulary); ++t) {
      if (t < 2 || random() % one_in == 0) c.mask[t / 32] |= 1u << (t % 32);
    }
  }
  for (int i = 0; i < 40; ++i) {
    c.prompt.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(vocabulary)));
    c.generated.push_back(static_cast<TokenId>(random() % 200));
  }
  return c;
}

TEST(GpuDraw, RandomSettingsGiveTheHostsTokens) {
  AISP_OPEN_GPU(gpu);
  std::mt19937 random(std::random_device{}());
  constexpr int32_t kRows = 64;
  int checked = 0, different = 0;
  for (const int32_t vocabulary : {512, 32003, 128256}) {
    DrawRig rig(&gpu, vocabulary, kRows);
    for (uint32_t position = 3; position < 6; ++position) {
      rig.logits().Randomise(random, position == 4 ? 1.0f : 3.0f);
      // Many equal logits: ties must be broken as on the host.
      if (position == 5) {
        for (int64_t i = 0; i < rig.logits().host.elements(); ++i)
          rig.logits().Set(i, std::round(rig.logits().host.as<float>()[i]));
        rig.logits().Upload();
      }
      std::vector<Case> cases;
      for (int i = 0; i < kRows; ++i) cases.push_back(RandomCase(random, vocabulary));
      const auto drawn = rig.Draw(cases, position);
      for (size_t i = 0; i < cases.size(); ++i) {
        const SampledToken host = rig.OnHost(cases[i], i, position);
        ASSERT_TRUE(host.status.has_value());
        ASSERT_EQ(drawn[i].status, DrawStatus::kDrawn);
        ++checked;
        if (drawn[i].token != host.token) {
          ++different;
          const SamplingParams& p = cases[i].params;
          printf("vocabulary %d row %zu: %d, host %d (t %g k %d p %g min %g)\n", vocabulary, i,
                 drawn[i].token, host.token, p.temperature, p.top_k, p.top_p, p.min_p);
        }
      }
    }
  }
  // exp and log of device and host differ in the last bit, which may very rarely change a draw or a
  // boundary.
  EXPECT_LE(different, checked / 200) << "of " << checked;
}

// Rows without filters are drawn in separate launches from rows with filters; both use the same
// scratch memory.
TEST(GpuDraw, RowsThatDoNotFilterGiveTheHostsTokensBetweenOthers) {
  AISP_OPEN_GPU(gpu);
  std::mt19937 random(std::random_device{}());
  int checked = 0, different = 0;
  for (const int32_t vocabulary : {510, 32003, 128256}) {
    DrawRig rig(&gpu, vocabulary, 70);
    uint32_t position = 3;
    for (const size_t rows : {1, 8, 64, 70, 1}) {
      rig.logits().Randomise(random, 3.0f);
      for (const bool filters : {false, true, false}) {
        std::vector<Case> cases;
        for (size_t i = 0; i < rows; ++i) {
          Case& c = cases.emplace_back(RandomCase(random, vocabulary));
          if (i % 3 == 0) c.params.num_logprobs = 0;
          if (filters) continue;
          c.params.top_k = 0;
          c.params.top_p = 1;
          c.params.min_p = 0;
        }
        const auto drawn = rig.Draw(cases, ++position);
        for (size_t i = 0; i < rows; ++i) {
          const SampledToken host = rig.OnHost(cases[i], i, position);
          ASSERT_TRUE(host.status.has_value());
          ASSERT_EQ(drawn[i].status, DrawStatus::kDrawn);
          ++checked;
          different += drawn[i].token != host.token ? 1 : 0;
          // With a mask the host computes them (AsyncExecutor).
          if (cases[i].params.num_logprobs == 0 && cases[i].mask.empty() &&
              drawn[i].token == host.token) {
            EXPECT_NEAR(drawn[i].logprob, host.logprob->logprob, 1e-4);
          }
        }
      }
    }
  }
  EXPECT_LE(different, checked / 200) << "of " << checked;
}

TEST(GpuDraw, ARowThatIsNotFiniteFailsAlone) {
  AISP_OPEN_GPU(gpu);
  std::mt19937 random(1);
  DrawRig rig(&gpu, 1000, 4);
  rig.logits().Randomise(random);
  rig.logits().Set(1000 + 999, std::numeric_limits<float>::quiet_NaN());
  rig.logits().Set(2000, std::numeric_limits<float>::infinity());
  rig.logits().Upload();
  std::vector<Case> cases(4);
  cases[3].params.temperature = 0;
  const auto drawn = rig.Draw(cases, 9);
  EXPECT_EQ(drawn[0].token, rig.OnHost(cases[0], 0, 9).token);
  EXPECT_EQ(drawn[1].status, DrawStatus::kNotFinite);
  EXPECT_EQ(drawn[2].status, DrawStatus::kNotFinite);
  EXPECT_EQ(drawn[3].token, rig.OnHost(cases[3], 3, 9).token);
}

TEST(GpuDraw, BansThatLeaveNothingAreTold) {
  AISP_OPEN_GPU(gpu);
  std::mt19937 random(1);
  DrawRig rig(&gpu, 64, 1);
  rig.logits().Randomise(random);
  std::vector<Case> cases(1);
  for (TokenId t = 0; t < 64; ++t) cases[0].banned.push_back(t);
  EXPECT_EQ(rig.Draw(cases, 1)[0].status, DrawStatus::kNothingLeft);
}

TEST(GpuDraw, LogprobsAreTheHosts) {
  AISP_OPEN_GPU(gpu);
  std::mt19937 random(2);
  DrawRig rig(&gpu, 50000, 8);
  rig.logits().Randomise(random, 3);
  std::vector<Case> cases(8);
  for (Case& c : cases) {
    c.params.num_logprobs = 0;
    c.params.seed = random();
  }
  const auto drawn = rig.Draw(cases, 5);
  for (size_t i = 0; i < cases.size(); ++i) {
    const SampledToken host = rig.OnHost(cases[i], i, 5);
    ASSERT_EQ(drawn[i].token, host.token);
    EXPECT_NEAR(drawn[i].logprob, host.logprob->logprob, 1e-4);
  }
}

}  // namespace
}  // namespace aisp
