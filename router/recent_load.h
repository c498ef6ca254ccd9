// RecentLoad: what arrives at present: requests per second, and the mean request. It averages over
// the time since the load last changed. History is cut where the rates before and after differ by
// more than chance: the likelihood ratio of two Poisson rates to one, over windows of doubling size
// (ADWIN; Bifet and Gavalda, 2007). So chance is averaged out while the load is steady, and a
// change shows within a few requests.
//
// Plain values. The router's thread.
#pragma once

#include <vector>

#include "common/clock.h"

namespace aisp {

struct MeanRequest {
  double delay_ms = 0;       // by which its prompt delays each stream beside it
  double beside = 0;         // streams beside it: on its decode worker
  double running = 0;        // and on all decode workers
  double more = 0;           // requests that its decode worker has more than the mean one
  double answer_tokens = 0;  // expected
  double prompt_tokens = 0;
};

class RecentLoad {
 public:
  struct Load {
    double per_s = 0;
    // Of one request: by how much it delays any stream of the cluster on average. Prompts mostly go
    // where few streams run, so this is less than its delay / decode workers.
    double delay_ms = 0;
    double more = 0;
    double answer_tokens = 0;
    double prompt_tokens = 0;
  };

  void Add(Instant now, const MeanRequest& request);
  Load Of(double decode_workers) const;

 private:
  // Sums over consecutive requests. `s`: the time to each of them from the one before.
  struct Part {
    double requests = 0, s = 0, delay_ms = 0, delays_ms = 0, running = 0, more = 0,
           answer_tokens = 0, prompt_tokens = 0;
    void Add(const Part& p);
  };
  Part All() const;
  void Merge();
  void Cut();

  std::vector<Part> parts_;  // oldest first
  bool any_ = false;
  Instant last_;
};

}  // namespace aisp
