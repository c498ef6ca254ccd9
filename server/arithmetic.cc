#include "server/arithmetic.h"

#include <fmt/format.h>

#include "worker/fingerprint.h"

namespace aisp {
namespace {

struct StoredFormat {
  std::string_view name;
  WeightFormat format;
};

// The format of the checkpoint, or the one that --quantization asks for.
StoredFormat WantedFormat(const Config& config, const QuantSpec& stored) {
  const std::string& wanted = config.model.quantization;
  if (wanted == "fp8") return {"fp8", WeightFormat::kFp8};
  if (wanted == "nvfp4") return {"nvfp4", WeightFormat::kNvfp4};
  if (wanted == "none") return {"", WeightFormat::kCompute};
  switch (stored.format) {
    case QuantFormat::kNone:
      return {"", WeightFormat::kCompute};
    case QuantFormat::kFp8Channel:
      return {"fp8", WeightFormat::kFp8};
    case QuantFormat::kFp8Block:
      return {"fp8 in blocks", WeightFormat::kFp8Block};
    case QuantFormat::kNvfp4:
      return {"nvfp4", WeightFormat::kNvfp4};
  }
  return {"", WeightFormat::kCompute};
}

}  // namespace

std::string ArithmeticOf(const Config& config, const ServedModel& served, const Backend& backend) {
  const Model& model = backend.executor->model();
  const DType compute = model.compute_dtype();
  const StoredFormat wanted = WantedFormat(config, model.spec().quant);
  // A format the device cannot multiply is widened at load, but the values stay rounded.
  const bool kept = backend.ops->Supports(wanted.format, compute);
  std::string weights(DTypeName(compute));
  if (!wanted.name.empty()) {
    weights =
        kept ? std::string(wanted.name) : fmt::format("{} widened to {}", wanted.name, weights);
  }
  const DType kv = backend.executor->kv_layout().dtype;
  std::string activations(DTypeName(backend.ops->ActivationDType(compute)));
  // Steps with at least so many rows round activations to FP8 in layers with FP8 weights.
  if (served.fp8_activation_rows > 0)
    activations += fmt::format(", fp8 from {} rows", served.fp8_activation_rows);
  // GPU kernels split the context at block boundaries; on a CPU the block size changes no bit.
  const bool by_block = backend.device->info().asynchronous;
  const std::string blocks =
      by_block ? fmt::format(" in blocks of {}", backend.executor->kv_layout().block_tokens) : "";
  return fmt::format("{} {}; weights {}; activations {}; kv {}{}", backend.device->info().kind,
                     DTypeName(compute), weights, activations, DTypeName(kv), blocks);
}

v1::Fingerprint WorkerFingerprint(const Config& config, const ServedModel& served,
                                  const Backend& backend) {
  v1::Fingerprint f = served.fingerprint;
  *f.mutable_kv_layout() = DescribeLayout(backend.executor->kv_layout());
  f.set_arithmetic(ArithmeticOf(config, served, backend));
  return f;
}

}  // namespace aisp
