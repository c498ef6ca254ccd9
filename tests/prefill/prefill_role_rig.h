// The prefill role with a decode worker that the test plays, message by message.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <vector>

#include "prefill/prefill_role.h"
#include "tests/worker/role_rig.h"
#include "worker/fingerprint.h"

namespace aisp {

// A decode worker that sends what the test wants.
class ReaderStandIn final : public LinkHandler<v1::PrefillToDecode> {
 public:
  std::vector<v1::PrefillToDecode> heard;
  bool up = false;
  bool down = false;
  void OnLinkUp(LinkId, const std::string&) override { up = true; }
  void OnMessage(LinkId, v1::PrefillToDecode message) override {
    heard.push_back(std::move(message));
  }
  void OnLinkDown(LinkId, const Error&) override { down = true; }

  int Count(v1::PrefillToDecode::BodyCase what) const {
    int n = 0;
    for (const auto& message : heard) n += message.body_case() == what;
    return n;
  }
  std::vector<uint64_t> Needs() const {
    std::vector<uint64_t> ids;
    for (const auto& message : heard) {
      if (message.has_need()) ids.push_back(message.need().transfer_id());
    }
    return ids;
  }
};

class PrefillRoleTest : public ::testing::Test {
 protected:
  explicit PrefillRoleTest(const RigOptions& options = {}) : rig_(options) {
    ProvenanceOptions model;
    executor_ = std::make_unique<ProvenanceExecutor>(model);
    pool_ = std::make_unique<ManualTransport>(&fabric(), "reader", false);
    EXPECT_TRUE(pool_->Register(
        {.base = executor_->pool_base(), .bytes = executor_->pool_bytes(), .handle = -1}));
    dialer_ = std::make_unique<KvLinksInMemory::Dialer>(&rig_.kv_links, &reader_, &inbox_);
    rig_.Attach();
    link_ = dialer_->Dial("p0");
  }

  ManualFabric& fabric() { return rig_.fabric(); }
  RigPrefill& p() { return *rig_.prefills[0]; }
  void Run(int ms = 3) {
    const Instant end = rig_.clock.Now() + std::chrono::milliseconds(ms);
    while (rig_.clock.Now() < end) {
      rig_.Turn();
      while (inbox_.DeliverOne()) {
      }
      rig_.clock.Advance(rig_.tick);
    }
  }
  // `arithmetic` empty: the prefill worker's own.
  void Hello(uint64_t incarnation = 1, const std::string& arithmetic = "") {
    v1::DecodeToPrefill message;
    v1::KvHello* hello = message.mutable_hello();
    hello->set_worker_id("reader");
    hello->set_incarnation(incarnation);
    *hello->mutable_fingerprint() = rig_.router->registers.at("p0").fingerprint();
    hello->mutable_fingerprint()->mutable_kv_layout()->set_num_blocks(64);
    if (!arithmetic.empty()) hello->mutable_fingerprint()->set_arithmetic(arithmetic);
    hello->set_host_id("host");
    v1::TransportOffer* offer = hello->add_offers();
    offer->set_name("manual");
    offer->set_endpoint("reader");
    Send(std::move(message));
  }
  void Send(v1::DecodeToPrefill message) { dialer_->Send(link_, std::move(message)); }
  void Ask(uint64_t transfer, const std::vector<TokenId>& prompt) {
    v1::DecodeToPrefill message;
    message.mutable_prefill()->set_transfer_id(transfer);
    *message.mutable_prefill()->mutable_tokens() = {prompt.begin(), prompt.end()};
    Send(std::move(message));
  }
  // Blocks 10, 11, ... for the prompt from token 0 on.
  void Grant(uint64_t transfer, uint64_t epoch, int blocks, int first_token = 0,
             int64_t lease_ms = 1000) {
    v1::DecodeToPrefill message;
    v1::Grant* grant = message.mutable_grant();
    grant->set_transfer_id(transfer);
    grant->set_epoch(epoch);
    grant->set_first_token(static_cast<uint32_t>(first_token));
    for (int i = 0; i < blocks; ++i) grant->add_blocks(10 + i);
    grant->set_lease_ms(lease_ms);
    Send(std::move(message));
  }
  void Refuse(uint64_t transfer, int64_t retry_ms) {
    v1::DecodeToPrefill message;
    message.mutable_refused()->set_transfer_id(transfer);
    message.mutable_refused()->set_retry_after_ms(retry_ms);
    Send(std::move(message));
  }
  void Revoke(uint64_t epoch) {
    v1::DecodeToPrefill message;
    message.mutable_revoke()->set_epoch(epoch);
    Send(std::move(message));
  }
  const v1::PrefillToDecode& Last() const { return reader_.heard.back(); }

  RoleRig rig_;
  Inbox inbox_;
  ReaderStandIn reader_;
  std::unique_ptr<ProvenanceExecutor> executor_;
  std::unique_ptr<ManualTransport> pool_;
  std::unique_ptr<KvLinksInMemory::Dialer> dialer_;
  LinkId link_;
};

inline std::vector<BlockId> GrantedBlocks(int n) {
  std::vector<BlockId> blocks;
  for (int i = 0; i < n; ++i) blocks.push_back(BlockId(10 + i));
  return blocks;
}

}  // namespace aisp
