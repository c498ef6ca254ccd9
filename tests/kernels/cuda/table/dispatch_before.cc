#include "tests/kernels/cuda/table/dispatch_before.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A layer with its preceding norm, as it was queued.
struct Step {
  NodeId norm = -1;
  NodeId linear = -1;
  const RmsNormParams* norm_params = nullptr;
  const LinearParams* params = nullptr;
  LinearTraits w;
};

bool Fast(const LinearTraits& w) { return w.family == static_cast<uint8_t>(LinearFamily::kFast); }
bool StoresBf16(const LinearTraits& w) {
  return w.epilogue != Epilogue::kAccumulate && w.output == DType::kBF16;
}
bool Accumulates(const LinearTraits& w) { return w.epilogue == Epilogue::kAccumulate; }

class Before {
 public:
  Before(const PlannedModel& model, const Bucket& bucket)
      : model_(model), programme_(model.programme()), bucket_(bucket) {}

  std::vector<std::string> Run() {
    // The addresses that attention asks for are known from the second step on.
    for (int step = 0; step < 3; ++step) {
      out_.clear();
      plans_.clear();
      left_ = nullptr;
      awaited_features_ = -1;
      embed_ = 0;
      Walk();
    }
    return out_;
  }

 private:
  void Walk() {
    const auto count = static_cast<NodeId>(programme_.nodes().size());
    for (NodeId id = 0; id < count; ++id) {
      const Node& node = programme_.node(id);
      switch (node.kind) {
        case NodeKind::kEmbed:
          break;
        case NodeKind::kGatherRows:
          if (!bucket_.all_logits) {
            Flush();
            gather_ = id;
          }
          break;
        case NodeKind::kNorm:
          Norm(id);
          break;
        case NodeKind::kLinear:
          Linear(id);
          break;
        case NodeKind::kRopeAppend:
          Flush();
          RotateAndAttend(id);
          ++id;
          break;
        case NodeKind::kDraw:
          Flush();
          Say("draw", {id});
          break;
        default:
          Flush();
          Other(id);
      }
    }
  }

  static bool Queued(std::string_view name) {
    return name == "qkv" || name == "o" || name == "gate_up" || name == "down" || name == "logits";
  }

  void Norm(NodeId id) {
    const Node& next = programme_.node(id + 1);
    if (next.kind == NodeKind::kLinear && Queued(next.name) && next.inputs[0] >= 0 &&
        programme_.Producer(id + 1) == id && programme_.node(id).name == "norm" &&
        (next.name != "gate_up" ||
         programme_.value(programme_.node(id).output).readers.size() == 1)) {
      norm_ = id;
      return;
    }
    Flush();
    Say("rms norm", {id});
  }

  void Linear(NodeId id) {
    const Node& node = programme_.node(id);
    const auto& p = node.As<LinearParams>();
    Step step;
    step.linear = id;
    step.params = &p;
    step.w = p.weight->traits();
    if (!Queued(node.name)) {
      Flush();
      One(step, bucket_.rows);
      return;
    }
    if (norm_ >= 0) {
      step.norm = norm_;
      step.norm_params = &programme_.node(norm_).As<RmsNormParams>();
      norm_ = -1;
    }
    // The head followed the layers only where it had all of their rows.
    queue_.push_back(step);
    if (node.name == "logits") Flush();
  }

  void Flush() {
    std::vector<Step> steps;
    steps.swap(queue_);
    if (embed_ == 0) {
      const bool normed = !steps.empty() && steps[0].norm >= 0;
      embed_ = 1;
      if (normed) {
        Say("embedding + norm", {0, steps[0].norm});
        steps[0].norm = -1;
        steps[0].norm_params = nullptr;
      } else {
        Say("embedding", {0});
      }
    }
    while (!steps.empty()) {
      const Step& first = steps.front();
      if (first.norm >= 0) {
        if (gather_ >= 0) {
          Say("rms norm of gathered rows", {gather_, first.norm});
        } else {
          Say("rms norm", {first.norm});
        }
        gather_ = -1;
      }
      const bool head = programme_.node(first.linear).name == "logits";
      const int32_t rows = head ? bucket_.logit_rows : bucket_.rows;
      size_t done = 0;
      if (steps.size() > 1 && model_.facts.exclusive) done = CutRun(steps, rows);
      if (done == 0) {
        One(first, rows);
        done = 1;
      }
      steps.erase(steps.begin(), steps.begin() + static_cast<int64_t>(done));
    }
  }

  size_t CutRun(const std::vector<Step>& steps, int32_t rows) {
    std::vector<Step> chain;
    for (const Step& step : steps) {
      const bool normed = !chain.empty() && step.norm >= 0;
      const bool follows = !normed || step.norm_params->x.data == chain.back().params->y.data;
      if (!Fast(step.w) || !follows || chain.size() == 6) break;
      chain.push_back(step);
      if (chain.size() == 1) chain.back().norm = -1;
    }
    for (size_t count = chain.size(); count >= 2; --count) {
      const std::vector<Step> part(chain.begin(), chain.begin() + static_cast<int64_t>(count));
      const bool one = OneFits(part, rows);
      if (!one && !ChainFits(part, rows)) continue;
      if (one) {
        LaunchOne(part);
      } else {
        Forget();
        Say("chain", NodesOf(part));
      }
      return count;
    }
    return 0;
  }

  void One(const Step& step, int32_t rows) {
    if (!Fast(step.w)) {
      Forget();
      Say("plain product", {step.linear});
      return;
    }
    const auto padded = static_cast<int32_t>(PaddedRows(rows));
    Step alone = step;
    alone.norm = -1;
    if (OneFits({alone}, padded)) return LaunchOne({alone});
    Forget();
    const bool bf16 = step.w.format == aisp::WeightFormat::kCompute;
    const bool fp8 =
        step.w.format == aisp::WeightFormat::kFp8 || step.w.format == aisp::WeightFormat::kFp8Block;
    const int32_t own = bf16 || step.w.format == aisp::WeightFormat::kFp8Block ? 64 : 128;
    if (padded <= own) return Say("stream", {step.linear});
    // Without a measurement nearby: cuBLASLt for bf16 up to a row limit, our own kernels for all
    // quantised weights that are widened, FP8 rows from 1,024 on.
    const bool rounds = fp8 && padded >= 1024;
    const bool library = (bf16 || (rounds && step.w.format == aisp::WeightFormat::kFp8)) &&
                         padded < (step.w.epilogue == Epilogue::kGatedSilu ? 256 : 640);
    Say(library ? "cublasLt" : "gemm", {step.linear});
  }

  // Steps of one token.
  bool OneFits(const std::vector<Step>& steps, int32_t rows) const {
    const auto format = steps[0].w.format;
    const OneTokenInstance kernel = OneTokenInstanceOf(format);
    int64_t slots = 0, input = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      const Step& s = steps[i];
      if (!Fast(s.w) || s.w.format != format || rows != 1 ||
          s.w.k % std::min(kernel.block_k, 128) != 0)
        return false;
      if (i > 0 && !Follows(steps[i - 1], s)) return false;
      if (i > 0) slots += s.norm >= 0 ? s.w.k : s.w.k / 2;
      input = std::max(input, DivideUp(s.w.k, kernel.stage_k()) * kernel.block_k * 2);
    }
    const bool wide = steps.size() > 1 || steps[0].w.n >= 65536;
    const int64_t left = ((wide ? 174 : 112) << 10) - kernel.fixed_bytes - input * kernel.warps;
    return slots <= kTokenStepSlots && std::min<int64_t>(24, left / kernel.stage_bytes) >= 4;
  }

  // Whether `next` reads what `step` writes, by their addresses.
  static bool Follows(const Step& step, const Step& next) {
    if (step.w.out_features() != next.w.k) return false;
    if (next.norm >= 0) return Accumulates(step.w);
    return StoresBf16(step.w) && next.params->x.data == step.params->y.data;
  }

  // Steps of several rows.
  bool ChainFits(const std::vector<Step>& steps, int32_t rows) const {
    const int found = FindChain(steps[0].w.format, rows);
    if (found < 0) return false;
    const StreamInstance& kernel = ChainInstances()[static_cast<size_t>(found)];
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].w.format != steps[0].w.format) return false;
      if (i + 1 == steps.size()) break;
      if (!Follows(steps[i], steps[i + 1])) return false;
      const auto squares =
          DivideUp(steps[i].w.n, 16) * kernel.tokens * static_cast<int64_t>(sizeof(float));
      if (steps[i + 1].norm >= 0 && squares > (512 << 10)) return false;
    }
    return true;
  }

  // One token, and which results were published in slots.
  void LaunchOne(const std::vector<Step>& steps) {
    const Step& first = steps.front();
    const Step& last = steps.back();
    const bool consumes =
        awaited_ != nullptr && first.params->x.data == awaited_ && first.w.k == awaited_features_;
    const bool publishes = last.w.epilogue == Epilogue::kStore && last.w.output == DType::kBF16 &&
                           last.w.out_features() / 2 <= kTokenEdgeSlots &&
                           wanted_.contains(last.params->y.data);
    awaited_features_ = -1;
    Say("one token", NodesOf(steps), consumes, publishes);
    left_ = publishes ? last.params->y.data : nullptr;
    if (consumes) awaited_ = nullptr;
  }

  void RotateAndAttend(NodeId id) {
    const auto& rope = programme_.node(id).As<RopeAppendParams>();
    const auto& p = programme_.node(id + 1).As<AttentionParams>();
    const bool kernels = (p.kv.dtype == DType::kBF16 || p.kv.dtype == DType::kF8E4M3) &&
                         (p.kv.head_dim == 64 || p.kv.head_dim == 128 || p.kv.head_dim == 256);
    const bool fused = kernels && p.kv.head_dim != 256 && rope.qkv.dtype == DType::kBF16;
    if (bucket_.mode == StepMode::kDecode && fused) {
      const bool slots = Offer(rope, p);
      const bool plan = bucket_.sequences != 1 && plans_.insert(p.window).second;
      Say(plan ? "plan, decode attention" : "decode attention", {id, id + 1}, slots, slots);
      return;
    }
    if (bucket_.mode == StepMode::kMixed && fused) {
      const bool plan = plans_.insert(p.window).second;
      return Say(plan ? "plan, decode and prompt attention" : "decode and prompt attention",
                 {id, id + 1});
    }
    const int32_t dim = p.kv.head_dim;
    Say(dim == 64 || dim == 128 || dim == 256 ? "rope + append" : "plain rope + append", {id});
    if (!kernels) return Say("plain attention", {id + 1});
    const bool plan = plans_.insert(p.window).second;
    Say(plan ? "plan, attention" : "attention", {id + 1});
  }

  // Slots by the addresses that attention had asked for.
  bool Offer(const RopeAppendParams& rope, const AttentionParams& p) {
    if (bucket_.sequences != 1 || bucket_.rows != 1 || p.out.dtype != DType::kBF16 ||
        rope.qkv.dtype != DType::kBF16 || p.kv.num_kv_heads > 64 || !model_.facts.exclusive)
      return false;
    const auto fits = [](int64_t features) {
      return features % 8 == 0 && features / 2 <= kTokenEdgeSlots;
    };
    if (!fits(rope.qkv.cols()) || !fits(p.out.cols())) return false;
    if (awaited_ != nullptr) {
      offers_ = false;
      awaited_ = nullptr;
    }
    if (!offers_) return false;
    if (left_ != rope.qkv.data) {
      wanted_.insert(rope.qkv.data);
      return false;
    }
    left_ = nullptr;
    awaited_ = p.out.data;
    awaited_features_ = p.out.cols();
    return true;
  }

  void Forget() {
    left_ = nullptr;
    awaited_features_ = -1;
  }

  void Other(NodeId id) {
    const Node& node = programme_.node(id);
    if (node.kind == NodeKind::kAttend) {
      const auto& p = node.As<AttentionParams>();
      const bool kernels = p.q_head_dim == p.kv.head_dim && p.v_head_dim == p.kv.head_dim &&
                           p.kv.dtype != DType::kF32;
      const bool plan = kernels && plans_.insert(p.window).second;
      return Say(!kernels ? "plain attention" : plan ? "plan, attention" : "attention", {id});
    }
    const std::string_view name =
        node.kind == NodeKind::kExperts ? "experts row by row" : NodeKindName(node.kind);
    Say(std::string(name), {id});
  }

  std::vector<NodeId> NodesOf(const std::vector<Step>& steps) const {
    std::vector<NodeId> nodes;
    for (const Step& s : steps) {
      if (s.norm >= 0 && !nodes.empty()) nodes.push_back(s.norm);
      nodes.push_back(s.linear);
    }
    return nodes;
  }

  void Say(const std::string& kernel, const std::vector<NodeId>& nodes, bool consumes = false,
           bool publishes = false) {
    out_.push_back(fmt::format("{} [{}]{}{}", kernel, fmt::join(nodes, " "),
                               consumes ? " consumes" : "", publishes ? " publishes" : ""));
  }

  const PlannedModel& model_;
  const Programme& programme_;
  const Bucket bucket_;
  std::vector<std::string> out_;
  std::vector<Step> queue_;
  NodeId norm_ = -1, gather_ = -1;
  int embed_ = 0;
  std::set<int32_t> plans_;
  const void* left_ = nullptr;
  const void* awaited_ = nullptr;
  int64_t awaited_features_ = -1;
  bool offers_ = true;
  std::set<const void*> wanted_;
};

}  // namespace

std::vector<std::string> LaunchedBefore(const PlannedModel& model, const Bucket& bucket) {
  return Before(model, bucket).Run();
}

std::vector<std::string> LaunchedNow(const PlannedModel& model, const Bucket& bucket) {
  std::vector<std::string> out;
  for (const PlannedLaunch& launch : model.Resolved(bucket)) {
    std::vector<NodeId> nodes(launch.covered().begin(), launch.covered().end());
    // Gathering all rows is a no-op and had no name then.
    std::erase_if(nodes, [&](NodeId id) {
      return bucket.all_logits && model.programme().node(id).kind == NodeKind::kGatherRows;
    });
    // Two to eight tokens used the kernel of more.
    const std::string_view name =
        launch.row->id == KernelId::kFewTokens ? "chain" : launch.row->name;
    out.push_back(fmt::format("{}{} [{}]{}{}", launch.plans ? "plan, " : "", name,
                              fmt::join(nodes, " "), launch.consumes_slots ? " consumes" : "",
                              launch.publishes_slots ? " publishes" : ""));
  }
  return out;
}

}  // namespace aisp::cuda
