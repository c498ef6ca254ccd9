#include "net/local_links.h"

#include <atomic>
#include <map>
#include <mutex>

#include "common/check.h"
#include "net/link_inbox.h"

namespace aisp {
namespace {

template <typename ToServer, typename ToClient>
struct LocalLink;
template <typename ToServer, typename ToClient>
using Wire = std::shared_ptr<LocalLink<ToServer, ToClient>>;

// One link; both ends use the same id.
template <typename ToServer, typename ToClient>
struct LocalLink {
  LinkId id;
  std::shared_ptr<LinkInbox<ToServer, Wire<ToServer, ToClient>>> server;
  std::shared_ptr<LinkInbox<ToClient, Wire<ToServer, ToClient>>> client;
  std::atomic<bool> ended{false};
  // Messages sent and not yet consumed by the handler.
  std::atomic<size_t> queued_to_server{0};
  std::atomic<size_t> queued_to_client{0};
};

Error PeerClosed() { return {Code::kUnavailable, "the peer closed the link"}; }

// All links of one kind.
template <typename ToServer, typename ToClient>
struct LocalSwitch {
  using Link = LocalLink<ToServer, ToClient>;
  using ServerInbox = LinkInbox<ToServer, std::shared_ptr<Link>>;
  using ClientInbox = LinkInbox<ToClient, std::shared_ptr<Link>>;

  explicit LocalSwitch(size_t bound) : max_queued_messages(bound) {}

  // Moves `message` to the other end; above the bound the link goes down on both ends.
  template <typename Out, typename PeerInbox, typename OwnInbox>
  void Send(const std::shared_ptr<Link>& link, std::atomic<size_t> Link::*queued,
            const std::shared_ptr<PeerInbox>& peer, const std::shared_ptr<OwnInbox>& own,
            Out message) {
    if (link->ended.load()) return;
    if (((*link).*queued).fetch_add(1) < max_queued_messages) {
      peer->Message(link->id, std::make_shared<Out>(std::move(message)),
                    [link, queued] { ((*link).*queued).fetch_sub(1); });
      return;
    }
    if (link->ended.exchange(true)) return;
    const Error why{Code::kResourceExhausted,
                    "the link was closed: " + std::to_string(max_queued_messages) +
                        " messages were waiting for a reader that does not take them"};
    peer->Down(link->id, why);
    own->Down(link->id, why);
  }

  // Messages that begin a request may use half of the queue, so those that end one always fit.
  Status RoomFor(size_t queued) const {
    if (queued < max_queued_messages / 2) return {};
    return ResourceExhausted("the peer does not read: " + std::to_string(queued) +
                             " messages were waiting for it (limit " +
                             std::to_string(max_queued_messages / 2) + ")");
  }

  const size_t max_queued_messages;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<ServerInbox>> served;
  uint64_t next_id = 1;
};

template <typename ToServer, typename ToClient>
class LocalServer final : public LinkSender<ToClient> {
 public:
  using Switch = LocalSwitch<ToServer, ToClient>;
  using Link = typename Switch::Link;

  LocalServer(std::shared_ptr<Switch> hub, std::string address, LinkHandler<ToServer>* handler,
              Poster post)
      : hub_(std::move(hub)),
        address_(std::move(address)),
        inbox_(std::make_shared<typename Switch::ServerInbox>(handler, std::move(post))) {
    const std::lock_guard lock(hub_->mutex);
    const bool added = hub_->served.emplace(address_, inbox_).second;
    AISP_CHECK_MSG(added, "address is already served in this process: " + address_);
  }
  ~LocalServer() override {
    {
      const std::lock_guard lock(hub_->mutex);
      hub_->served.erase(address_);
    }
    for (const auto& link : inbox_->Stop()) {
      if (!link->ended.exchange(true)) link->client->Down(link->id, PeerClosed());
    }
  }

  void Send(LinkId id, ToClient message) override {
    const auto link = inbox_->Find(id);
    if (!link) return;
    hub_->Send(link, &Link::queued_to_client, link->client, link->server, std::move(message));
  }
  Status Offer(LinkId id, ToClient message) override {
    const auto link = inbox_->Find(id);
    if (link) AISP_RETURN_IF_ERROR(hub_->RoomFor(link->queued_to_client.load()));
    Send(id, std::move(message));
    return {};
  }
  void Close(LinkId id) override {
    const auto link = inbox_->Forget(id);
    if (link && !link->ended.exchange(true)) link->client->Down(id, PeerClosed());
  }

 private:
  const std::shared_ptr<Switch> hub_;
  const std::string address_;
  const std::shared_ptr<typename Switch::ServerInbox> inbox_;
};

template <typename ToServer, typename ToClient>
class LocalDialer final : public LinkDialer<ToServer> {
 public:
  using Switch = LocalSwitch<ToServer, ToClient>;
  using Link = typename Switch::Link;

  LocalDialer(std::shared_ptr<Switch> hub, LinkHandler<ToClient>* handler, Poster post)
      : hub_(std::move(hub)),
        inbox_(std::make_shared<typename Switch::ClientInbox>(handler, std::move(post))) {}
  ~LocalDialer() override {
    for (const auto& link : inbox_->Stop()) {
      if (!link->ended.exchange(true)) link->server->Down(link->id, PeerClosed());
    }
  }

  LinkId Dial(const std::string& address) override {
    auto link = std::make_shared<Link>();
    link->client = inbox_;
    {
      const std::lock_guard lock(hub_->mutex);
      link->id = LinkId(hub_->next_id++);
      const auto found = hub_->served.find(address);
      if (found != hub_->served.end()) link->server = found->second;
    }
    const LinkId id = link->id;
    inbox_->Expect(id, link);
    if (link->server && link->server->Accept(id, "local", link)) {
      inbox_->Up(id, address);
    } else {
      link->ended = true;
      inbox_->Down(id, Error{Code::kUnavailable, "nobody in this process serves " + address});
    }
    return id;
  }

  void Send(LinkId id, ToServer message) override {
    const auto link = inbox_->Find(id);
    if (!link || !link->server) return;
    hub_->Send(link, &Link::queued_to_server, link->server, link->client, std::move(message));
  }
  Status Offer(LinkId id, ToServer message) override {
    const auto link = inbox_->Find(id);
    if (link) AISP_RETURN_IF_ERROR(hub_->RoomFor(link->queued_to_server.load()));
    Send(id, std::move(message));
    return {};
  }
  void Close(LinkId id) override {
    const auto link = inbox_->Forget(id);
    if (link && !link->ended.exchange(true)) link->server->Down(id, PeerClosed());
  }

 private:
  const std::shared_ptr<Switch> hub_;
  const std::shared_ptr<typename Switch::ClientInbox> inbox_;
};

using RouterSwitch = LocalSwitch<v1::WorkerMessage, v1::RouterMessage>;
using KvSwitch = LocalSwitch<v1::DecodeToPrefill, v1::PrefillToDecode>;
using RouterServer = LocalServer<v1::WorkerMessage, v1::RouterMessage>;
using KvServer = LocalServer<v1::DecodeToPrefill, v1::PrefillToDecode>;

}  // namespace

struct LocalHub::Impl {
  explicit Impl(size_t bound)
      : router(std::make_shared<RouterSwitch>(bound)), kv(std::make_shared<KvSwitch>(bound)) {}

  const std::shared_ptr<RouterSwitch> router;
  const std::shared_ptr<KvSwitch> kv;
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<RouterServer>> router_servers;
  std::map<std::string, std::unique_ptr<KvServer>> kv_servers;
};

LocalHub::LocalHub(size_t max_queued_messages)
    : impl_(std::make_shared<Impl>(max_queued_messages)) {}

LocalHub::~LocalHub() = default;

LinkSender<v1::RouterMessage>* LocalHub::ServeRouterControl(const std::string& address,
                                                            LinkHandler<v1::WorkerMessage>* handler,
                                                            Poster post) {
  auto server = std::make_unique<RouterServer>(impl_->router, address, handler, std::move(post));
  const std::lock_guard lock(impl_->mutex);
  return (impl_->router_servers[address] = std::move(server)).get();
}

LinkSender<v1::PrefillToDecode>* LocalHub::ServeKvPeer(const std::string& address,
                                                       LinkHandler<v1::DecodeToPrefill>* handler,
                                                       Poster post) {
  auto server = std::make_unique<KvServer>(impl_->kv, address, handler, std::move(post));
  const std::lock_guard lock(impl_->mutex);
  return (impl_->kv_servers[address] = std::move(server)).get();
}

void LocalHub::StopServing(LinkKind kind, const std::string& address) {
  const std::lock_guard lock(impl_->mutex);
  if (kind == LinkKind::kRouterControl) {
    impl_->router_servers.erase(address);
  } else {
    impl_->kv_servers.erase(address);
  }
}

std::unique_ptr<LinkDialer<v1::WorkerMessage>> LocalHub::MakeRouterDialer(
    LinkHandler<v1::RouterMessage>* handler, Poster post) {
  return std::make_unique<LocalDialer<v1::WorkerMessage, v1::RouterMessage>>(impl_->router, handler,
                                                                             std::move(post));
}

std::unique_ptr<LinkDialer<v1::DecodeToPrefill>> LocalHub::MakeKvPeerDialer(
    LinkHandler<v1::PrefillToDecode>* handler, Poster post) {
  return std::make_unique<LocalDialer<v1::DecodeToPrefill, v1::PrefillToDecode>>(impl_->kv, handler,
                                                                                 std::move(post));
}

}  // namespace aisp
