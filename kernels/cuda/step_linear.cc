// Launchers of linear layers.
#include <algorithm>

#include "common/check.h"
#include "kernels/cuda/fast_linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/step_call.h"
#include "kernels/cuda/weights.h"

namespace aisp::cuda {
namespace {

LinearKernel KernelOf(KernelId id) {
  switch (id) {
    case KernelId::kOneToken:
      return LinearKernel::kOneToken;
    case KernelId::kStream:
      return LinearKernel::kStream;
    case KernelId::kGemm:
      return LinearKernel::kGemm;
    case KernelId::kCublasLt:
      return LinearKernel::kCublasLt;
    case KernelId::kStreamPieces:
      return LinearKernel::kStreamPieces;
    default:
      return LinearKernel::kPlain;
  }
}

// The adapters' part is added before SiLU: gate and up of some rows at a time.
Status GatedWithAdapters(const Call& c) {
  const auto& p = c.Params<LinearParams>();
  const PlannedLaunch& plan = c.launch.plan;
  const AdapterStore& store = *c.launch.adapters;
  PackedWeight both = static_cast<const FastWeight&>(*p.weight).weight;
  both.gated = false;
  for (int32_t begin = 0; begin < c.rows(); begin += kMostGatedAdapterRows) {
    const int32_t rows = std::min(c.rows() - begin, kMostGatedAdapterRows);
    const int32_t* const adapter_of_row = c.in.adapter_of_row + begin;
    LinearCall call;
    call.weight = &both;
    call.x = p.x.as<uint16_t>() + begin * both.k;
    call.y = store.gated_rows();
    call.store = Store::kBf16;
    call.rows = std::min(static_cast<int32_t>(PaddedRows(rows)), plan.match.rows);
    call.poll = c.launch.poll;
    const auto columns = static_cast<int32_t>(both.n / 2);
    const AdapterOutput out{p.y.as<uint16_t>() + int64_t{begin} * columns, DType::kBF16, columns,
                            call.y};
    AISP_RETURN_IF_ERROR(store.Down(*p.adapters, call.x, adapter_of_row, rows, c.stream));
    AISP_RETURN_IF_ERROR(c.parts.linear->Launch(
        call, {KernelOf(plan.row->id), plan.match.instance, plan.match.rounds, call.rows},
        c.stream));
    AISP_RETURN_IF_ERROR(store.Up(*p.adapters, adapter_of_row, rows, out, c.stream));
  }
  return {};
}

}  // namespace

Status LinearChain(const Call& c) {
  const PlannedLaunch& plan = c.launch.plan;
  ChainForm form;
  form.one_token = plan.row->id == KernelId::kOneToken;
  form.few_tokens = plan.row->id == KernelId::kFewTokens;
  form.consumes = plan.consumes_slots;
  form.publishes = plan.publishes_slots;
  form.adapter_of_row = c.in.adapter_of_row;
  return c.parts.linear->LaunchChain(c.launch.steps, form, c.stream);
}

Status LinearAlone(const Call& c) {
  LinearParams p = c.Params<LinearParams>();
  const Match& match = c.launch.plan.match;
  const LinearKernel kernel = KernelOf(c.launch.plan.row->id);
  if (kernel == LinearKernel::kPlain) {
    p.rows = c.rows();
    return RunPlainLinear(p, c.stream);
  }
  LinearCall call = FastLinear::CallOf(static_cast<const FastWeight&>(*p.weight), p, match.rows);
  call.poll = c.launch.poll;
  if (c.launch.plan.consumes_fp8) {
    const auto from = c.parts.linear->rounded_rows();
    call.input = InputFormat::kFp8;
    call.x = from.rows;
    call.x_scales = from.scales;
  }
  return c.parts.linear->Launch(call, {kernel, match.instance, match.rounds, match.rows}, c.stream);
}

// When accumulating, the adapters' part is added before the layer's own product, whose weights are
// loaded meanwhile; when storing, after it.
Status LinearWithAdapters(const Call& c) {
  const auto& p = c.Params<LinearParams>();
  const Epilogue epilogue = p.weight->traits().epilogue;
  if (epilogue == Epilogue::kGatedSilu) return GatedWithAdapters(c);
  const AdapterStore& store = *c.launch.adapters;
  const AdapterOutput out{p.y.data, p.y.dtype, static_cast<int32_t>(p.y.cols()), nullptr};
  const auto up = [&] {
    return store.Up(*p.adapters, c.in.adapter_of_row, c.rows(), out, c.stream);
  };
  AISP_RETURN_IF_ERROR(store.Down(*p.adapters, p.x.data, c.in.adapter_of_row, c.rows(), c.stream));
  if (epilogue == Epilogue::kAccumulate) {
    AISP_RETURN_IF_ERROR(up());
    return LinearAlone(c);
  }
  AISP_RETURN_IF_ERROR(LinearAlone(c));
  return up();
}

Status RunPlainLinear(const LinearParams& p, cudaStream_t stream) {
  const auto& w = static_cast<const PlainWeight&>(*p.weight);
  PlainLinearCall call;
  call.weight = w.data.data();
  call.bias = static_cast<const float*>(w.bias.data());
  call.x = p.x.data;
  call.type = w.type;
  call.y = p.y.data;
  call.y_type = w.output_type;
  call.accumulate = w.epilogue == Epilogue::kAccumulate;
  call.n = w.n;
  call.k = w.k;
  call.rows = p.rows;
  return LaunchPlainLinear(call, stream);
}

Status RunExperts(const ExpertMlpParams& p, void* scratch, cudaStream_t stream) {
  const auto& e = static_cast<const PlainExperts&>(*p.packed);
  AISP_CHECK(p.experts.cols() == e.top_k && p.x.dtype == e.type);
  ExpertsCall call;
  call.gate_up = e.gate_up.data();
  call.down = e.down.data();
  call.type = e.type;
  call.hidden = e.hidden;
  call.intermediate = e.intermediate;
  call.x = p.x.data;
  call.experts = p.experts.as<const int32_t>();
  call.weights = p.weights.as<const float>();
  call.top_k = e.top_k;
  call.activation = scratch;
  call.y = p.y.as<float>();
  call.rows = p.rows;
  return LaunchExperts(call, stream);
}

}  // namespace aisp::cuda
