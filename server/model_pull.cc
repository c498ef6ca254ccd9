#include "server/model_pull.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "common/clock.h"
#include "common/strings.h"
#include "model/layer_plan.h"
#include "model/safetensors.h"
#include "model/safetensors_header.h"
#include "model/spec.h"
#include "server/loading_progress.h"

namespace aisp {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";

// Checks of a model that are possible before its weights are downloaded. One thread.
class ModelCheck {
 public:
  explicit ModelCheck(const HubRepo& repo) : name_(repo.Shown()) {}

  Status Config(const std::string& text) {
    auto spec = ParseModelSpec(text);
    if (!spec) return Refuse(spec.error());
    spec_ = std::move(*spec);
    return {};
  }

  Status Index(const std::string& text) {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    std::set<std::string> names;
    for (const auto& [tensor, file] : json["weight_map"].items()) names.insert(tensor);
    indexed_ = true;
    return Names(names);
  }

  Status Header(const std::string& file, const std::string& text, uint64_t data_bytes) {
    auto tensors = ParseSafetensorsHeader(text, data_bytes, file);
    if (!tensors) return Refuse(tensors.error());
    std::set<std::string> names;
    for (const auto& [tensor, stored] : *tensors) {
      names.insert(tensor);
      if (!StoredDType(stored.dtype) && tensor.starts_with("model."))
        return Refuse({Code::kUnimplemented, fmt::format("tensor \"{}\" is of dtype {}, which no "
                                                         "kernel reads",
                                                         Excerpt(tensor), stored.dtype)});
    }
    if (!indexed_) AISP_RETURN_IF_ERROR(Names(names));
    const auto embedding = tensors->find(kEmbedding);
    const std::vector<int64_t> wanted = {spec_->vocabulary, spec_->hidden};
    if (embedding == tensors->end() || embedding->second.shape == wanted) return {};
    return Refuse(
        {Code::kInvalidArgument, fmt::format("{} is not of [{}, {}], which config.json says",
                                             kEmbedding, spec_->vocabulary, spec_->hidden)});
  }

 private:
  Status Refuse(const Error& error) const {
    return tl::unexpected(
        error.WithContext(name_ + " cannot be served, so its weights were not downloaded"));
  }

  // Checks for the embedding and some tensor of each layer.
  Status Names(const std::set<std::string>& names) const {
    const auto missing = [this](const std::string& what) {
      return Refuse({Code::kInvalidArgument, fmt::format("its weights hold no {}, which {} needs",
                                                         what, spec_->architecture)});
    };
    if (names.count(kEmbedding) == 0) return missing(kEmbedding);
    for (const LayerPlan& plan : CompileLayers(*spec_)) {
      const std::string norm = plan.prefix + ".input_layernorm.weight";
      if (names.count(norm) == 0) return missing(norm);
    }
    return {};
  }

  const std::string name_;
  std::optional<ModelSpec> spec_;
  bool indexed_ = false;
};

}  // namespace

Result<Pulled> PullModel(const Config& config, const HubOptions& hub, const HubRepo& repo,
                         bool weights, const std::function<bool()>& cancelled) {
  const SteadyClock clock;
  const auto meter = MakeLoadingMeter(config, &clock, "downloading");
  ModelCheck check(repo);
  PullHooks hooks;
  hooks.check_config = [&](const std::string& text) { return check.Config(text); };
  hooks.check_index = [&](const std::string& text) { return check.Index(text); };
  hooks.check_header = [&](const std::string& file, const std::string& text, uint64_t bytes) {
    return check.Header(file, text, bytes);
  };
  hooks.on_progress = [&](const PullProgress& p) {
    const std::string note =
        p.waiting > 0 ? fmt::format("{} by another process", p.waiting) : std::string();
    meter->Update(fmt::format("{} {}", repo.name, p.what), p.done_bytes, p.total_bytes, note);
  };
  hooks.cancelled = cancelled;
  auto pulled = Pull(hub, repo, weights, hooks);
  meter->Finish();
  return pulled;
}

}  // namespace aisp
