#include "worker/fingerprint.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

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
  refused([](auto& f) { f.mutable_kv_layout()->set_block_tokens(40); },
          "block_tokens differs: this worker has \"16\", its peer has \"40\"");
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
  // Its own root: blocks of a mixed pool are never mistaken for those of a pure one.
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

TEST(Fingerprint, BlocksOfOtherSizesAreConverted) {
  v1::Fingerprint peer = Sample();
  for (const uint32_t tokens : {16u, 32u, 48u, 128u}) {
    peer.mutable_kv_layout()->set_block_tokens(tokens);
    EXPECT_TRUE(Match(Sample(), peer)) << tokens;
    EXPECT_EQ(PrefixDigest(Sample()), PrefixDigest(peer));
  }
}

TEST(Fingerprint, OtherDtypesAreConvertedWhereBothAllowMixedPrecisionAndTheHostHoldsThem) {
  const auto with = [](const char* arithmetic, const char* dtype, bool mixed) {
    v1::Fingerprint f = Sample();
    f.set_arithmetic(arithmetic);
    f.mutable_kv_layout()->set_dtype(dtype);
    f.set_mixed_precision(mixed);
    return f;
  };
  for (const char* from : {"f32", "bf16", "fp8_e4m3"}) {
    for (const char* to : {"f32", "bf16", "fp8_e4m3"}) {
      const v1::Fingerprint a = with("cpu f32", from, true), b = with("cpu f32", to, true);
      EXPECT_TRUE(Match(a, b)) << from << " to " << to;
      EXPECT_EQ(PrefixDigest(a), PrefixDigest(b));
    }
  }
  const auto refused = [](const v1::Fingerprint& a, const v1::Fingerprint& b, const char* why) {
    const Status status = Match(a, b);
    ASSERT_FALSE(status);
    for (const std::string& part :
         {std::string("kv_layout.dtype differs: this worker has \"bf16\""), std::string(why)})
      EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  };
  refused(with("cpu f32", "bf16", false), with("cpu f32", "f32", false), "--allow-mixed-precision");
  refused(with("cpu f32", "bf16", true), with("cuda bf16", "fp8_e4m3", true), "GPU");
  refused(with("cuda bf16", "bf16", true), with("cpu f32", "f32", true), "GPU");
  refused(with("cpu f32", "bf16", true), with("cpu f32", "int4", true), "its peer has \"int4\"");
}

TEST(Fingerprint, WithoutAnArithmeticTheDtypeIsPartOfThePrefixesIdentity) {
  v1::Fingerprint a = Sample(), b = Sample();
  a.clear_arithmetic();
  b.clear_arithmetic();
  b.mutable_kv_layout()->set_dtype("f32");
  EXPECT_NE(PrefixDigest(a), PrefixDigest(b));
}

TEST(Fingerprint, APeersLayoutIsWhatItSays) {
  KvLayout own{.num_layers = 2,
               .num_kv_heads = 4,
               .head_dim = 64,
               .block_tokens = 16,
               .dtype = DType::kBF16,
               .num_blocks = 100};
  v1::KvLayoutDesc desc = DescribeLayout(own);
  desc.set_num_blocks(7);
  const Result<KvLayout> peer = PeerLayout(desc);
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->num_blocks, 7);
  EXPECT_TRUE(peer->SameShape(own));
}

TEST(Fingerprint, ALayoutThatNoPoolHasIsNone) {
  const std::vector<std::function<void(v1::KvLayoutDesc&)>> lies = {
      [](auto& d) { d.set_num_layers(0); },        [](auto& d) { d.set_num_kv_heads(1u << 31); },
      [](auto& d) { d.set_head_dim(UINT32_MAX); }, [](auto& d) { d.set_block_tokens(0); },
      [](auto& d) { d.set_dtype("f31"); },         [](auto& d) { d.set_num_blocks(UINT32_MAX); }};
  for (size_t i = 0; i < lies.size(); ++i) {
    v1::KvLayoutDesc desc = Sample().kv_layout();
    lies[i](desc);
    EXPECT_FALSE(PeerLayout(desc)) << i;
  }
}

// Offsets into the pool are products of all its values.
TEST(Fingerprint, ALayoutOfMoreBytesThanThereAreIsNone) {
  v1::KvLayoutDesc desc = Sample().kv_layout();
  desc.set_num_blocks(INT32_MAX);
  EXPECT_TRUE(PeerLayout(desc));
  for (const uint32_t blocks : {0u, 1u, uint32_t{INT32_MAX}}) {
    v1::KvLayoutDesc most = Sample().kv_layout();
    most.set_num_layers(1 << 16);
    most.set_num_kv_heads(1 << 16);
    most.set_head_dim(1 << 16);
    most.set_block_tokens(1 << 16);
    most.set_num_blocks(blocks);
    EXPECT_FALSE(PeerLayout(most)) << blocks;
  }
  desc.set_head_dim(1 << 16);
  desc.set_num_kv_heads(1 << 16);
  EXPECT_FALSE(PeerLayout(desc)) << "its blocks may be, so many of them not";
}

}  // namespace
}  // namespace aisp
