#include "server/arithmetic.h"

#include <fmt/format.h>

#include "worker/fingerprint.h"

namespace aisp {
namespace {

struct NamedFormat {
  std::string_view name;  // empty: the format of the matrix products
  WeightFormat format;
};

NamedFormat FormatOf(QuantFormat stored) {
  switch (stored) {
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

// The format that --quantization asks for, if the device can quantise to it; else the checkpoint's.
NamedFormat WantedFormat(const ArithmeticFacts& facts) {
  if (facts.quantization == "none") return {"", WeightFormat::kCompute};
  for (const NamedFormat each :
       {NamedFormat{"fp8", WeightFormat::kFp8}, NamedFormat{"nvfp4", WeightFormat::kNvfp4}}) {
    if (facts.quantization == each.name && facts.multiplies(each.format)) return each;
  }
  return FormatOf(facts.stored);
}

}  // namespace

std::string DescribeArithmetic(const ArithmeticFacts& facts) {
  const NamedFormat wanted = WantedFormat(facts);
  const bool kept = facts.multiplies(wanted.format);
  std::string weights(DTypeName(facts.compute));
  // A stored format that the device cannot multiply is widened at load; its values stay rounded.
  if (!wanted.name.empty()) {
    weights =
        kept ? std::string(wanted.name) : fmt::format("{} widened to {}", wanted.name, weights);
  }
  std::string activations(DTypeName(facts.activations));
  // Steps with at least so many rows round activations to FP8 in layers with FP8 weights.
  const bool fp8 = wanted.format == WeightFormat::kFp8 || wanted.format == WeightFormat::kFp8Block;
  if (facts.fp8_activation_rows > 0 && fp8 && kept)
    activations += fmt::format(", fp8 from {} rows", facts.fp8_activation_rows);
  const std::string blocks =
      facts.block_tokens > 0 ? fmt::format(" in blocks of {}", facts.block_tokens) : "";
  return fmt::format("{} {}; weights {}; activations {}; kv {}{}", facts.device,
                     DTypeName(facts.compute), weights, activations, DTypeName(facts.kv), blocks);
}

std::string ArithmeticOf(const Config& config, const ServedModel& served, const Backend& backend) {
  const Model& model = backend.executor->model();
  const DType compute = model.compute_dtype();
  const DeviceInfo& device = backend.device->info();
  const KvLayout& kv = backend.executor->kv_layout();
  ArithmeticFacts facts;
  facts.device = device.kind;
  facts.compute = compute;
  facts.quantization = config.model.quantization;
  facts.stored = model.spec().quant.format;
  facts.multiplies = [&](WeightFormat format) { return backend.ops->Supports(format, compute); };
  facts.activations = backend.ops->ActivationDType(compute);
  facts.fp8_activation_rows = served.fp8_activation_rows;
  facts.kv = kv.dtype;
  // GPU kernels split the context at block boundaries; on a CPU the block size changes no bit.
  facts.block_tokens = device.asynchronous ? kv.block_tokens : 0;
  return DescribeArithmetic(facts);
}

v1::Fingerprint WorkerFingerprint(const Config& config, const ServedModel& served,
                                  const Backend& backend) {
  v1::Fingerprint f = served.fingerprint;
  *f.mutable_kv_layout() = DescribeLayout(backend.executor->kv_layout());
  f.set_arithmetic(ArithmeticOf(config, served, backend));
  return f;
}

}  // namespace aisp
