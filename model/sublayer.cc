#include "model/sublayer.h"

#include <bit>
#include <cstring>
#include <vector>

namespace aisp {

Result<std::unique_ptr<Sublayer>> LoadAttention(const LayerPlan& plan, const LoadContext& context) {
  return plan.attention.kind == AttentionKind::kLatent ? LoadLatentAttention(plan, context)
                                                       : LoadGroupedAttention(plan, context);
}

Result<std::unique_ptr<Sublayer>> LoadMlp(const LayerPlan& plan, const LoadContext& context) {
  return plan.mlp.kind == MlpKind::kExperts ? LoadExpertMlp(plan, context)
                                            : LoadGatedMlp(plan, context);
}

Result<DeviceVector> LoadVector(const LoadContext& context, const std::string& name, int64_t n) {
  AISP_ASSIGN_OR_RETURN(const TensorView stored, context.weights.Vector(name, n));
  std::vector<float> values(static_cast<size_t>(n));
  ReadFloats(stored, values);
  DeviceVector out;
  AISP_ASSIGN_OR_RETURN(
      out.buffer, context.device.Allocate(values.size() * sizeof(float), MemoryKind::kDevice));
  out.view = TensorView::Dense(out.buffer.data(), DType::kF32, {n});
  AISP_RETURN_IF_ERROR(context.device.Copy(out.buffer.data(), values.data(),
                                           values.size() * sizeof(float), context.stream));
  AISP_RETURN_IF_ERROR(context.device.Synchronize(context.stream));
  return out;
}

namespace {

// Sets `source` to the stored quantised parts; false if they are not quantised or the device does
// not support the format.
Result<bool> TakeAsStored(const LoadContext& c, const StackedLinear& stacked,
                          std::vector<TensorView>* parts, std::vector<PartScales>* scales,
                          WeightFormat* format) {
  const std::optional<WeightFormat> stored = c.weights.StoredFormat(stacked.parts.front().name);
  if (!stored || !c.ops.Supports(*stored, c.compute_dtype) || stacked.in % 16 != 0) return false;
  for (const StackedPart& part : stacked.parts) {
    if (c.weights.StoredFormat(part.name) != stored) return false;
    // A block of scales must not cover two parts.
    if (*stored == WeightFormat::kFp8Block && stacked.parts.size() > 1 && part.out % 128 != 0)
      return false;
  }
  for (const StackedPart& part : stacked.parts) {
    AISP_ASSIGN_OR_RETURN(const StoredMatrix matrix,
                          c.weights.AsStored(part.name, part.out, stacked.in));
    parts->push_back(matrix.codes);
    scales->push_back(matrix.scales);
  }
  *format = *stored;
  return true;
}

// Scales of NVFP4 groups are a pointer, which the rows' number does not change.
void KeepFirstScales(WeightFormat format, const TensorView& rows, PartScales* scales) {
  constexpr int64_t kBlock = 128;
  if (format == WeightFormat::kFp8)
    scales->scales = scales->scales.first(static_cast<size_t>(rows.rows()));
  if (format != WeightFormat::kFp8Block) return;
  const int64_t blocks =
      (rows.rows() + kBlock - 1) / kBlock * ((rows.cols() + kBlock - 1) / kBlock);
  scales->scales = scales->scales.first(static_cast<size_t>(blocks));
}

}  // namespace

Result<std::unique_ptr<PackedLinear>> LoadStacked(const LoadContext& c,
                                                  const StackedLinear& stacked) {
  std::vector<TensorView> parts, biases;
  std::vector<PartScales> scales;
  LinearSource source;
  source.compute_dtype = c.compute_dtype;
  source.epilogue = stacked.epilogue;
  source.output_dtype =
      stacked.epilogue == Epilogue::kAccumulate ? DType::kF32 : stacked.output_dtype;
  source.random_seed = c.weights.SeedOf(stacked.parts.front().name);
  bool as_stored = false;
  if (!c.weight_format && !stacked.keep_precision) {
    AISP_ASSIGN_OR_RETURN(as_stored, TakeAsStored(c, stacked, &parts, &scales, &source.format));
  }
  if (!as_stored) {
    for (const StackedPart& part : stacked.parts) {
      AISP_ASSIGN_OR_RETURN(parts.emplace_back(),
                            c.weights.Matrix(part.name, part.out, stacked.in));
    }
    const WeightFormat wanted = c.weight_format.value_or(WeightFormat::kCompute);
    if (!stacked.keep_precision && c.ops.Supports(wanted, c.compute_dtype) && stacked.in % 16 == 0)
      source.format = wanted;
  }
  if (stacked.bias) {
    for (const StackedPart& part : stacked.parts) {
      AISP_ASSIGN_OR_RETURN(biases.emplace_back(), c.weights.Vector(part.name + ".bias", part.out));
    }
  }
  if (stacked.first_rows > 0) {
    // Scales belong to rows, or to blocks of rows from the first one on.
    parts[0].shape[0] = stacked.first_rows;
    if (as_stored) KeepFirstScales(source.format, parts[0], &scales[0]);
  }
  source.parts = parts;
  source.scales = scales;
  source.biases = biases;
  auto packed = c.ops.PackLinear(source);
  c.weights.Release();
  if (!packed) return tl::unexpected(packed.error().WithContext(stacked.parts.front().name));
  if (c.adapters != nullptr) c.adapters->Add(packed->get(), stacked.parts, stacked.in);
  if (c.weight_bytes != nullptr) *c.weight_bytes += (*packed)->bytes();
  return packed;
}

Result<std::unique_ptr<PackedLinear>> LoadLinear(const LoadContext& context,
                                                 const std::string& name, int64_t out, int64_t in,
                                                 Epilogue epilogue) {
  const StackedPart part{name, out};
  return LoadStacked(context, {.parts = {&part, 1}, .in = in, .epilogue = epilogue});
}

}  // namespace aisp
