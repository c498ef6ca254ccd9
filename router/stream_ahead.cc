#include "router/stream_ahead.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace aisp {
namespace {

constexpr size_t kParts = 16;  // of the stream's life
// Cap on the fraction of time that prompts take.
constexpr double kMostBusy = 0.95;

// What arrives within times that follow each other. The first `ahead` requests go elsewhere, or
// come in addition if negative.
class Coming {
 public:
  Coming(double per_s, double ahead) : per_ms_(per_s * 1e-3), ahead_(ahead) {}
  double Within(double ms) {
    const double all = per_ms_ * ms;
    const double elsewhere = std::clamp(ahead_, -all, all);
    ahead_ -= elsewhere;
    return all - elsewhere;
  }

 private:
  double per_ms_;
  double ahead_;
};

// Of rows whose ages are spread evenly around `age`, all in tokens, the fraction that still runs.
struct Leaving {
  Leaving(double life, double age) {
    const double half = std::min(age, life - age);
    begin = life - age - half;
    end = life - age + half;
  }
  double Left(double after) const {
    if (after <= begin) return 1;
    return after >= end ? 0 : (end - after) / (end - begin);
  }
  double begin, end;
};

}  // namespace

double StreamAhead::TokenMs() const {
  const double life = std::max(1.0, load.answer_tokens);
  const double part = std::max(1.0, answer_tokens) / kParts;
  const double busy = std::clamp(load.per_s * 1e-3 * load.delay_ms, 0.0, kMostBusy);
  const double now_ms = std::max(1e-6, cost.StepMs({0, 0, rows, context}) / (1 - busy));
  const Leaving others(life, std::clamp((age_ms - ttft_ms) / now_ms, 0.0, life));
  const double per_row = context / std::max(1.0, rows);
  Coming requests(load.per_s, more);
  // `delay_ms` is of streams as they usually are: with the requests that a worker then has more.
  Coming prompts(load.per_s, more - load.more);

  const double waited = ttft_ms / now_ms;  // tokens of other rows before its first
  std::array<double, kParts + 1> came{};
  came[0] = requests.Within(ttft_ms);
  double ms = prompts.Within(ttft_ms) * load.delay_ms;
  for (size_t i = 0; i < kParts; ++i) {
    const double at = (static_cast<double>(i) + 0.5) * part;
    const double older = (rows - 1) * others.Left(waited + at);
    double all = 1 + older;
    double read = older * (per_row + at) + prompt_tokens + at;
    for (size_t j = 0; j <= i; ++j) {
      const double age = static_cast<double>(i - j) * part;
      if (age >= life) continue;
      all += came[j];
      read += came[j] * (load.prompt_tokens + age);
    }
    const double fit = std::min(1.0, max_rows / all);  // the rest waits
    const double alone_ms = part * cost.StepMs({0, 0, fit * all, fit * read});
    const double whole_ms = alone_ms / (1 - busy);
    ms += alone_ms + prompts.Within(whole_ms) * load.delay_ms;
    const double come = requests.Within(whole_ms);
    came[i] += come / 2;
    came[i + 1] += come / 2;
  }
  return ms / std::max(1.0, answer_tokens);
}

}  // namespace aisp
