// AsyncMedusaDraws: Medusa heads on an asynchronous device, which also draws.
//
// Kept features stay in device memory; only tokens reach the host. Everything is enqueued on the
// target's stream, after the step that made the features. The heads of a draft and all its draws
// are a captured graph, keyed by number of rows and of heads; draws that depend on earlier draws
// are launched one head at a time after it. Engine thread only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/draft_draws.h"
#include "engine/feature_landings.h"
#include "engine/medusa_draws.h"
#include "model/medusa_head.h"

namespace aisp {

struct AsyncMedusaOptions {
  MedusaOptions heads;
  bool use_graphs = true;
  int32_t places = 0;  // kept feature rows; 0: two per row of a call
};

class AsyncMedusaDraws final : public MedusaDraws {
 public:
  // The target, stream, device and operations outlive this.
  static Result<std::unique_ptr<AsyncMedusaDraws>> Create(const std::string& directory,
                                                          const MedusaSpec& spec,
                                                          const Model& target,
                                                          const AsyncMedusaOptions& options,
                                                          Stream& stream, Device& device, Ops& ops);
  // Waits for work in flight.
  ~AsyncMedusaDraws() override;

  int32_t heads() const override { return heads_->heads(); }
  int32_t feature_size() const override { return heads_->feature_size(); }
  size_t feature_bytes() const override { return heads_->feature_bytes(); }
  int32_t max_rows() const override { return heads_->max_rows(); }
  int32_t places() const override {
    return options_.places > 0 ? options_.places : 2 * heads_->max_rows();
  }
  Status Keep(std::span<FeatureRow> rows) override;
  bool draws_together() const override { return true; }
  Status Run(std::span<const int32_t> places, int32_t heads,
             std::span<const SampleRow> samples) override;
  Status Draw(std::span<const SampleRow> samples) override;
  Result<std::vector<SampledToken>> Collect() override;
  int32_t LogitIndex(int32_t head, int32_t row) const override {
    return heads_->LogitIndex(head, row);
  }

  size_t graphs() const { return graphs_.size(); }

 private:
  // What a graph was captured for.
  struct GraphKey {
    int32_t rows = 0;
    int32_t heads = 0;
    int32_t draws = 0;
    bool filters = false;
    auto operator<=>(const GraphKey&) const = default;
  };

  AsyncMedusaDraws(std::unique_ptr<MedusaHeads> heads, const AsyncMedusaOptions& options,
                   Stream& stream, Device& device)
      : options_(options), stream_(stream), device_(device), heads_(std::move(heads)) {}
  Status Start();
  Status WarmUp();
  Status CaptureGraphs();
  Result<Graph*> GraphFor(const GraphKey& key);
  Status KeepFrom(std::span<const FeatureRow*> rows);
  Status LandRows(std::span<FeatureRow> rows);
  Status Launch(const GraphKey& key, std::span<const SampleRow> samples);
  std::byte* PlaceOf(int32_t place) const {
    return static_cast<std::byte*>(places_.data()) +
           static_cast<size_t>(place) * heads_->feature_bytes();
  }

  const AsyncMedusaOptions options_;
  Stream& stream_;
  Device& device_;
  const std::unique_ptr<MedusaHeads> heads_;
  std::unique_ptr<DraftDraws> draws_;
  std::unique_ptr<FeatureLandings> landings_;
  Buffer places_;
  std::vector<int32_t> sizes_;
  std::map<GraphKey, std::unique_ptr<Graph>> graphs_;
  std::vector<CopyRange> ranges_;
  std::vector<const std::byte*> rows_;
};

}  // namespace aisp
