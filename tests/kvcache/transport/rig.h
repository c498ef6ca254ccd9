// Shared by the transport tests: transports of every kind over small pools, waiting for
// completions, child processes.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvcache/transport/cuda_ipc.h"
#include "kvcache/transport/inproc.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/shm.h"
#include "kvcache/transport/tcp.h"
#include "kvcache/transport/ucx_open.h"

namespace aisp {

// kCudaIpc, kTcpDevice and kUcxDevice (tcp and ucx with a pool in device memory) run over the CPU's
// Device here: their own code is the same for any device. kUcxWire: ucx as between hosts.
enum class Lane { kInproc, kShm, kCudaIpc, kTcp, kTcpDevice, kUcx, kUcxWire, kUcxDevice };
std::string LaneName(Lane lane);
// Empty, or why this build lacks the transport.
std::string WhyNot(Lane lane);
// Those that this build has.
std::vector<Lane> Built(std::vector<Lane> lanes);

// Long enough for a busy machine under a sanitizer; a passing test never waits that long.
inline constexpr Duration kPatience = std::chrono::seconds(20);

// One side: a pool and a transport over it.
class Side {
 public:
  struct Options {
    size_t pool_bytes = 1 << 20;
    size_t max_writes = 4096;
    Duration stall_timeout = std::chrono::seconds(10);
    bool checksum = true;
  };
  Side(Lane lane, InprocHub* hub, const Options& options);
  Side(Lane lane, InprocHub* hub) : Side(lane, hub, Options()) {}
  ~Side();

  KvTransport& transport() { return *transport_; }
  std::span<std::byte> pool() const { return {region_.base, region_.bytes}; }
  void Fill(uint64_t seed);
  void FillWith(std::byte value);

  // Waits for `count` completions, in their order; fails the test if they do not arrive.
  std::vector<WriteCompletion> Await(size_t count);
  // Stops being an owner and a writer; the pool stays.
  void Close() { transport_.reset(); }

 private:
  KvRegion MakePool(Lane lane, size_t bytes);

  std::unique_ptr<Device> device_;
  Buffer buffer_;                     // of kCudaIpc and the Device ones
  std::unique_ptr<SharedPool> pool_;  // of the others
  const KvRegion region_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
  std::unique_ptr<KvTransport> transport_;
};

// A child process that runs `body` and exits with its result, and a pipe each way. It must be
// forked before this process has started threads. Killed and reaped by the destructor.
class Child {
 public:
  class Pipe {
   public:
    Pipe(int read_fd, int write_fd) : read_fd_(read_fd), write_fd_(write_fd) {}
    void Send(const std::string& text);
    std::string Receive();  // empty at end of file
   private:
    int read_fd_;
    int write_fd_;
  };
  explicit Child(const std::function<int(Pipe&)>& body);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  Pipe& pipe() { return *pipe_; }
  void Signal(int signal);
  // Sends SIGSTOP and waits until the process has stopped.
  void Stop();
  // Waits for its end; returns its exit code, or minus the signal.
  int Join();

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::vector<UniqueFd> fds_;
  std::unique_ptr<Pipe> pipe_;
};

}  // namespace aisp
