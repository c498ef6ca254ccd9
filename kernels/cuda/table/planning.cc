#include "kernels/cuda/table/planning.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/table/dtypes.h"
#include "kernels/cuda/table/kernel_table.h"

namespace aisp::cuda {
namespace {

struct Reserved final : Allocation {
  Reserved(void* p, size_t n) : data(p), bytes(n) {}
  ~Reserved() override { munmap(data, bytes); }
  void* const data;
  const size_t bytes;
};

struct NoStream final : Stream {};
struct NoEvent final : Event {};

tl::unexpected<Error> NothingRuns() {
  return FailedPrecondition("a GPU that is only planned for runs nothing");
}

class PlanningDevice final : public Device {
 public:
  explicit PlanningDevice(const DeviceFacts& facts) {
    info_.kind = "cuda";
    info_.name = facts.name;
    info_.supports_graphs = true;
    info_.asynchronous = true;
  }
  const DeviceInfo& info() const override { return info_; }
  Result<MemoryInfo> GetMemoryInfo() const override {
    return MemoryInfo{size_t{140} << 30, size_t{140} << 30};
  }
  // Host memory is real, since it is small and written to.
  Result<Buffer> Allocate(size_t bytes, MemoryKind kind) override {
    const int access = kind == MemoryKind::kHost ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* const data =
        mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      return ResourceExhausted(fmt::format("no {} bytes of addresses", bytes));
    return Buffer(data, bytes, -1, std::make_unique<Reserved>(data, bytes));
  }
  Result<std::unique_ptr<Stream>> CreateStream() override { return std::make_unique<NoStream>(); }
  Status Synchronize(Stream&) override { return {}; }
  Result<std::unique_ptr<Event>> CreateEvent() override { return std::make_unique<NoEvent>(); }
  Status Record(Event&, Stream&) override { return {}; }
  Status Wait(Stream&, Event&) override { return {}; }
  Result<bool> Query(const Event&) const override { return true; }
  Status Synchronize(Event&) override { return {}; }
  Result<double> ElapsedMs(const Event&, const Event&) const override { return 0.0; }
  Status Copy(void*, const void*, size_t, Stream&) override { return {}; }
  Status CopyRanges(void*, const void*, std::span<const CopyRange>, Stream&) override { return {}; }
  Status BeginCapture(Stream&) override { return NothingRuns(); }
  Result<std::unique_ptr<Graph>> EndCapture(Stream&) override { return NothingRuns(); }
  Status LaunchGraph(Graph&, Stream&) override { return NothingRuns(); }
  Result<MemoryHandle> Export(const Buffer&) const override { return NothingRuns(); }
  Result<Buffer> Import(const MemoryHandle&) override { return NothingRuns(); }

 private:
  DeviceInfo info_;
};

class PlannedWeight final : public PackedLinear {
 public:
  explicit PlannedWeight(const LinearTraits& traits) : traits_(traits) {}
  LinearTraits traits() const override { return traits_; }
  size_t bytes() const override { return traits_.bytes; }

 private:
  const LinearTraits traits_;
};

class PlannedExperts final : public PackedExperts {
 public:
  PlannedExperts(int32_t experts, size_t bytes) : experts_(experts), bytes_(bytes) {}
  int32_t num_experts() const override { return experts_; }
  size_t bytes() const override { return bytes_; }

 private:
  const int32_t experts_;
  const size_t bytes_;
};

class PlannedStep final : public PreparedStep {
 public:
  explicit PlannedStep(std::vector<LaunchInfo> launches) : launches_(std::move(launches)) {}
  Status Run(const StepInputs&, const std::function<void(int32_t)>&, Stream&) override {
    return NothingRuns();
  }
  std::vector<LaunchInfo> Describe() const override { return launches_; }

 private:
  const std::vector<LaunchInfo> launches_;
};

class PlanningOps final : public Ops {
 public:
  PlanningOps(const DeviceFacts& facts, TuningProfile profile, int64_t context)
      : facts_(facts), profile_(std::move(profile)), context_(context) {}

  std::string Describe() const override { return facts_.name + ", planned"; }
  DType PreferredComputeDType(DType checkpoint, int64_t elements) const override {
    return PreferredDType(checkpoint, elements);
  }
  int64_t RowCapacity(int64_t rows) const override { return PaddedRows(rows); }
  DType ActivationDType(DType compute) const override { return compute; }
  bool Fuses(Epilogue epilogue, DType compute) const override {
    return FusesEpilogue(epilogue, compute);
  }
  bool Supports(WeightFormat format, DType compute) const override {
    return SupportsFormat(format, compute);
  }
  Result<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override {
    AISP_ASSIGN_OR_RETURN(const LinearTraits traits, PackedTraits(source, facts_));
    return std::make_unique<PlannedWeight>(traits);
  }
  Result<std::unique_ptr<PackedExperts>> PackExperts(const ExpertsSource& source) override {
    size_t elements = 0;
    for (const ExpertsSource::Expert& e : source.experts) {
      elements += static_cast<size_t>(e.gate.elements() + e.up.elements() + e.down.elements());
    }
    return std::make_unique<PlannedExperts>(static_cast<int32_t>(source.experts.size()),
                                            elements * DTypeBytes(source.compute_dtype));
  }
  bool DrawsTokens() const override { return true; }
  Status FillRandom(const TensorView&, float, uint64_t, Stream&) override { return {}; }

  Result<std::unique_ptr<PreparedStep>> Prepare(const Programme& programme,
                                                const Bucket& bucket) override {
    const ChoiceFacts facts{&facts_, &profile_, {}, {}};
    AISP_ASSIGN_OR_RETURN(const auto launches, Resolve(programme, CanonicalBucket(bucket), facts));
    std::vector<LaunchInfo> out;
    for (const PlannedLaunch& launch : launches)
      out.push_back(DescribeLaunch(programme, bucket, facts, launch, context_));
    return std::make_unique<PlannedStep>(std::move(out));
  }
  // Descriptions need the exact sizes.
  Bucket Canonical(const Bucket& bucket) const override { return bucket; }

  Status Embedding(const EmbeddingParams&, Stream&) override { return NothingRuns(); }
  Status Linear(const LinearParams&, Stream&) override { return NothingRuns(); }
  Status RmsNorm(const RmsNormParams&, Stream&) override { return NothingRuns(); }
  Status RopeAppend(const RopeAppendParams&, Stream&) override { return NothingRuns(); }
  Status LatentAppend(const LatentAppendParams&, Stream&) override { return NothingRuns(); }
  Status PagedAttention(const AttentionParams&, Stream&) override { return NothingRuns(); }
  Status SiluMul(const SiluMulParams&, Stream&) override { return NothingRuns(); }
  Status SelectExperts(const SelectExpertsParams&, Stream&) override { return NothingRuns(); }
  Status ExpertMlp(const ExpertMlpParams&, Stream&) override { return NothingRuns(); }

 private:
  const DeviceFacts facts_;
  const TuningProfile profile_;
  const int64_t context_;
};

size_t BytesOf(aisp::WeightFormat format, DType compute, int64_t n, int64_t k) {
  const auto elements = static_cast<size_t>(n * k);
  switch (format) {
    case aisp::WeightFormat::kFp8:
      return elements + static_cast<size_t>(n) * sizeof(float);
    case aisp::WeightFormat::kFp8Block:
      return elements + static_cast<size_t>(n / 8 * ((k + 127) / 128)) * sizeof(float);
    case aisp::WeightFormat::kNvfp4:
      return elements / 2 + elements / 16 + static_cast<size_t>(n) * sizeof(float);
    case aisp::WeightFormat::kCompute:
      break;
  }
  return elements * DTypeBytes(compute);
}

}  // namespace

Result<LinearTraits> PackedTraits(const LinearSource& source, const DeviceFacts& device) {
  const bool pairs = !source.scales.empty() && source.format == aisp::WeightFormat::kNvfp4;
  LinearTraits t;
  t.format = source.format;
  t.input = source.compute_dtype;
  t.epilogue = source.epilogue;
  t.output = source.epilogue == Epilogue::kAccumulate  ? DType::kF32
             : source.epilogue == Epilogue::kGatedSilu ? source.compute_dtype
                                                       : source.output_dtype;
  t.bias = !source.biases.empty();
  t.k = source.parts[0].cols() * (pairs ? 2 : 1);
  for (const TensorView& part : source.parts) t.n += part.rows();
  t.bytes = BytesOf(t.format, t.input, t.n, t.k);
  const bool plain = source.format == aisp::WeightFormat::kCompute;
  const bool uniform =
      std::all_of(source.parts.begin(), source.parts.end(),
                  [&](const TensorView& p) { return p.dtype == source.parts[0].dtype; });
  const bool fast = device.hopper && source.compute_dtype == DType::kBF16 && uniform &&
                    t.k % (plain ? 8 : 16) == 0;
  if (fast) {
    t.family = static_cast<uint8_t>(LinearFamily::kFast);
  } else if (plain && source.epilogue != Epilogue::kGatedSilu &&
             (device.hopper || source.compute_dtype == DType::kF32)) {
    t.family = static_cast<uint8_t>(LinearFamily::kPlain);
  } else if (source.format == aisp::WeightFormat::kNvfp4 && device.block_scaled) {
    t.family = static_cast<uint8_t>(LinearFamily::kBlockScaled);
  } else {
    return Unimplemented(
        fmt::format("{} has no kernels for a linear layer of {} columns in {}", device.name, t.k,
                    plain ? DTypeName(source.compute_dtype) : "a quantised format"));
  }
  return t;
}

PlanningBackend MakePlanningBackend(const DeviceFacts& device, TuningProfile profile,
                                    int64_t context) {
  PlanningBackend backend;
  backend.device = std::make_unique<PlanningDevice>(device);
  backend.ops = std::make_unique<PlanningOps>(device, std::move(profile), context);
  return backend;
}

}  // namespace aisp::cuda
