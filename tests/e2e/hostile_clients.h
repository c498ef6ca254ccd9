// HostileCrowd: hostile clients, each kind on its own thread and with its own address (127.0.0.2),
// in addition to a test's honest ones. They check each answer against what the server promises for
// such a request. Their pace is bounded: the tests measure what a request costs the server, not how
// two cores are shared with a client that spins.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace aisp::e2e {

struct HostileTarget {
  std::string http;          // host:port
  std::string key;           // a valid key, of the hostile tenant
  std::string beyond_token;  // text of a token that has no embedding
  int context = 0;           // tokens
};

class HostileCrowd {
 public:
  explicit HostileCrowd(HostileTarget target);
  ~HostileCrowd();
  HostileCrowd(const HostileCrowd&) = delete;
  HostileCrowd& operator=(const HostileCrowd&) = delete;

  // Stops all kinds and closes their connections. Idempotent.
  void Stop();
  // How many attacks each kind has made.
  std::map<std::string, int> counts() const;
  // Answers that break a promise, one line each; at most a hundred.
  std::vector<std::string> failures() const;

 private:
  class Connection;
  using Kind = void (HostileCrowd::*)(const std::string& name);

  void Start(const std::string& name, Kind kind);
  // False when the crowd ends, after at most `pause`.
  bool Pause(std::chrono::milliseconds pause);
  bool Stopped() const;
  void Count(const std::string& name);
  void Fail(const std::string& what);
  // Sends a whole request and reads its whole answer; returns the status, 0 if the connection ended
  // without one.
  int Ask(const std::string& path, const std::string& body, bool with_key = true);
  // Sends it, counts it, and fails unless the status is one of `allowed` or a refusal (429, 503).
  void Expect(const std::string& name, const std::string& path, const std::string& body,
              const std::vector<int>& allowed);

  // Repeats `turn` until the crowd stops.
  void AnnounceBodies(const std::string& name);
  void TrickleHeads(const std::string& name);
  void TrickleBodies(const std::string& name);
  void ReadSlowly(const std::string& name);
  void NeverRead(const std::string& name);
  void Smuggle(const std::string& name);
  void SendPoison(const std::string& name);
  void AskManyChoices(const std::string& name);
  void SendLongPrompts(const std::string& name);
  void FloodTokenize(const std::string& name);
  void ConnectALot(const std::string& name);
  void Abandon(const std::string& name);
  void NestDeeply(const std::string& name);

  const HostileTarget target_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::map<std::string, int> counts_;
  std::vector<std::string> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace aisp::e2e
