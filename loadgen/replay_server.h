// A server that computes nothing: it answers OpenAI's streamed requests with made-up tokens at a
// given pace, or at the pace of a recorded run. A load client can measure itself against it, and a
// test knows the expected measurements.
//
// Loop thread only. The loop must outlive the server. Bounds: those of HttpServer; a stream whose
// client reads slowly waits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "net/io_loop.h"

namespace aisp::loadgen {

struct ReplayOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: a free one
  double ttft_ms = 0;
  double tpot_ms = 0;
  int64_t chunk_tokens = 1;  // tokens per event
  int64_t max_streams = 0;   // concurrent answers, others wait; 0: unlimited
  int64_t cut_after = 0;     // cut the connection after so many tokens; 0: never
};

// Times of an answer's events: the first after ttft_ms, each next after its gap.
struct ReplayTiming {
  double ttft_ms = 0;
  std::vector<double> gaps_ms;
};

// From the completed requests of a --save-detailed result, in its order.
Result<std::vector<ReplayTiming>> ReadRecording(const std::string& json);

struct ReplayCounts {
  int64_t requests = 0;
  int64_t tokens = 0;
  int64_t gone = 0;  // clients that left before the end
};

class ReplayServer {
 public:
  // With a recording, the n-th request is answered like its n-th, cyclically.
  ReplayServer(IoLoop* loop, const ReplayOptions& options, std::vector<ReplayTiming> recording);
  ~ReplayServer();
  Status Start();
  uint16_t port() const;
  ReplayCounts counts() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// The relevant fields of a request, parsed without a tree; for tests.
struct ReplayRequest {
  bool stream = false;
  int64_t max_tokens = 16;
  int64_t prompt_tokens = 0;  // ids or words
};
ReplayRequest ReadReplayRequest(const std::string& body);

// Serves until SIGINT or SIGTERM, then prints what it did and the CPU time used.
Status ServeReplay(const ReplayOptions& options, const std::string& recording_path);

}  // namespace aisp::loadgen
