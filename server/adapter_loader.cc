#include "server/adapter_loader.h"

#include <memory>
#include <string>
#include <utility>

#include "model/lora_adapter.h"

namespace aisp {
namespace {

Result<PackedAdapter> LoadAndPack(const Model& model, const std::string& name,
                                  const std::string& path, int32_t max_rank) {
  AISP_ASSIGN_OR_RETURN(const auto adapter, LoraAdapter::Load(name, path, max_rank));
  return model.PackAdapter(*adapter);
}

}  // namespace

AdapterKeeper::Loader MakeAdapterLoader(const Config& config, const Model* model, WorkPool* pool,
                                        Poster post) {
  const auto max_rank = static_cast<int32_t>(config.model.max_lora_rank);
  const bool allowed = config.model.runtime_lora;
  return [=](const std::string& name, const std::string& path, AdapterKeeper::OnLoaded done) {
    const auto refuse = [&](Code code, const char* why) {
      post([code, why, done] { done(Fail(code, why)); });
    };
    if (!allowed) {
      return refuse(Code::kFailedPrecondition,
                    "it was not started with --runtime-lora, so it takes no LoRA adapters later");
    }
    const bool taken = pool->TrySubmit(0, [=] {
      // Shared, because std::function copies its captures.
      const auto loaded =
          std::make_shared<Result<PackedAdapter>>(LoadAndPack(*model, name, path, max_rank));
      post([done, loaded] { done(std::move(*loaded)); });
    });
    if (!taken) refuse(Code::kResourceExhausted, "too many LoRA adapters wait to be read; retry");
  };
}

}  // namespace aisp
