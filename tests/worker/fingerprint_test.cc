#include "worker/fingerprint.h"

#include <gtest/gtest.h>

#include "proto/fingerprint.h"

namespace aisp {
namespace {

v1::Fingerprint Sample() {
  v1::Fingerprint f;
  f.set_protocol_version(1);
  f.set_model_name("m");
  f.set_weights_digest("w");
  f.set_tokenizer_digest("t");
  f.set_template_digest("c");
  KvLayout layout{.num_layers = 2,
                  .num_kv_heads = 4,
                  .head_dim = 64,
                  .block_tokens = 16,
                  .dtype = DType::kBF16,
                  .num_blocks = 100};
  *f.mutable_kv_layout() = DescribeLayout(layout);
  f.set_arithmetic("cuda bf16; weights bf16; kv bf16");
  return f;
}

Status Match(const v1::Fingerprint& own, const v1::Fingerprint& peer) {
  return CheckFingerprints(own, "this worker", peer, "its peer");
}

TEST(Fingerprint, EqualOnesMatchWhateverThePoolSizes) {
  v1::Fingerprint other = Sample();
  other.mutable_kv_layout()->set_num_blocks(7);
  EXPECT_TRUE(Match(Sample(), other));
}

TEST(Fingerprint, EveryFieldCountsAndTheMessageNamesItWithBothValues) {
  const auto refused = [](auto change, const std::string& field) {
    v1::Fingerprint other = Sample();
    change(other);
    const Status status = Match(Sample(), other);
    ASSERT_FALSE(status) << field;
    EXPECT_EQ(status.error().code, Code::kFailedPrecondition);
    EXPECT_NE(status.error().message.find(field), std::string::npos) << status.error().message;
  };
  refused([](auto& f) { f.set_protocol_version(9); },
          "protocol_version differs: this worker has \"1\", its peer has \"9\"");
  refused([](auto& f) { f.set_model_name("x"); }, "model_name");
  refused([](auto& f) { f.set_weights_digest("x"); }, "weights_digest");
  refused([](auto& f) { f.set_tokenizer_digest("x"); }, "tokenizer_digest");
  refused([](auto& f) { f.set_template_digest("x"); }, "template_digest");
  refused([](auto& f) { f.set_adapters("a=1"); }, "adapters");
  refused([](auto& f) { f.mutable_kv_layout()->set_num_layers(9); }, "num_layers");
  refused([](auto& f) { f.mutable_kv_layout()->set_num_kv_heads(9); }, "num_kv_heads");
  refused([](auto& f) { f.mutable_kv_layout()->set_head_dim(9); }, "head_dim");
  refused([](auto& f) { f.mutable_kv_layout()->set_block_tokens(32); }, "block_tokens");
  refused([](auto& f) { f.mutable_kv_layout()->set_dtype("f32"); }, "dtype");
}

TEST(Fingerprint, AnotherArithmeticIsRefusedWithBothValuesUnlessBothAllowIt) {
  v1::Fingerprint own = Sample();
  v1::Fingerprint peer = Sample();
  peer.set_arithmetic("cuda bf16; weights nvfp4; kv bf16");
  const Status refused = Match(own, peer);
  ASSERT_FALSE(refused);
  for (const char* part : {"weights bf16", "weights nvfp4", "--allow-mixed-precision"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  EXPECT_NE(PrefixDigest(own), PrefixDigest(peer));
  const std::string pure = PrefixDigest(own);

  own.set_mixed_precision(true);
  EXPECT_NE(Match(own, peer).error().message.find("mixed_precision"), std::string::npos);
  peer.set_mixed_precision(true);
  EXPECT_TRUE(Match(own, peer));
  // A root of its own: blocks of a mixed pool are never taken for those of a pure one.
  EXPECT_EQ(PrefixDigest(own), PrefixDigest(peer));
  EXPECT_NE(PrefixDigest(own), pure);
}

TEST(Fingerprint, WhatARouterLeavesOpenIsNotCompared) {
  v1::Fingerprint router = Sample();
  router.clear_arithmetic();
  router.mutable_kv_layout()->clear_block_tokens();
  router.mutable_kv_layout()->clear_dtype();
  EXPECT_TRUE(Match(router, Sample()));
}

TEST(Fingerprint, ThePeersLayoutDiffersInItsBlockCountOnly) {
  KvLayout own{.num_layers = 2,
               .num_kv_heads = 4,
               .head_dim = 64,
               .block_tokens = 16,
               .dtype = DType::kBF16,
               .num_blocks = 100};
  v1::KvLayoutDesc desc = DescribeLayout(own);
  desc.set_num_blocks(7);
  const KvLayout peer = PeerLayout(own, desc);
  EXPECT_EQ(peer.num_blocks, 7);
  EXPECT_TRUE(peer.SameShape(own));
}

}  // namespace
}  // namespace aisp
