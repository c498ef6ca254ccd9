// What blocks cost: bookkeeping in the BlockManager, and moving them between two processes over
// each transport.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/report.h"
#include "common/check.h"
#include "common/clock.h"
#include "kvcache/block_manager.h"
#include "kvcache/transport/inproc.h"
#include "kvcache/transport/shm.h"
#include "kvcache/transport/tcp.h"

namespace aisp {
namespace {

// ---- Bookkeeping ----

constexpr int32_t kBlocks = 128;

struct Costs {
  Duration reserve{}, publish{}, unpin{}, match{};
};

// Sequences of 128 blocks through a full pool, so that every reservation evicts.
void BenchBlockManager() {
  BlockManager::Options options;
  options.layout = {
      .num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .block_tokens = 16, .num_blocks = 65536};
  BlockManager manager(options);
  const SteadyClock clock;
  const Hash128 root{1, 2};
  std::vector<TokenId> tokens(kBlocks * 16);
  constexpr int kWarm = 1000, kRounds = 5000;
  Costs costs;
  for (int round = 0; round < kWarm + kRounds; ++round) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<TokenId>(static_cast<size_t>(round) * 7 + i);
    if (round == kWarm) costs = {};
    const Instant t0 = clock.Now();
    const std::vector<BlockId> blocks = manager.Reserve(kBlocks)->Take(PinKind::kSequence);
    const Instant t1 = clock.Now();
    manager.Publish(root, tokens, blocks, 0);
    const Instant t2 = clock.Now();
    manager.Unpin(blocks, PinKind::kSequence);
    const Instant t3 = clock.Now();
    const std::vector<BlockId> match = manager.MatchAndPin(root, tokens, INT32_MAX);
    const Instant t4 = clock.Now();
    AISP_CHECK(match.size() == kBlocks);
    manager.Unpin(match, PinKind::kSequence);
    uint64_t first = 0;
    manager.TakeEvents(&first);
    costs.reserve += t1 - t0;
    costs.publish += t2 - t1;
    costs.unpin += t3 - t2;
    costs.match += t4 - t3;
  }
  const auto report = [](const char* what, Duration total) {
    ReportBench(fmt::format("blocks/{}_128", what), static_cast<double>(total.count()) / kRounds,
                "ns");
  };
  report("reserve_evicting", costs.reserve);
  report("publish", costs.publish);
  report("unpin", costs.unpin);
  report("match", costs.match);
}

// ---- Transports ----

constexpr size_t kPoolBytes = 256 << 20;
constexpr Epoch kEpoch{1};
constexpr Duration kPatience = std::chrono::seconds(10);

std::unique_ptr<KvTransport> Make(const std::string& lane, bool checksum) {
  if (lane == "shm") return std::make_unique<ShmTransport>(ShmTransport::Options());
  TcpTransport::Options options;
  options.checksum = checksum;
  return std::make_unique<TcpTransport>(options);
}

std::string Offer(KvTransport& owner, const SharedPool& pool) {
  std::memset(pool.region().base, 0, pool.region().bytes);
  AISP_CHECK(owner.Register(pool.region()).has_value());
  std::string descriptor = *owner.Descriptor();
  const BlockCopy all{0, 0, kPoolBytes};
  owner.AllowEpoch(kEpoch, {&all, 1});
  return descriptor;
}

// Another process that owns a pool until its input ends.
class OwnerProcess {
 public:
  explicit OwnerProcess(const std::string& lane) {
    int down[2], up[2];
    AISP_CHECK(pipe(down) == 0 && pipe(up) == 0);
    child_ = fork();
    AISP_CHECK(child_ >= 0);
    if (child_ == 0) {
      close(down[1]);
      const SharedPool pool = std::move(*SharedPool::Create(kPoolBytes));
      const auto owner = Make(lane, false);
      const std::string descriptor = Offer(*owner, pool);
      char end = 0;
      AISP_CHECK(write(up[1], descriptor.data(), descriptor.size()) ==
                 static_cast<ssize_t>(descriptor.size()));
      _exit(read(down[0], &end, 1) == 0 ? 0 : 1);
    }
    close(down[0]);
    close(up[1]);
    input_.Reset(down[1]);
    std::array<char, 256> text;
    const ssize_t n = read(up[0], text.data(), text.size());
    close(up[0]);
    AISP_CHECK(n > 0);
    descriptor_.assign(text.data(), static_cast<size_t>(n));
  }
  ~OwnerProcess() {
    input_.Reset();
    waitpid(child_, nullptr, 0);
  }
  const std::string& descriptor() const { return descriptor_; }

 private:
  pid_t child_ = -1;
  UniqueFd input_;
  std::string descriptor_;
};

// Writes of `bytes` each over the whole pool, `depth` under way.
Duration Stream(KvTransport& writer, KvPeerId peer, size_t bytes, size_t count, size_t depth) {
  const SteadyClock clock;
  const Instant begin = clock.Now();
  size_t started = 0, finished = 0;
  std::array<WriteCompletion, 64> done;
  while (finished < count) {
    while (started < count && started - finished < depth) {
      const uint64_t offset = started * bytes % kPoolBytes;
      const BlockCopy copy{offset, offset, bytes};
      AISP_CHECK(writer.Write(peer, {&copy, 1}, kEpoch).has_value());
      ++started;
    }
    writer.Progress();
    const size_t n = writer.Poll(done);
    for (size_t i = 0; i < n; ++i) AISP_CHECK(done[i].status.has_value());
    finished += n;
    if (n == 0) sched_yield();
  }
  return clock.Now() - begin;
}

void BenchWriter(const std::string& name, KvTransport& writer, const std::string& descriptor) {
  const SharedPool pool = std::move(*SharedPool::Create(kPoolBytes));
  std::memset(pool.region().base, 1, kPoolBytes);
  AISP_CHECK(writer.Register(pool.region()).has_value());
  auto reached = writer.Reach(descriptor, kPatience);
  AISP_CHECK(reached.has_value());
  ReportBench(name + "/measured", *(*reached)->Measure(kPatience) * 1e-9, "GB/s");
  const KvPeerId peer = writer.Add(std::move(*reached));
  Stream(writer, peer, 1 << 20, kPoolBytes >> 20, 16);  // pages mapped, windows open
  for (const size_t kib : {64, 256, 1024}) {
    const size_t bytes = kib << 10;
    const size_t count = 4 * kPoolBytes / bytes;
    const Duration taken = Stream(writer, peer, bytes, count, 16);
    ReportBench(fmt::format("{}/stream_{}KiB", name, kib),
                static_cast<double>(count * bytes) / ToSeconds(taken) * 1e-9, "GB/s");
  }
  constexpr size_t kPings = 2000;
  ReportBench(name + "/one_64KiB", ToMs(Stream(writer, peer, 64 << 10, kPings, 1)) * 1e3 / kPings,
              "us");
}

void BenchTransports() {
  for (const auto& [name, lane, checksum] :
       {std::tuple{"shm", "shm", false}, std::tuple{"tcp", "tcp", false},
        std::tuple{"tcp_checksum", "tcp", true}}) {
    const OwnerProcess owner(lane);
    const auto writer = Make(lane, checksum);
    BenchWriter(name, *writer, owner.descriptor());
  }
  InprocHub hub;
  const SharedPool pool = std::move(*SharedPool::Create(kPoolBytes));
  InprocTransport owner(&hub, InprocTransport::Options());
  const std::string descriptor = Offer(owner, pool);
  InprocTransport writer(&hub, InprocTransport::Options());
  BenchWriter("inproc", writer, descriptor);
}

}  // namespace
}  // namespace aisp

int main() {
  aisp::BenchTransports();  // it forks: before anything else starts threads
  aisp::BenchBlockManager();
  return 0;
}
