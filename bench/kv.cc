#include "bench/kv.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>

#include "bench/kv_measure.h"
#include "common/clock.h"
#include "common/random.h"
#include "common/strings.h"
#include "kernels/cuda/load.h"
#include "kvcache/transport/cuda_ipc.h"
#include "kvcache/transport/shm.h"
#include "kvcache/transport/tcp.h"
#include "kvcache/transport/tcp_socket.h"
#include "kvcache/transport/ucx_open.h"

extern char** environ;

namespace aisp {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{512} << 20;
constexpr uint64_t kGpuPoolBytes = uint64_t{2} << 30;
constexpr Epoch kEpoch{1};
constexpr Duration kPatience = std::chrono::seconds(10);
constexpr Duration kAllTurns = std::chrono::seconds(3);
constexpr size_t kLeastTurns = 5;
// Without a reference: one turn.
constexpr Duration kAloneTurn = std::chrono::milliseconds(400);
constexpr const char* kSocket = "socket";
// With the checksums that `tcp` has between machines, and not within one.
constexpr const char* kCheckedTcp = "tcp-check";
constexpr const char* kMemcpy = "memcpy";
constexpr const char* kPeerCopy = "peer copy";

// 256 KiB: one layer of 64 tokens of Llama-3.1-8B; 16 of them a layer, 512 all layers of 1,024
// tokens.
constexpr KvWriteShape kShapes[] = {{64 << 10, 1},   {64 << 10, 16},   {256 << 10, 1},
                                    {256 << 10, 16}, {256 << 10, 512}, {1 << 20, 16}};
// The last: 8,192 tokens.
constexpr KvWriteShape kGpuShapes[] = {
    {64 << 10, 16}, {256 << 10, 1}, {256 << 10, 16}, {256 << 10, 512}, {256 << 10, 4096}};

std::span<const KvWriteShape> ShapesOf(const KvBenchOptions& options) {
  if (!options.shapes.empty()) return options.shapes;
  if (options.gpus.empty()) return kShapes;
  return kGpuShapes;
}
uint64_t PoolBytesOf(const KvBenchOptions& options) {
  return options.gpus.empty() ? kPoolBytes : kGpuPoolBytes;
}

// A pool in host memory or in GPU memory.
class BenchPool {
 public:
  static Result<BenchPool> Open(uint64_t bytes, int32_t gpu, std::span<const std::string> folders) {
    BenchPool pool;
    if (gpu < 0) {
      AISP_ASSIGN_OR_RETURN(SharedPool host, SharedPool::Create(bytes));
      pool.host_.emplace(std::move(host));
      return pool;
    }
    CudaBackendOptions options;
    options.index = gpu;
    options.max_rows = 16;
    options.max_sequences = 1;
    AISP_ASSIGN_OR_RETURN(pool.gpu_, OpenCudaBackend(options, folders));
    AISP_ASSIGN_OR_RETURN(pool.device_, pool.gpu_.device->Allocate(bytes, MemoryKind::kShareable));
    return pool;
  }

  KvRegion region() const {
    if (gpu_.device == nullptr) return host_->region();
    return {static_cast<std::byte*>(device_.data()), device_.bytes(), -1, gpu_.device.get(),
            &device_};
  }
  Status FillRandomly() const {
    const KvRegion all = region();
    std::vector<std::byte> noise(std::min<size_t>(all.bytes, size_t{64} << 20));
    SplitMix64 random(1);
    for (size_t i = 0; i + 8 <= noise.size(); i += 8) {
      const uint64_t word = random.Next();
      std::memcpy(&noise[i], &word, sizeof(word));
    }
    std::unique_ptr<Stream> stream;
    if (all.device != nullptr) {
      AISP_ASSIGN_OR_RETURN(stream, all.device->CreateStream());
    }
    for (size_t at = 0; at < all.bytes; at += noise.size()) {
      const size_t bytes = std::min(noise.size(), all.bytes - at);
      if (stream == nullptr) {
        std::memcpy(all.base + at, noise.data(), bytes);
        continue;
      }
      AISP_RETURN_IF_ERROR(all.device->Copy(all.base + at, noise.data(), bytes, *stream));
      AISP_RETURN_IF_ERROR(all.device->Synchronize(*stream));
    }
    return {};
  }

 private:
  std::optional<SharedPool> host_;
  CudaBackend gpu_;
  Buffer device_;
};

Result<std::unique_ptr<KvTransport>> MakeLane(const std::string& lane,
                                              std::span<const std::string> folders) {
  if (lane == "shm") return std::make_unique<ShmTransport>(ShmTransport::Options());
  if (lane == "tcp" || lane == kCheckedTcp) {
    TcpTransport::Options tcp;
    if (lane == kCheckedTcp) tcp.checksums = TcpChecksums::kAll;
    return std::make_unique<TcpTransport>(tcp);
  }
  if (lane == "cuda_ipc") return std::make_unique<CudaIpcTransport>(CudaIpcTransport::Options());
  return OpenUcxTransport(UcxOptions(), folders);
}

constexpr std::string_view kLanes[] = {"shm", "ucx", "tcp", kCheckedTcp, "cuda_ipc"};

// Before anything is measured: the others would take their time first.
Status CheckLanes(std::span<const std::string> lanes) {
  for (const std::string& lane : lanes) {
    if (std::ranges::find(kLanes, lane) != std::end(kLanes)) continue;
    return InvalidArgument(
        fmt::format("'{}' is no lane; known: shm, ucx, tcp, tcp-check, cuda_ipc", Excerpt(lane)));
  }
  return {};
}

// ---- The owner's process ----

void WaitForEndOfInput() {
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

// Receives writes over one plain connection: a length, the bytes, and one byte back. They cover the
// whole pool, as a lane's do: data that stays in a cache would be faster.
Status ServeSocket(std::span<std::byte> pool) {
  AISP_ASSIGN_OR_RETURN(const UniqueFd listen, ListenTcp("127.0.0.1", 0));
  AISP_ASSIGN_OR_RETURN(const uint16_t port, LocalPort(listen.get()));
  fmt::print("{}\n", port);
  std::fflush(stdout);
  fcntl(listen.get(), F_SETFL, 0);
  const UniqueFd peer(accept(listen.get(), nullptr, nullptr));
  TuneTcp(peer.get(), kPatience);
  uint64_t bytes = 0;
  uint64_t at = 0;
  while (recv(peer.get(), &bytes, sizeof(bytes), MSG_WAITALL) == sizeof(bytes) &&
         bytes <= pool.size()) {
    if (at + bytes > pool.size()) at = 0;
    const ssize_t got = recv(peer.get(), pool.data() + at, bytes, MSG_WAITALL);
    if (got != static_cast<ssize_t>(bytes)) break;
    at += bytes;
    if (send(peer.get(), "a", 1, MSG_NOSIGNAL) != 1) break;
  }
  return {};
}

}  // namespace

Status ServeKvBench(const std::string& lane, uint64_t bytes, int32_t gpu,
                    std::span<const std::string> library_folders) {
  if (lane != kSocket) AISP_RETURN_IF_ERROR(CheckLanes({&lane, 1}));
  AISP_ASSIGN_OR_RETURN(const BenchPool pool, BenchPool::Open(bytes, gpu, library_folders));
  const KvRegion region = pool.region();
  if (gpu < 0) std::memset(region.base, 1, region.bytes);
  if (lane == kSocket) return ServeSocket({region.base, region.bytes});
  AISP_ASSIGN_OR_RETURN(const std::unique_ptr<KvTransport> owner, MakeLane(lane, library_folders));
  AISP_RETURN_IF_ERROR(owner->Register(region));
  AISP_ASSIGN_OR_RETURN(const std::string descriptor, owner->Descriptor());
  const BlockCopy all{0, 0, bytes};
  owner->AllowEpoch(kEpoch, {&all, 1});
  fmt::print("{}\n", descriptor);
  std::fflush(stdout);
  WaitForEndOfInput();
  return {};
}

namespace {

class OwnerProcess {
 public:
  static Result<std::unique_ptr<OwnerProcess>> Start(const KvBenchOptions& options,
                                                     const std::string& lane) {
    std::vector<std::string> arguments = options.owner;
    arguments.push_back(lane);
    arguments.push_back(std::to_string(PoolBytesOf(options)));
    arguments.push_back(options.gpus.empty() ? "host" : std::to_string(options.gpus.back()));
    std::vector<char*> args;
    args.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) args.push_back(argument.data());
    args.push_back(nullptr);
    int down[2];
    int up[2];
    if (pipe2(down, O_CLOEXEC) != 0) return Unavailable("no pipe");
    UniqueFd down_read(down[0]);
    UniqueFd down_write(down[1]);
    if (pipe2(up, O_CLOEXEC) != 0) return Unavailable("no pipe");
    UniqueFd up_read(up[0]);
    const UniqueFd up_write(up[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down_read.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, up_write.get(), STDOUT_FILENO);
    pid_t pid = -1;
    const int error = posix_spawn(&pid, args[0], &actions, nullptr, args.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return Unavailable(fmt::format("{}: {}", args[0], std::strerror(error)));
    return std::unique_ptr<OwnerProcess>(
        new OwnerProcess(pid, std::move(down_write), std::move(up_read)));
  }
  ~OwnerProcess() {
    input_.Reset();
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  // The pool's descriptor; an error if the process ended before.
  Result<std::string> Descriptor() {
    std::string line;
    char byte = 0;
    while (read(output_.get(), &byte, 1) == 1) {
      if (byte == '\n') return line;
      line += byte;
    }
    return Unavailable("the lane's owner did not start");
  }

 private:
  OwnerProcess(pid_t pid, UniqueFd input, UniqueFd output)
      : pid_(pid), input_(std::move(input)), output_(std::move(output)) {}
  const pid_t pid_;
  UniqueFd input_;
  UniqueFd output_;
};

// ---- The writer ----

// One plain connection.
class BareSocket {
 public:
  static Result<std::unique_ptr<BareSocket>> Open(const KvBenchOptions& options,
                                                  const BenchPool& pool) {
    AISP_ASSIGN_OR_RETURN(auto owner, OwnerProcess::Start(options, kSocket));
    AISP_ASSIGN_OR_RETURN(const std::string port, owner->Descriptor());
    AISP_ASSIGN_OR_RETURN(const int64_t number, ParseIntInRange(port, 1, 65535));
    AISP_ASSIGN_OR_RETURN(UniqueFd socket,
                          ConnectTcp("127.0.0.1", static_cast<uint16_t>(number), kPatience));
    fcntl(socket.get(), F_SETFL, 0);
    TuneTcp(socket.get(), kPatience);
    return std::unique_ptr<BareSocket>(
        new BareSocket(std::move(owner), std::move(socket), pool.region()));
  }
  Result<KvBenchRow> Row(const KvWriteShape& shape) {
    const uint64_t bytes = shape.block_bytes * shape.blocks;
    KvPump pump;
    pump.owner = owner_->pid();
    pump.start = [&](size_t) -> Status {
      const Instant deadline = SteadyClock().Now() + kPatience;
      if (at_ + bytes > source_.bytes) at_ = 0;
      // MSG_MORE: sent with the following bytes, not as a packet of its own.
      if (send(socket_.get(), &bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_MORE) != sizeof(bytes))
        return Unavailable("the bare socket's other end is gone");
      const std::span<const std::byte> sent(source_.base + at_, bytes);
      at_ += bytes;
      return SendAll(socket_.get(), sent, deadline);
    };
    pump.ended = [&]() -> Result<size_t> {
      std::array<char, kKvUnderWay> acks;
      const ssize_t n = recv(socket_.get(), acks.data(), acks.size(), 0);
      if (n <= 0) return Unavailable("the bare socket's other end is gone");
      return static_cast<size_t>(n);
    };
    return MeasureKv(kSocket, shape, pump);
  }

 private:
  BareSocket(std::unique_ptr<OwnerProcess> owner, UniqueFd socket, const KvRegion& source)
      : owner_(std::move(owner)), socket_(std::move(socket)), source_(source) {}

  const std::unique_ptr<OwnerProcess> owner_;
  const UniqueFd socket_;
  const KvRegion source_;
  uint64_t at_ = 0;
};

// One thread copies between two pools like those of a lane.
class Memcpy {
 public:
  static Result<std::unique_ptr<Memcpy>> Open(const BenchPool& pool) {
    AISP_ASSIGN_OR_RETURN(SharedPool target, SharedPool::Create(kPoolBytes));
    std::memset(target.region().base, 1, kPoolBytes);
    return std::unique_ptr<Memcpy>(new Memcpy(std::move(target), pool.region()));
  }
  Result<KvBenchRow> Row(const KvWriteShape& shape) const {
    const KvScatter scatter(shape, kPoolBytes);
    const KvRegion target = target_.region();
    size_t done = 0;
    KvPump pump;
    pump.start = [&](size_t round) -> Status {
      for (const BlockCopy& copy : scatter.Copies(round))
        std::memcpy(target.base + copy.dst_offset, source_.base + copy.src_offset, copy.bytes);
      ++done;
      return {};
    };
    pump.ended = [&]() -> Result<size_t> { return std::exchange(done, 0); };
    return MeasureKv(kMemcpy, shape, pump);
  }

 private:
  Memcpy(SharedPool target, const KvRegion& source) : target_(std::move(target)), source_(source) {}
  const SharedPool target_;
  const KvRegion source_;
};

// The reference, measured in turns with a lane so that other load affects both.
using Beside = std::function<Result<KvBenchRow>(const KvWriteShape& shape)>;

// The same bytes in one piece: what the copy engine and the link give.
Result<KvBenchRow> PeerCopy(KvTransport& writer, KvPeerId peer, const KvWriteShape& shape,
                            KvPump pump) {
  const uint64_t bytes = shape.block_bytes * shape.blocks;
  pump.start = [&writer, peer, bytes](size_t round) -> Status {
    const uint64_t at = round % (kGpuPoolBytes / bytes) * bytes;
    const BlockCopy whole{at, at, bytes};
    AISP_RETURN_IF_ERROR(writer.Write(peer, {&whole, 1}, kEpoch));
    return {};
  };
  return MeasureKv(kPeerCopy, shape, pump);
}

void Compare(const KvBenchRow& beside, KvBenchRow* row) {
  double KvBenchRow::*of = beside.lane == kSocket     ? &KvBenchRow::of_socket
                           : beside.lane == kPeerCopy ? &KvBenchRow::of_peer
                                                      : &KvBenchRow::of_memcpy;
  row->*of = row->gb_per_s / beside.gb_per_s;
  row->by_cpu = beside.cpu_us_per_mib / row->cpu_us_per_mib;
}

// Turns of `beside` and of the lane, at least as long as all turns may take.
Status BenchShape(const std::string& lane, const KvWriteShape& shape, const KvPump& pump,
                  const Beside& beside, std::vector<KvBenchRow>* rows) {
  std::vector<KvBenchRow> bare;
  std::vector<KvBenchRow> ours;
  if (!beside) {
    AISP_ASSIGN_OR_RETURN(KvBenchRow row, MeasureKv(lane, shape, pump, kAloneTurn));
    ours.push_back(std::move(row));
  }
  const SteadyClock clock;
  for (const Instant begin = clock.Now();
       beside && (clock.Now() - begin < kAllTurns || ours.size() < kLeastTurns);) {
    AISP_ASSIGN_OR_RETURN(bare.emplace_back(), beside(shape));
    AISP_ASSIGN_OR_RETURN(ours.emplace_back(), MeasureKv(lane, shape, pump));
    Compare(bare.back(), &ours.back());
  }
  if (!bare.empty()) rows->push_back(MediansOf(std::move(bare)));
  rows->push_back(MediansOf(std::move(ours)));
  return {};
}

Status BenchLane(const KvBenchOptions& options, const std::string& lane, const BenchPool& pool,
                 const Beside& beside, std::vector<KvBenchRow>* rows) {
  AISP_ASSIGN_OR_RETURN(const std::unique_ptr<KvTransport> writer,
                        MakeLane(lane, options.library_folders));
  AISP_ASSIGN_OR_RETURN(const auto owner, OwnerProcess::Start(options, lane));
  AISP_ASSIGN_OR_RETURN(const std::string descriptor, owner->Descriptor());
  AISP_RETURN_IF_ERROR(writer->Register(pool.region()));
  AISP_ASSIGN_OR_RETURN(const Waker waker, Waker::Create());
  writer->SetWaker([&waker] { waker.Wake(); });
  AISP_ASSIGN_OR_RETURN(const KvPeerId peer, writer->Connect(descriptor, kPatience));
  for (const KvWriteShape& shape : ShapesOf(options)) {
    const KvScatter scatter(shape, PoolBytesOf(options));
    KvPump pump;
    pump.owner = owner->pid();
    pump.start = [&](size_t round) -> Status {
      AISP_RETURN_IF_ERROR(writer->Write(peer, scatter.Copies(round), kEpoch));
      return {};
    };
    pump.ended = [&]() -> Result<size_t> {
      std::array<WriteCompletion, kKvUnderWay> done;
      size_t n = 0;
      while ((n = writer->Poll(done)) == 0) {
        if (!waker.Wait(kPatience)) return Unavailable("a write did not complete");
      }
      for (size_t i = 0; i < n; ++i) AISP_RETURN_IF_ERROR(done[i].status);
      return n;
    };
    const Beside peer_copy = [&](const KvWriteShape& of) {
      return PeerCopy(*writer, peer, of, pump);
    };
    const bool between_gpus = lane == "cuda_ipc";
    AISP_RETURN_IF_ERROR(BenchShape(lane, shape, pump, between_gpus ? peer_copy : beside, rows));
  }
  writer->Disconnect(peer);
  return {};
}

}  // namespace

Result<KvBench> BenchKv(const KvBenchOptions& options) {
  AISP_RETURN_IF_ERROR(CheckLanes(options.lanes));
  const bool host = options.gpus.empty();
  AISP_ASSIGN_OR_RETURN(const BenchPool pool,
                        BenchPool::Open(PoolBytesOf(options), host ? -1 : options.gpus.front(),
                                        options.library_folders));
  AISP_RETURN_IF_ERROR(pool.FillRandomly());
  KvBench bench;
  std::unique_ptr<Memcpy> memory;
  std::unique_ptr<BareSocket> bare;
  if (host) {
    AISP_ASSIGN_OR_RETURN(memory, Memcpy::Open(pool));
    AISP_ASSIGN_OR_RETURN(bare, BareSocket::Open(options, pool));
  }
  for (const std::string& lane : options.lanes) {
    Beside beside;
    if (host && lane.starts_with("tcp")) {
      beside = [&bare](const KvWriteShape& shape) { return bare->Row(shape); };
    } else if (host) {
      beside = [&memory](const KvWriteShape& shape) { return memory->Row(shape); };
    }
    if (const Status done = BenchLane(options, lane, pool, beside, &bench.rows); !done)
      bench.left_out.push_back(lane + ": " + done.error().message);
  }
  return bench;
}

}  // namespace aisp
