#include "worker/fingerprint.h"

#include <gtest/gtest.h>

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
  return f;
}

TEST(Fingerprint, EqualOnesMatchWhateverThePoolSizes) {
  v1::Fingerprint other = Sample();
  other.mutable_kv_layout()->set_num_blocks(7);
  EXPECT_TRUE(MatchFingerprints(Sample(), other));
}

TEST(Fingerprint, EveryFieldCountsAndTheMessageNamesItWithBothValues) {
  const auto refused = [](auto change, const std::string& field) {
    v1::Fingerprint other = Sample();
    change(other);
    const Status status = MatchFingerprints(Sample(), other);
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
  refused([](auto& f) { f.mutable_kv_layout()->set_num_layers(9); }, "num_layers");
  refused([](auto& f) { f.mutable_kv_layout()->set_num_kv_heads(9); }, "num_kv_heads");
  refused([](auto& f) { f.mutable_kv_layout()->set_head_dim(9); }, "head_dim");
  refused([](auto& f) { f.mutable_kv_layout()->set_block_tokens(32); }, "block_tokens");
  refused([](auto& f) { f.mutable_kv_layout()->set_dtype("f32"); }, "dtype");
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
