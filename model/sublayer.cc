#include "model/sublayer.h"

#include <bit>
#include <cstring>
#include <vector>

namespace aisp {

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

Result<std::unique_ptr<PackedLinear>> LoadLinear(const LoadContext& context,
                                                 const std::string& name, int64_t out, int64_t in,
                                                 Epilogue epilogue) {
  AISP_ASSIGN_OR_RETURN(const TensorView weight, context.weights.Matrix(name, out, in));
  const TensorView parts[] = {weight};
  auto packed = context.ops.PackLinear({parts, {}, context.compute_dtype, epilogue});
  context.weights.Release();
  if (!packed) return tl::unexpected(packed.error().WithContext(name));
  return packed;
}

}  // namespace aisp
