// How a pool's UCX port handles strangers, and writers that violate the protocol.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/random.h"
#include "common/strings.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/pool_listener.h"
#include "kvcache/transport/pool_memory.h"
#include "kvcache/transport/tcp_socket.h"
#include "kvcache/ucx/address.h"
#include "kvcache/ucx/library.h"
#include "kvcache/ucx/wire.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

constexpr size_t kPayload = 256 << 10;

class UcxStrangers : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNot(Lane::kUcx); !why.empty()) GTEST_SKIP() << why;
    owner_ = std::make_unique<Side>(Lane::kUcx, nullptr,
                                    Side::Options{.stall_timeout = std::chrono::minutes(10)});
    descriptor_ = *owner_->transport().Descriptor();
    const BlockCopy all{0, 0, owner_->pool().size()};
    owner_->transport().AllowEpoch(Epoch(1), {&all, 1});
  }
  std::string address() const { return std::string(Split(descriptor_, ' ')[1]); }
  uint16_t port() const { return static_cast<uint16_t>(*ParseInt(Split(descriptor_, ' ')[2])); }
  Hash128 cookie() const { return *ParseCookie(Split(descriptor_, ' ')[3]); }

  void ExpectWrites() const {
    Side writer(Lane::kUcx, nullptr);
    const auto peer = writer.transport().Connect(descriptor_, kPatience);
    ASSERT_TRUE(peer.has_value()) << peer.error().message;
    const BlockCopy copy{0, 0, 4096};
    ASSERT_TRUE(writer.transport().Write(*peer, {&copy, 1}, Epoch(1)).has_value());
    EXPECT_TRUE(writer.Await(1).at(0).status.has_value());
  }

  std::unique_ptr<Side> owner_;
  std::string descriptor_;
};

// A writer that sends arbitrary messages.
class HostileWriter {
 public:
  HostileWriter(const std::string& address, uint16_t port)
      : worker_(std::move(*ucx::Worker::Open())), address_(*ucx::ParseAddress(address, port)) {
    Count(ucx::kHelloReply, &replies_);
    Count(ucx::kAck, &acks_);
    Count(ucx::kLanded, &landed_);
    Count(ucx::kMemoryReply, &memory_replies_);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = address_.ucs();
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {
        [](void* self, ucp_ep_h, ucs_status_t) { static_cast<HostileWriter*>(self)->cut_ = true; },
        this};
    EXPECT_EQ(ucp_ep_create(worker_->get(), &params, &endpoint_), UCS_OK);
  }
  ~HostileWriter() {
    worker_->Close(endpoint_);
    Await([this] { return worker_->closing() == 0 && sending_ == 0; });
  }

  void Greet(const Hash128& cookie) {
    EXPECT_TRUE(ucx::Send(endpoint_, ucx::kHello, ucx::Hello{.cookie = cookie}).has_value());
  }
  // Sends `header` with a payload by rendezvous; does not wait for completion.
  template <typename Header>
  void SendPayload(unsigned id, const Header& header) {
    struct Held {
      Header header;
      HostileWriter* self;
    };
    auto held = std::make_unique<Held>(Held{header, this});
    ucp_request_param_t param{};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = ucx::kWithReply | UCP_AM_SEND_FLAG_RNDV;
    param.user_data = held.get();
    param.cb.send = [](void* request, ucs_status_t, void* data) {
      const std::unique_ptr<Held> ended(static_cast<Held*>(data));
      --ended->self->sending_;
      ucp_request_free(request);
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, id, &held->header, sizeof(Header),
                                               payload_.data(), payload_.size(), &param);
    if (!UCS_PTR_IS_PTR(request)) return;
    ++sending_;
    std::ignore = held.release();
  }
  template <typename Condition>
  bool Await(Condition condition) {
    const Instant until = SteadyClock().Now() + kPatience;
    while (!condition()) {
      worker_->Progress();
      if (SteadyClock().Now() > until) return false;
    }
    return true;
  }
  bool AwaitGreeted() {
    return Await([this] { return replies_ > 0; });
  }
  bool AwaitCut() {
    return Await([this] { return cut_; });
  }
  bool AwaitMemoryReply() {
    return Await([this] { return memory_replies_ > 0; });
  }
  void SayWhereMemoryIs(const std::string& descriptor) {
    ucx::Memory memory;
    std::ranges::copy(descriptor, memory.descriptor.begin());
    EXPECT_TRUE(ucx::Send(endpoint_, ucx::kMemory, memory).has_value());
  }
  void SendBatch(const std::vector<ucx::Range>& ranges, uint32_t count) {
    const ucx::Batch batch{.write = 1, .epoch = 1, .count = count};
    EXPECT_TRUE(ucx::SendSmall(endpoint_, ucx::kBatch, &batch, sizeof(batch),
                               std::as_bytes(std::span(ranges)))
                    .has_value());
  }
  int acks() const { return acks_; }
  int landed() const { return landed_; }

 private:
  void Count(unsigned id, int* count) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = id;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    param.cb = [](void* counter, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
      ++*static_cast<int*>(counter);
      return UCS_OK;
    };
    param.arg = count;
    EXPECT_EQ(ucp_worker_set_am_recv_handler(worker_->get(), &param), UCS_OK);
  }

  const std::unique_ptr<ucx::Worker> worker_;
  const ucx::SocketAddress address_;
  const std::vector<std::byte> payload_ = std::vector<std::byte>(kPayload);
  ucp_ep_h endpoint_ = nullptr;
  int replies_ = 0;
  int acks_ = 0;
  int landed_ = 0;
  int memory_replies_ = 0;
  int sending_ = 0;
  bool cut_ = false;
};

// Bytes of another protocol, and idle connections.
TEST_F(UcxStrangers, GarbageHarmsNobody) {
  std::vector<UniqueFd> crowd;
  SplitMix64 random(7);
  const Instant until = SteadyClock().Now() + kPatience;
  for (size_t i = 0; i < 60; ++i) {
    auto socket = ConnectTcp(address(), port(), kPatience);
    ASSERT_TRUE(socket.has_value()) << socket.error().message;
    std::vector<std::byte> bytes(random.Below(i < 30 ? 64 : 70'000));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
    // It may be closed before all is sent.
    static_cast<void>(SendAll(socket->get(), bytes, until));
    if (i % 2 == 0) crowd.push_back(std::move(*socket));
  }
  ExpectWrites();
}

TEST_F(UcxStrangers, WhoShowsNoCookieWritesNothing) {
  HostileWriter stranger(address(), port());
  stranger.SendPayload(ucx::kPiece, ucx::Piece{.write = 1,
                                               .epoch = 1,
                                               .offset = 0,
                                               .bytes = kPayload,
                                               .checksum = 0,
                                               .pieces = 1,
                                               .checksummed = 0});
  EXPECT_TRUE(stranger.AwaitCut());
  EXPECT_EQ(stranger.acks(), 0);
  ExpectWrites();
}

TEST_F(UcxStrangers, MorePiecesThanAWriteHasAreCut) {
  HostileWriter writer(address(), port());
  writer.Greet(cookie());
  ASSERT_TRUE(writer.AwaitGreeted());
  for (int i = 0; i < 8; ++i) {
    writer.SendPayload(ucx::kPiece, ucx::Piece{.write = 1,
                                               .epoch = 1,
                                               .offset = 0,
                                               .bytes = kPayload,
                                               .checksum = 0,
                                               .pieces = 1,
                                               .checksummed = 0});
  }
  // Writes that begin after the previous one has ended are independent.
  EXPECT_TRUE(writer.AwaitCut());
  ExpectWrites();
}

TEST_F(UcxStrangers, AWriterThatGreetsAgainIsCut) {
  HostileWriter writer(address(), port());
  writer.Greet(cookie());
  ASSERT_TRUE(writer.AwaitGreeted());
  writer.Greet(Hash128());
  EXPECT_TRUE(writer.AwaitCut());
  ExpectWrites();
}

// ---- A pool that the owner maps ----

// A writer's pool, as announced to the owner.
class Memfd {
 public:
  explicit Memfd(bool sealed) : fd_(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(fd_.get(), kPayload), 0);
    if (sealed) {
      EXPECT_TRUE(SealPool(fd_.get()).has_value());
    }
    PoolOffer offer;
    offer.lane = "ucx-memory1";
    offer.cookie = NewCookie();
    offer.reply.pool_bytes = kPayload;
    offer.pool_fd = offer.scratch_fd = fd_.get();
    listener_ = std::move(*PoolListener::Start(offer, 8));
  }
  const std::string& descriptor() const { return listener_->descriptor(); }

 private:
  const UniqueFd fd_;
  std::unique_ptr<PoolListener> listener_;
};

TEST_F(UcxStrangers, BatchesThatLeaveTheWritersPoolAreCut) {
  const ucx::Range good{0, 0, 4096, 0};
  const std::vector<std::vector<ucx::Range>> batches = {
      {good, {kPayload - 1, 0, 2, 0}},
      {{kPayload + 1, 0, 1, 0}},
      {{~uint64_t{0}, 0, 2, 0}},
      {{0, 0, ~uint64_t{0}, 0}},
      {{0, 0, 0, 0}},
      std::vector<ucx::Range>(ucx::kMostRanges + 1, good),
      {}};
  for (const std::vector<ucx::Range>& ranges : batches) {
    const Memfd memory(true);
    HostileWriter writer(address(), port());
    writer.Greet(cookie());
    ASSERT_TRUE(writer.AwaitGreeted());
    writer.SayWhereMemoryIs(memory.descriptor());
    ASSERT_TRUE(writer.AwaitMemoryReply());
    writer.SendBatch({good}, 1);
    EXPECT_TRUE(writer.Await([&] { return writer.landed() == 1; }));
    writer.SendBatch(ranges, static_cast<uint32_t>(ranges.size()));
    EXPECT_TRUE(writer.AwaitCut());
    EXPECT_EQ(writer.landed(), 1);
  }
  ExpectWrites();
}

TEST_F(UcxStrangers, ABatchOfAnotherLengthThanItsCountIsCut) {
  const Memfd memory(true);
  HostileWriter writer(address(), port());
  writer.Greet(cookie());
  ASSERT_TRUE(writer.AwaitGreeted());
  writer.SayWhereMemoryIs(memory.descriptor());
  ASSERT_TRUE(writer.AwaitMemoryReply());
  writer.SendBatch({{0, 0, 4096, 0}}, 2);
  EXPECT_TRUE(writer.AwaitCut());
  ExpectWrites();
}

// Its owner could shrink it under the mapping, which would crash this process.
TEST_F(UcxStrangers, MemoryThatIsNotSealedIsNotMapped) {
  const Memfd memory(false);
  HostileWriter writer(address(), port());
  writer.Greet(cookie());
  ASSERT_TRUE(writer.AwaitGreeted());
  writer.SayWhereMemoryIs(memory.descriptor());
  ASSERT_TRUE(writer.AwaitMemoryReply());
  writer.SendBatch({{0, 0, 4096, 0}}, 1);
  EXPECT_TRUE(writer.AwaitCut());
  EXPECT_EQ(writer.landed(), 0);
  ExpectWrites();
}

TEST_F(UcxStrangers, MemoryIsMappedForWhoHasGreetedAndOnce) {
  const Memfd memory(true);
  HostileWriter stranger(address(), port());
  stranger.SayWhereMemoryIs(memory.descriptor());
  EXPECT_TRUE(stranger.AwaitCut());
  HostileWriter writer(address(), port());
  writer.Greet(cookie());
  ASSERT_TRUE(writer.AwaitGreeted());
  writer.SayWhereMemoryIs(std::string(112, 'x'));
  ASSERT_TRUE(writer.AwaitMemoryReply());
  writer.SayWhereMemoryIs(memory.descriptor());
  EXPECT_TRUE(writer.AwaitCut());
  ExpectWrites();
}

}  // namespace
}  // namespace aisp
