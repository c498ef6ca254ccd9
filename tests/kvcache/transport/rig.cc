#include "tests/kvcache/transport/rig.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "common/check.h"
#include "common/random.h"
#include "kernels/cpu/cpu_device.h"

namespace aisp {

std::string LaneName(Lane lane) {
  switch (lane) {
    case Lane::kInproc:
      return "Inproc";
    case Lane::kShm:
      return "Shm";
    case Lane::kCudaIpc:
      return "CudaIpc";
    case Lane::kTcp:
      return "Tcp";
    case Lane::kTcpDevice:
      return "TcpDevice";
    case Lane::kUcx:
      return "Ucx";
    case Lane::kUcxWire:
      return "UcxWire";
    case Lane::kUcxDevice:
      return "UcxDevice";
  }
  return "";
}

std::string WhyNot(Lane lane) {
  if (lane != Lane::kUcx && lane != Lane::kUcxWire && lane != Lane::kUcxDevice) return {};
  const std::string folder = std::string(AISP_BINARY_DIR) + "/lib";
  const bool built = std::filesystem::exists(folder + "/libaisp_ucx.so");
  return built ? "" : "libaisp_ucx.so was not built: UCX's headers are not there";
}

std::vector<Lane> Built(std::vector<Lane> lanes) {
  std::erase_if(lanes, [](Lane lane) { return !WhyNot(lane).empty(); });
  return lanes;
}

namespace {

std::unique_ptr<KvTransport> MakeTransport(Lane lane, InprocHub* hub,
                                           const Side::Options& options) {
  switch (lane) {
    case Lane::kInproc:
      return std::make_unique<InprocTransport>(
          hub, InprocTransport::Options{.max_writes = options.max_writes});
    case Lane::kShm:
      return std::make_unique<ShmTransport>(
          ShmTransport::Options{.max_writes = options.max_writes, .max_writers = 8});
    case Lane::kCudaIpc:
      return std::make_unique<CudaIpcTransport>(CudaIpcTransport::Options{
          .max_writes = options.max_writes, .max_writers = 8, .scratch_bytes = 1 << 20});
    case Lane::kTcp:
    case Lane::kTcpDevice: {
      TcpTransport::Options tcp;
      tcp.max_writes = options.max_writes;
      tcp.max_writers = 8;
      tcp.stall_timeout = options.stall_timeout;
      tcp.checksums = options.checksum ? TcpChecksums::kAll : TcpChecksums::kNone;
      return std::make_unique<TcpTransport>(tcp);
    }
    case Lane::kUcx:
    case Lane::kUcxWire:
    case Lane::kUcxDevice: {
      UcxOptions ucx;
      ucx.max_writes = options.max_writes;
      ucx.max_writers = 8;
      ucx.stall_timeout = options.stall_timeout;
      ucx.checksum = options.checksum;
      ucx.map_memory = lane == Lane::kUcx;
      const std::string folders[] = {std::string(AISP_BINARY_DIR) + "/lib"};
      auto transport = OpenUcxTransport(ucx, folders);
      AISP_CHECK(transport.has_value());
      return std::move(*transport);
    }
  }
  return nullptr;
}

}  // namespace

Side::Side(Lane lane, InprocHub* hub, const Options& options)
    : region_(MakePool(lane, options.pool_bytes)), transport_(MakeTransport(lane, hub, options)) {
  AISP_CHECK(transport_->Register(region_).has_value());
  transport_->SetWaker([this] {
    std::lock_guard lock(mutex_);
    wake_ = true;
    woken_.notify_one();
  });
}

Side::~Side() { Close(); }

KvRegion Side::MakePool(Lane lane, size_t bytes) {
  if (lane == Lane::kCudaIpc || lane == Lane::kTcpDevice || lane == Lane::kUcxDevice) {
    device_ = MakeCpuDevice();
    buffer_ = std::move(*device_->Allocate(bytes, MemoryKind::kShareable));
    return {static_cast<std::byte*>(buffer_.data()), bytes, -1, device_.get(), &buffer_};
  }
  pool_ = std::make_unique<SharedPool>(std::move(*SharedPool::Create(bytes)));
  return pool_->region();
}

void Side::Fill(uint64_t seed) {
  SplitMix64 random(seed);
  for (size_t i = 0; i + 8 <= pool().size(); i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(pool().data() + i, &word, 8);
  }
}

void Side::FillWith(std::byte value) {
  std::memset(pool().data(), static_cast<int>(value), pool().size());
}

std::vector<WriteCompletion> Side::Await(size_t count) {
  std::vector<WriteCompletion> done;
  std::array<WriteCompletion, 16> batch;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (done.size() < count) {
    transport_->Progress();
    const size_t n =
        transport_->Poll(std::span(batch).first(std::min(batch.size(), count - done.size())));
    for (size_t i = 0; i < n; ++i) done.push_back(std::move(batch[i]));
    if (n > 0) continue;
    std::unique_lock lock(mutex_);
    if (!woken_.wait_until(lock, deadline, [this] { return wake_; })) {
      ADD_FAILURE() << done.size() << " of " << count << " writes completed in time";
      return done;
    }
    wake_ = false;
  }
  return done;
}

void Child::Pipe::Send(const std::string& text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  AISP_CHECK(write(write_fd_, &size, sizeof(size)) == sizeof(size));
  AISP_CHECK(write(write_fd_, text.data(), size) == static_cast<ssize_t>(size));
}

std::string Child::Pipe::Receive() {
  uint32_t size = 0;
  if (read(read_fd_, &size, sizeof(size)) != sizeof(size)) return {};
  std::string text(size, 0);
  AISP_CHECK(read(read_fd_, text.data(), size) == static_cast<ssize_t>(size));
  return text;
}

Child::Child(const std::function<int(Pipe&)>& body) {
  int down[2];
  int up[2];
  AISP_CHECK(::pipe(down) == 0 && ::pipe(up) == 0);
  const pid_t parent = getpid();
  pid_ = fork();
  AISP_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(99);
    close(down[1]);
    close(up[0]);
    Pipe ends(down[0], up[1]);
    _exit(body(ends));
  }
  close(down[0]);
  close(up[1]);
  fds_.emplace_back(down[1]);
  fds_.emplace_back(up[0]);
  pipe_ = std::make_unique<Pipe>(up[0], down[1]);
}

Child::~Child() {
  if (reaped_) return;
  kill(pid_, SIGKILL);
  Join();
}

void Child::Signal(int signal) { AISP_CHECK(kill(pid_, signal) == 0); }

void Child::Stop() {
  Signal(SIGSTOP);
  int status = 0;
  AISP_CHECK(waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status));
}

int Child::Join() {
  int status = 0;
  AISP_CHECK(waitpid(pid_, &status, 0) == pid_);
  reaped_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace aisp
