// A draft head on the CPU and on the GPU, given the same random tokens and features: the difference
// of its logits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/model_executor.h"
#include "model/feature_head.h"
#include "tests/kernels/cuda/gpu.h"

namespace aisp {

// A head with its buffers on one device.
struct HeadOn {
  HeadOn(Device& on, std::unique_ptr<FeatureHead> made, DType kv_dtype)
      : device(on), head(std::move(made)) {
    stream = *device.CreateStream();
    layout = *MakeKvLayout(head->shape().kv, 16, kv_dtype, 16, 0);
    pool = *device.Allocate(layout.PoolBytes(), MemoryKind::kDevice);
    const Status bound = head->Bind(KvViews(layout, pool.data()).front());
    AISP_CHECK_MSG(bound.has_value(), bound.error().message);
  }

  void Put(void* to, const void* from, size_t bytes) {
    AISP_CHECK(device.Copy(to, from, bytes, *stream).has_value());
    AISP_CHECK(device.Synchronize(*stream).has_value());
  }

  // Runs a step; returns the head's logits of the wanted rows, over the target's vocabulary.
  std::vector<float> Run(const ForwardBatch& batch, std::span<const float> features,
                         std::span<const int32_t> outputs, int32_t pad_to) {
    std::vector<const std::byte*> rows;
    Buffer memory;
    if (!features.empty()) {
      std::vector<std::byte> stored(features.size() * DTypeBytes(head->feature_dtype()));
      for (size_t i = 0; i < features.size(); ++i) {
        if (head->feature_dtype() == DType::kF32) {
          std::memcpy(stored.data() + i * 4, &features[i], 4);
        } else {
          const uint16_t bits = ToBf16(features[i]);
          std::memcpy(stored.data() + i * 2, &bits, 2);
        }
      }
      memory = *device.Allocate(stored.size(), MemoryKind::kDevice);
      Put(memory.data(), stored.data(), stored.size());
      const size_t bytes = head->feature_bytes();
      for (size_t i = 0; i < batch.tokens.size(); ++i)
        rows.push_back(static_cast<const std::byte*>(memory.data()) + i * bytes);
      EXPECT_TRUE(head->TakeFeatures(rows, *stream));
    } else {
      EXPECT_TRUE(head->GoOnFrom(outputs, *stream));
    }
    using enum FeatureHead::Part;
    const auto part = features.empty() ? kGoOn : batch.logit_rows.empty() ? kCatchUp : kBegin;
    const auto uploaded = head->Upload(batch, pad_to, 0, *stream);
    AISP_CHECK_MSG(uploaded.has_value(), uploaded.error().message);
    const Status enqueued = head->Enqueue(part, *uploaded, {}, *stream);
    EXPECT_TRUE(enqueued.has_value()) << enqueued.error().message;
    const TensorView logits = head->target_logits();
    std::vector<float> out(batch.logit_rows.size() * static_cast<size_t>(logits.cols()));
    EXPECT_TRUE(device.Copy(out.data(), logits.data, out.size() * sizeof(float), *stream));
    EXPECT_TRUE(device.Synchronize(*stream));
    return out;
  }

  Device& device;
  const std::unique_ptr<FeatureHead> head;
  std::unique_ptr<Stream> stream;
  Buffer pool;
  KvLayout layout;
};

// Over the tokens for which the head has logits; the other entries are undefined.
inline double LogitDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == kNoLogit || b[i] == kNoLogit) {
      EXPECT_EQ(a[i], b[i]) << i;
      continue;
    }
    if (std::isnan(b[i])) return 1e9;
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{a[i]} * a[i];
  }
  return std::sqrt(difference / norm);
}

// The same head on both devices, and three sequences of random tokens and features.
class HeadParity {
 public:
  HeadParity(HeadOn& cpu, HeadOn& gpu)
      : cpu_(cpu), gpu_(gpu), token_(0, cpu.head->shape().vocabulary - 1) {}

  // Runs so many rows of each, with features; returns the difference of the logits after the last
  // rows.
  double Begin(const std::array<int32_t, 3>& counts, int32_t pad_to, bool draws = true) {
    alive_ = {0, 1, 2};
    Take({counts.begin(), counts.end()});
    if (!draws) logit_rows_.clear();
    std::vector<float> features(tokens_.size() * static_cast<size_t>(cpu_.head->feature_size()));
    for (float& v : features) v = normal_(random_);
    return LogitDistance(cpu_.Run(batch(), features, {}, 0),
                         gpu_.Run(batch(), features, {}, pad_to));
  }
  // One row of each, named by its position among the rows of the last step.
  double GoOn(const std::vector<int32_t>& outputs, int32_t pad_to) {
    std::vector<size_t> next;
    for (const int32_t output : outputs) next.push_back(alive_[static_cast<size_t>(output)]);
    alive_ = next;
    Take(std::vector<int32_t>(alive_.size(), 1));
    return LogitDistance(cpu_.Run(batch(), {}, outputs, 0), gpu_.Run(batch(), {}, outputs, pad_to));
  }

 private:
  void Take(const std::vector<int32_t>& counts) {
    tokens_.clear(), positions_.clear(), logit_rows_.clear(), sequences_.clear();
    for (size_t i = 0; i < alive_.size(); ++i) {
      const size_t s = alive_[i];
      sequences_.push_back({static_cast<int32_t>(tokens_.size()), counts[i], known_[s] + counts[i],
                            static_cast<int32_t>(4 * s)});
      for (int32_t row = 0; row < counts[i]; ++row) {
        tokens_.push_back(token_(random_));
        positions_.push_back(known_[s]++);
      }
      logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
    }
    slots_.assign(tokens_.size(), 0);
  }
  ForwardBatch batch() const {
    return {tokens_, positions_, slots_, sequences_, tables_, logit_rows_};
  }

  HeadOn &cpu_, &gpu_;
  std::mt19937 random_{std::random_device{}()};
  std::normal_distribution<float> normal_;
  std::uniform_int_distribution<int32_t> token_;
  std::vector<size_t> alive_;
  std::array<int32_t, 3> known_{};
  const std::vector<int32_t> tables_ = {3, 1, 7, 14, 2, 9, 4, 12, 5, 11, 6, 13};
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, logit_rows_, slots_;
  std::vector<SequenceRows> sequences_;
};

// Prompts, the rows after a verified draft (as many as a graph has), one row each; then rows that
// continue a draft.
inline void ExpectHeadParity(HeadOn& cpu, HeadOn& gpu, double tolerance) {
  HeadParity parity(cpu, gpu);
  parity.Begin({17, 20, 9}, 0, /*draws=*/false);
  EXPECT_LT(parity.Begin({5, 2, 1}, 16), tolerance);
  EXPECT_LT(parity.Begin({1, 1, 1}, 4), tolerance);
  EXPECT_LT(parity.Begin({3, 4, 2}, 16), tolerance);
  EXPECT_LT(parity.GoOn({0, 1, 2}, 0), tolerance);
  EXPECT_LT(parity.GoOn({0, 1, 2}, 4), tolerance);
  EXPECT_LT(parity.GoOn({0, 2}, 4), tolerance);
  EXPECT_LT(parity.GoOn({1}, 0), tolerance);
}

}  // namespace aisp
