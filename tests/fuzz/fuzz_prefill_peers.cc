// A prefill worker whose decode workers send anything: greetings of any shape, meaningless
// requests, grants that were not requested, epochs and fences in any order, references to shared
// prompts that do not exist, broken links. Invariants: it writes only into what is granted now, not
// a byte after it has acknowledged a fence, and at the end it serves an honest decode worker and no
// block is missing.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "common/check.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kMaxTurns = 300;
constexpr int kReaders = 3;  // hostile ones
constexpr int32_t kPoolBlocks = 64;
constexpr uint64_t kEpochs = 32;  // an epoch's upper bits are its reader's

// A decode worker that sends nonsense. Its pool allows what it granted and has not fenced.
class HostileReader final : public LinkHandler<v1::PrefillToDecode> {
 public:
  HostileReader(RoleRig* rig, size_t number)
      : rig_(rig),
        name_("h" + std::to_string(number)),
        space_((uint64_t{number} + 1) << kEpochs),
        layout_(rig->prefills[0]->executor->kv_layout()),
        pool_(layout_.BlockBytes() * kPoolBlocks),
        transport_(&rig->fabric(), name_, true),
        dialer_(&rig->kv_links, this, &inbox_) {
    AISP_CHECK(transport_.Register({.base = pool_.data(), .bytes = pool_.size(), .handle = -1}));
    Dial();
  }

  void OnLinkUp(LinkId, const std::string&) override {}
  void OnMessage(LinkId, v1::PrefillToDecode message) override {
    if (message.has_need()) asked_.insert(message.need().transfer_id());
    if (message.has_fence()) Fenced(message.fence().epoch());
  }
  void OnLinkDown(LinkId link, const Error&) override {
    if (link == link_) up_ = false;
  }

  void Hear() {
    while (inbox_.DeliverOne()) {
    }
    AISP_CHECK(transport_.fenced_writes() == 0);
  }
  void HangUp() {
    if (up_) dialer_.Close(link_);
    up_ = false;
  }
  const std::string& name() const { return name_; }

  void Act(ByteSource& bytes) {
    if (!up_) return Dial();
    switch (bytes.Below(12)) {
      case 0:
        return Hello(bytes);
      case 1:
      case 2:
        return Ask(bytes);
      case 3:
      case 4:
      case 5:
        return Grant(bytes);
      case 6:
        return Refuse(bytes);
      case 7:
        return Cancel(bytes);
      case 8:
        return Revoke(bytes);
      case 9:
        return Shared(bytes);
      case 10:
        return bytes.Below(4) == 3 ? HangUp() : Hear();
      default:
        return Bytes(bytes);
    }
  }

 private:
  void Dial() {
    link_ = dialer_.Dial("p0");
    up_ = true;
  }
  void Send(v1::DecodeToPrefill message) { dialer_.Send(link_, std::move(message)); }

  void Hello(ByteSource& bytes) {
    v1::DecodeToPrefill message;
    v1::KvHello& hello = *message.mutable_hello();
    hello.set_worker_id(name_);
    hello.set_incarnation(1);
    hello.set_verify(bytes.Flip());
    *hello.mutable_fingerprint() = rig_->router->registers.at("p0").fingerprint();
    v1::KvLayoutDesc& layout = *hello.mutable_fingerprint()->mutable_kv_layout();
    layout.set_num_blocks(kPoolBlocks);
    hello.set_host_id(bytes.Flip() ? "host" : "elsewhere");
    for (size_t n = 1 + bytes.Below(3); n > 0; --n) {
      v1::TransportOffer& offer = *hello.add_offers();
      const bool right = bytes.Below(4) != 3;
      offer.set_name(right ? "manual" : std::string(bytes.Text(8)));
      offer.set_endpoint(right ? name_ : std::string(bytes.Text(8)));
    }
    if (bytes.Below(4) == 3) Misshape(bytes, &layout);
    Send(std::move(message));
  }

  // A pool is as large as its owner says, so that only the shape is wrong.
  void Misshape(ByteSource& bytes, v1::KvLayoutDesc* layout) {
    switch (bytes.Below(5)) {
      case 0:
        layout->set_block_tokens(bytes.Number32());
        break;
      case 1:
        layout->set_dtype(bytes.Flip() ? "bf16" : std::string(bytes.Text(8)));
        break;
      case 2:
        layout->set_num_layers(bytes.Number32());
        break;
      case 3:
        layout->set_head_dim(bytes.Number32());
        break;
      default:
        layout->set_num_kv_heads(bytes.Number32());
    }
    const uint64_t most = uint64_t{kPoolBlocks} * static_cast<uint64_t>(layout_.block_tokens);
    layout->set_num_blocks(
        static_cast<uint32_t>(most / std::max<uint64_t>(layout->block_tokens(), 1) / 4));
    misshaped_ = true;
  }

  uint64_t Transfer(ByteSource& bytes) {
    return bytes.Below(8) == 7 ? bytes.Number() : bytes.Below(16);
  }
  uint64_t AnEpoch(ByteSource& bytes) {
    switch (bytes.Below(4)) {
      case 0:
      case 1:
        return space_ | ++last_epoch_;
      case 2:
        return space_ | bytes.Below(16);
      default:
        return space_ | (bytes.Number() & ((uint64_t{1} << kEpochs) - 1));
    }
  }

  void Ask(ByteSource& bytes) {
    v1::DecodeToPrefill message;
    v1::PrefillRequest& request = *message.mutable_prefill();
    request.set_transfer_id(Transfer(bytes));
    const std::vector<TokenId> prompt =
        MakePrompt(static_cast<int>(bytes.Below(100)), bytes.Below(4));
    *request.mutable_tokens() = {prompt.begin(), prompt.end()};
    if (bytes.Below(8) == 7) request.add_tokens(bytes.Signed32());
    request.set_decode_match_tokens(bytes.Flip() ? 0 : bytes.Number32());
    request.set_timeout_ms(bytes.Flip() ? 2000 : static_cast<int64_t>(bytes.Number()));
    request.set_priority(bytes.Signed32());
    request.set_prompt_id(bytes.Below(4) == 3 ? bytes.Below(6) : 0);
    request.mutable_tenant()->set_weight(bytes.Number32());
    request.mutable_tenant()->set_rank(bytes.Signed32());
    request.set_cached_only(bytes.Below(4) == 3);
    if (bytes.Below(4) == 3) request.set_cache_salt(std::string(bytes.Text(8)));
    if (bytes.Below(8) == 7) request.set_adapter(std::string(bytes.Text(8)));
    if (bytes.Flip()) Draw(bytes, request.mutable_draw());
    if (bytes.Below(8) == 7) {
      request.mutable_features()->set_positions(bytes.Number32());
      request.mutable_features()->add_layers(bytes.Signed32());
      request.mutable_features()->set_row_size(bytes.Number32());
    }
    if (bytes.Below(4) == 3) Pull(bytes, request.mutable_pull());
    Send(std::move(message));
  }

  static void Draw(ByteSource& bytes, v1::FirstDraw* draw) {
    draw->set_choice(bytes.Number32());
    draw->set_prompt_tokens(bytes.Number32());
    draw->set_min_new_tokens(bytes.Number32());
    for (size_t n = bytes.Below(4); n > 0; --n) draw->add_stop_token_ids(bytes.Signed32());
    if (bytes.Flip()) return;
    v1::SamplingParams& s = *draw->mutable_sampling();
    s.set_temperature(Float(bytes));
    s.set_top_p(Float(bytes));
    s.set_top_k(bytes.Signed32());
    s.set_num_logprobs(bytes.Signed32());
    s.set_repetition_penalty(Float(bytes));
    for (size_t n = bytes.Below(3); n > 0; --n)
      (*s.mutable_logit_bias())[bytes.Signed32()] = Float(bytes);
  }
  static float Float(ByteSource& bytes) {
    const uint32_t bits = bytes.Number32();
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  void Pull(ByteSource& bytes, v1::PrefixSource* pull) const {
    pull->mutable_holder()->set_worker_id(bytes.Flip() ? name_ : "p0");
    pull->mutable_holder()->set_kv_address(bytes.Flip() ? "nowhere" : "p0");
    pull->set_tokens(bytes.Number32());
    pull->set_begin_within_us(static_cast<int64_t>(bytes.Number()));
    pull->set_limit_us(static_cast<int64_t>(bytes.Number()));
  }

  void Grant(ByteSource& bytes) {
    v1::DecodeToPrefill message;
    v1::Grant& grant = *message.mutable_grant();
    uint64_t transfer = Transfer(bytes);
    if (!asked_.empty() && bytes.Below(4) != 3) {
      auto it = asked_.begin();
      std::advance(it, static_cast<ptrdiff_t>(bytes.Below(std::min<size_t>(asked_.size(), 256))));
      transfer = *it;
    }
    grant.set_transfer_id(transfer);
    grant.set_epoch(AnEpoch(bytes));
    grant.set_first_token(bytes.Flip()   ? 0
                          : bytes.Flip() ? static_cast<uint32_t>(bytes.Below(8)) *
                                               static_cast<uint32_t>(layout_.block_tokens)
                                         : bytes.Number32());
    const auto first = static_cast<int32_t>(bytes.Below(kPoolBlocks));
    for (int32_t n = static_cast<int32_t>(bytes.Below(10)), i = 0; i < n; ++i)
      grant.add_blocks((first + i) % kPoolBlocks);
    if (bytes.Below(8) == 7) grant.add_blocks(bytes.Signed32());
    grant.set_lease_ms(bytes.Flip() ? 1000 : static_cast<int64_t>(bytes.Number()));
    auto& blocks = granted_[grant.epoch()];
    blocks.insert(grant.blocks().begin(), grant.blocks().end());
    Allow(grant.epoch());
    Send(std::move(message));
  }

  void Allow(uint64_t epoch) {
    std::vector<BlockCopy> allowed;
    // With another shape: somewhere in the pool.
    if (misshaped_) {
      allowed.push_back({0, 0, pool_.size()});
      return transport_.AllowEpoch(Epoch(epoch), allowed);
    }
    KvLayout layout = layout_;
    layout.num_blocks = kPoolBlocks;
    for (const int32_t block : granted_.at(epoch)) {
      if (block < 0 || block >= kPoolBlocks) continue;
      for (int32_t layer = 0; layer < layout.num_layers; ++layer)
        allowed.push_back({0, layout.Offset(layer, BlockId(block)), layout.LayerBlockBytes()});
    }
    transport_.AllowEpoch(Epoch(epoch), allowed);
  }
  void Fenced(uint64_t epoch) {
    // An epoch that was granted again since is awaited again.
    if (granted_.erase(epoch) == 0) return;
    transport_.RevokeEpoch(Epoch(epoch));
  }

  void Refuse(ByteSource& bytes) {
    v1::DecodeToPrefill message;
    message.mutable_refused()->set_transfer_id(Transfer(bytes));
    message.mutable_refused()->set_retry_after_ms(static_cast<int64_t>(bytes.Number()));
    Send(std::move(message));
  }
  void Cancel(ByteSource& bytes) {
    v1::DecodeToPrefill message;
    message.mutable_cancel()->set_transfer_id(Transfer(bytes));
    Send(std::move(message));
  }
  void Revoke(ByteSource& bytes) {
    v1::DecodeToPrefill message;
    message.mutable_revoke()->set_epoch(bytes.Flip() ? space_ | last_epoch_ : AnEpoch(bytes));
    Send(std::move(message));
  }
  void Shared(ByteSource& bytes) {
    v1::DecodeToPrefill message;
    const uint64_t id = bytes.Below(8) == 7 ? bytes.Number() : bytes.Below(6);
    if (bytes.Below(4) == 3) {
      message.mutable_drop_prompt()->set_prompt_id(id);
    } else {
      message.mutable_shared_prompt()->set_prompt_id(id);
      for (size_t n = bytes.Below(60); n > 0; --n)
        message.mutable_shared_prompt()->add_tokens(static_cast<int32_t>(n));
      if (bytes.Below(8) == 7) message.mutable_shared_prompt()->add_tokens(bytes.Signed32());
    }
    Send(std::move(message));
  }
  // Any bytes as messages. Greetings and grants are made above, where the pool tracks them.
  void Bytes(ByteSource& bytes) {
    v1::DecodeToPrefill message;
    if (!message.ParseFromString(std::string(bytes.Text(200)))) message.Clear();
    if (message.has_hello() || message.has_grant() || message.prefill().has_grant()) return;
    Send(std::move(message));
  }

  RoleRig* const rig_;
  const std::string name_;
  const uint64_t space_;
  const KvLayout layout_;
  std::vector<std::byte> pool_;
  ManualTransport transport_;
  Inbox inbox_;
  KvLinksInMemory::Dialer dialer_;
  LinkId link_;
  bool up_ = false, misshaped_ = false;
  uint64_t last_epoch_ = 0;
  std::set<uint64_t> asked_;
  std::map<uint64_t, std::set<int32_t>> granted_;  // by epoch, not fenced yet
};

class Play {
 public:
  explicit Play(std::string_view input) : bytes_(input), rig_(Options()) {
    rig_.Attach();
    for (size_t i = 0; i < kReaders; ++i)
      readers_.push_back(std::make_unique<HostileReader>(&rig_, i));
  }

  void Run() {
    for (int i = 0; i < kMaxTurns && !bytes_.spent(); ++i) Turn();
    RigPrefill& p = *rig_.prefills[0];
    p.paused = p.transport->hold = false;
    p.transport->queue_limit = SIZE_MAX;
    p.transport->fail_next_write = {};
    for (const auto& reader : readers_) reader->HangUp();
    rig_.tick = milliseconds(20);
    // Longer than the lease of a running request, and than the longest wait.
    for (int i = 0; i < 200; ++i) Step();
    AISP_CHECK(p.prefill->num_transfers() == 0 && p.prefill->num_pushes() == 0);
    rig_.tick = milliseconds(1);
    const std::vector<TokenId> prompt = MakePrompt(70, 9);
    rig_.router->Generate("d", rig_.MakeRequest(1, prompt, 4));
    rig_.ExpectAnswer(1, prompt, 4);
    rig_.RunFor(seconds(1));
    rig_.ExpectAllBlocksBack();
    AISP_CHECK(!testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed());
  }

 private:
  static RigOptions Options() {
    RigOptions options;
    options.owner_copies = true;
    options.mixed_precision = true;
    return options;
  }

  void Step() {
    rig_.Turn();
    for (const auto& reader : readers_) reader->Hear();
    rig_.clock.Advance(rig_.tick);
  }

  void Turn() {
    RigPrefill& p = *rig_.prefills[0];
    switch (bytes_.Below(16)) {
      case 0:
        p.transport->hold = bytes_.Flip();
        return;
      case 1:
        p.transport->queue_limit = bytes_.Flip() ? SIZE_MAX : bytes_.Below(4);
        return;
      case 2:
        if (bytes_.Flip()) p.transport->fail_next_write = Unavailable("the pool is gone");
        return p.transport->Land(bytes_.Below(4));
      case 3:
        return rig_.clock.Advance(milliseconds(bytes_.Below(256) * 8));
      case 4:
        if (bytes_.Below(8) == 7) rig_.kv_links.BreakAll();
        return;
      case 5:
      case 6:
      case 7:
      case 8:
        for (size_t n = 1 + bytes_.Below(12); n > 0; --n) Step();
        return;
      default:
        readers_[bytes_.Below(kReaders)]->Act(bytes_);
    }
  }

  ByteSource bytes_;
  RoleRig rig_;
  std::vector<std::unique_ptr<HostileReader>> readers_;
};

}  // namespace

void FuzzOne(std::string_view input) { Play(input).Run(); }

}  // namespace aisp
