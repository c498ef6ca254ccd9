// The owner of a pool with writers that send anything: greetings, headers, copies and payloads that
// a grammar makes of the input's bytes, cut anywhere. No byte lands outside the granted ranges,
// none after the epoch was revoked, and an honest writer is served afterwards.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "common/check.h"
#include "common/strings.h"
#include "kvcache/transport/tcp_owner.h"
#include "kvcache/transport/tcp_socket.h"
#include "tests/fuzz/await_readable.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

constexpr size_t kPool = 16 << 10;
constexpr uint64_t kBegin = 4096, kSize = 4096;  // what epoch 1 may write
constexpr Duration kPatience = std::chrono::seconds(10);

struct Owner {
  std::vector<std::byte> pool = std::vector<std::byte>(kPool);
  std::unique_ptr<TcpOwner> owner;
  Owner() {
    KvRegion region;
    region.base = pool.data();
    region.bytes = pool.size();
    owner = std::move(*TcpOwner::Start(region, {}));
  }
};

template <typename T>
void Append(const T& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

uint64_t Offset(ByteSource& bytes) {
  switch (bytes.Below(4)) {
    case 0:
      return kBegin + bytes.Below(256) * 16;
    case 1:
      return bytes.Number();
    case 2:
      return kBegin + kSize - bytes.Below(32);
    default:
      return kBegin;
  }
}

void AppendWrite(ByteSource& bytes, std::string* out) {
  TcpWriteHeader header;
  if (bytes.Below(16) == 15) header.magic = bytes.Number32();
  header.flags = bytes.Flip() ? 0 : bytes.Number32();
  header.id = bytes.Number();
  header.epoch = bytes.Below(8) == 7 ? bytes.Number() : 1;
  std::vector<TcpCopy> copies(bytes.Below(5));
  for (TcpCopy& copy : copies)
    copy = {Offset(bytes), bytes.Below(8) == 7 ? bytes.Number() : bytes.Below(256) * 8};
  for (const TcpCopy& copy : copies) header.payload_bytes += copy.bytes;
  header.copies = static_cast<uint32_t>(copies.size());
  if (bytes.Below(8) == 7) header.copies = bytes.Number32();
  if (bytes.Below(8) == 7) header.payload_bytes = bytes.Number();
  header.checksum = bytes.Number();
  header.more = static_cast<uint32_t>(header.checksum);
  Append(header, out);
  for (const TcpCopy& copy : copies) Append(copy, out);
  // As much as was announced, if that is little, or a part of it.
  size_t payload = static_cast<size_t>(std::min<uint64_t>(header.payload_bytes, 4096));
  if (bytes.Below(8) == 7) payload /= 2;
  out->append(payload, '\xff');
  if ((header.flags & kTcpChecksumBehind) != 0) Append(header.checksum, out);
}

}  // namespace

void FuzzOne(std::string_view input) {
  static Owner& o = *new Owner;
  ByteSource bytes(input);
  std::fill(o.pool.begin(), o.pool.end(), std::byte{0});
  const BlockCopy allowed{0, kBegin, kSize};
  o.owner->Allow(Epoch(1), {&allowed, 1});
  auto socket = ConnectTcp("127.0.0.1", o.owner->port(), kPatience);
  AISP_CHECK(socket);
  TcpHello hello;
  hello.cookie = o.owner->cookie();
  if (bytes.Below(16) == 15) hello.magic = bytes.Number();
  if (bytes.Below(16) == 15) hello.cookie.lo ^= bytes.Number();
  std::string out;
  Append(hello, &out);
  while (!bytes.spent() && out.size() < (1 << 20)) {
    if (bytes.Below(16) == 15) {
      out += bytes.Text(64);
    } else {
      AppendWrite(bytes, &out);
    }
  }
  // The owner may have closed the connection by then.
  (void)send(socket->get(), out.data(), out.size(), MSG_NOSIGNAL);
  shutdown(socket->get(), SHUT_WR);
  // The owner's last message, or its end: nothing of this connection is in flight any more.
  char answer[4096];
  for (;;) {
    AISP_CHECK(AwaitReadable(socket->get(), 10'000));
    if (recv(socket->get(), answer, sizeof(answer), 0) <= 0) break;
  }
  o.owner->Revoke(Epoch(1));
  for (size_t i = 0; i < kPool; ++i)
    AISP_CHECK((i >= kBegin && i < kBegin + kSize) || o.pool[i] == std::byte{0});
}

}  // namespace aisp
