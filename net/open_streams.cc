#include "net/open_streams.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <charconv>
#include <functional>
#include <optional>

#include "net/connection_bytes.h"

namespace aisp {
namespace {

// Far above the server's limit of connections.
constexpr intptr_t kAllSockets = 1 << 20;

std::string TakeText(char* text) {
  std::string taken = text == nullptr ? "" : text;
  gpr_free(text);
  return taken;
}

// channelz writes 64-bit numbers as strings: "name":"123".
std::optional<int64_t> Number(std::string_view json, std::string_view name) {
  const std::string key = "\"" + std::string(name) + "\":\"";
  const size_t at = json.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  int64_t number = 0;
  const char* begin = json.data() + at + key.size();
  if (std::from_chars(begin, json.data() + json.size(), number).ec != std::errc())
    return std::nullopt;
  return number;
}

// Calls `use` for each part of `json` from `name` up to its next occurrence.
void ForEach(std::string_view json, std::string_view name,
             const std::function<void(std::string_view)>& use) {
  size_t at = json.find(name);
  while (at != std::string_view::npos) {
    const size_t next = json.find(name, at + name.size());
    use(json.substr(at, next - at));
    at = next;
  }
}

}  // namespace

uint64_t OpenStreams::InSocket(std::string_view json) {
  const int64_t open = Number(json, "streamsStarted").value_or(0) -
                       Number(json, "streamsSucceeded").value_or(0) -
                       Number(json, "streamsFailed").value_or(0);
  return open > 0 ? static_cast<uint64_t>(open) : 0;
}

void OpenStreams::List() {
  sockets_.clear();
  ForEach(TakeText(grpc_channelz_get_servers(0)), "\"serverId\"", [this](std::string_view server) {
    const auto id = Number(server, "serverId");
    if (!id) return;
    const std::string all = TakeText(grpc_channelz_get_server_sockets(*id, 0, kAllSockets));
    ForEach(all, "\"socketId\"", [this](std::string_view socket) {
      constexpr std::string_view kName = "\"name\":\"";
      const auto socket_id = Number(socket, "socketId");
      const size_t at = socket.find(kName);
      if (!socket_id || at == std::string_view::npos) return;
      // Format: "chttp2 ipv4:192.0.2.7:5000"
      const std::string_view name = socket.substr(at + kName.size());
      const std::string_view text = name.substr(0, name.find('"'));
      const std::string key = PeerKey(std::string(text.substr(text.rfind(' ') + 1)));
      if (!key.empty()) sockets_[key] = *socket_id;
    });
  });
}

uint64_t OpenStreams::Of(const std::string& key) {
  for (const bool listed : {false, true}) {
    if (listed) List();
    const auto socket = sockets_.find(key);
    if (socket == sockets_.end()) continue;
    const std::string json = TakeText(grpc_channelz_get_socket(socket->second));
    if (!json.empty()) return InSocket(json);
  }
  return 0;
}

}  // namespace aisp
