// A golden model with a head that drafts token by token, for tests of what the head computes.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/model_executor.h"
#include "model/feature_head.h"
#include "tests/model/golden.h"

namespace aisp {

// The rows whose logits are wanted.
enum class Wanted : uint8_t { kNone, kLast, kAll };

// A head with its target, and a pool with one sequence in it.
struct HeadRig {
  // `load`: loads a head for this model.
  template <typename Load>
  HeadRig(const std::string& target_folder, DType dtype, const Load& load)
      : target(Rig::Open(target_folder, {.compute_dtype = dtype})) {
    auto made = load(target.executor->model(), *target.device, *target.ops);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    head = std::move(*made);
    layout = *MakeKvLayout(head->shape().kv, 16, dtype, 8, 0);
    pool = *target.device->Allocate(layout.PoolBytes(), MemoryKind::kDevice);
    std::memset(pool.data(), 0xff, pool.bytes());  // NaN: none of it may be read
    EXPECT_TRUE(head->Bind(KvViews(layout, pool.data()).front()));
    stream = *target.device->CreateStream();
  }

  // Runs rows [begin, begin + count) of the sequence; without features it continues from row 0 of
  // the last step.
  Status Run(int32_t begin, int32_t count, Wanted wanted, std::span<const TokenId> tokens,
             std::span<const float> features) {
    std::vector<int32_t> positions, logit_rows;
    for (int32_t i = 0; i < count; ++i) {
      positions.push_back(begin + i);
      if (wanted == Wanted::kAll || (wanted == Wanted::kLast && i == count - 1))
        logit_rows.push_back(i);
    }
    const SequenceRows rows{0, count, begin + count, 0};
    const std::vector<int32_t> table = {5, 2, 7, 0};
    const ForwardBatch batch{
        tokens.subspan(static_cast<size_t>(begin) + 1, static_cast<size_t>(count)),
        positions,
        {},
        {&rows, 1},
        table,
        logit_rows};
    const int32_t last = 0;
    std::vector<const std::byte*> places;
    for (int32_t i = 0; !features.empty() && i < count; ++i) {
      places.push_back(std::as_bytes(features).data() +
                       static_cast<size_t>(begin + i) * head->feature_bytes());
    }
    const bool begins = !features.empty();
    AISP_RETURN_IF_ERROR(begins ? head->TakeFeatures(places, *stream)
                                : head->GoOnFrom({&last, 1}, *stream));
    AISP_ASSIGN_OR_RETURN(const DeviceBatch uploaded, head->Upload(batch, 0, 0, *stream));
    using enum FeatureHead::Part;
    return head->Enqueue(!begins                   ? kGoOn
                         : wanted == Wanted::kNone ? kCatchUp
                                                   : kBegin,
                         uploaded, {}, *stream);
  }
  std::vector<float> Logits(int32_t rows) const {
    const TensorView logits = head->logits();
    return {logits.as<float>(), logits.as<float>() + rows * logits.cols()};
  }

  Rig target;
  std::unique_ptr<FeatureHead> head;
  KvLayout layout;
  Buffer pool;
  std::unique_ptr<Stream> stream;
};

inline void ExpectNear(const std::vector<float>& have, std::span<const float> want,
                       float tolerance) {
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < have.size(); ++i) ASSERT_NEAR(have[i], want[i], tolerance) << i;
}

}  // namespace aisp
