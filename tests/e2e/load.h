// StoryLoad: clients that request recorded stories one after the other, on kept-alive connections
// like real clients, and compare every answer with the recording. For tests of changes that clients
// must not notice.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/client.h"

namespace aisp::e2e {

class StoryLoad {
 public:
  // `streams` threads, each with one stream at a time, until Stop.
  StoryLoad(std::string address, int streams);
  ~StoryLoad();

  // Lets the running answers finish. Idempotent.
  void Stop();
  int completed() const { return completed_; }
  // The errors, one line each; empty if all is well.
  std::vector<std::string> failures() const;

 private:
  void RunClient(int number);
  std::string AskOnce(std::unique_ptr<HttpClient>* client, const Recorded& story, int number);

  const std::string address_;
  const std::vector<Recorded> stories_;
  std::atomic<bool> stop_{false};
  std::atomic<int> completed_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace aisp::e2e
