// LoRA adapters are loaded and dropped while sequences run. A dropped adapter takes no new sequence
// and keeps its slot until the last one with it has ended and has no rows in flight.
#include <fmt/format.h>

#include <utility>

#include "common/log.h"
#include "engine/engine_impl.h"

namespace aisp {

bool Engine::Impl::HasAdapter(std::string_view digest) const {
  return executor->FindAdapter(digest) >= 0 && leaving_adapters.count(digest) == 0;
}

Status Engine::Impl::LoadAdapter(PackedAdapter adapter) {
  if (!failed) return tl::unexpected(failed.error());
  if (executor->FindAdapter(adapter.digest) >= 0) {
    leaving_adapters.erase(adapter.digest);
    return {};
  }
  FreeAdapters();
  for (int32_t slot = 0; slot < executor->adapter_slots(); ++slot) {
    if (executor->AdapterIn(slot).empty()) return executor->SetAdapter(slot, std::move(adapter));
  }
  return ResourceExhausted(
      fmt::format("all {} places for LoRA adapters are taken, {} of them until the last requests "
                  "with unloaded ones end; unload one, or start with a greater --max-loras",
                  executor->adapter_slots(), leaving_adapters.size()));
}

void Engine::Impl::DropAdapter(std::string_view digest) {
  if (executor->FindAdapter(digest) < 0) return;
  leaving_adapters.emplace(digest);
  FreeAdapters();
}

void Engine::Impl::FreeAdapters() {
  if (leaving_adapters.empty()) return;
  std::set<int32_t> used;
  table.ForEach([&used](const Sequence& s) { used.insert(s.adapter); });
  std::erase_if(leaving_adapters, [&](const std::string& digest) {
    for (int32_t slot; (slot = executor->FindAdapter(digest)) >= 0;) {
      if (used.count(slot) != 0) return false;
      if (const Status emptied = executor->SetAdapter(slot, {}); !emptied) {
        LogWarning("the place of a LoRA adapter could not be emptied",
                   {{"digest", digest}, {"error", emptied.error().message}});
        return false;
      }
    }
    return true;
  });
}

Status Engine::LoadAdapter(PackedAdapter adapter) { return impl_->LoadAdapter(std::move(adapter)); }
void Engine::DropAdapter(std::string_view digest) { impl_->DropAdapter(digest); }
bool Engine::HasAdapter(std::string_view digest) const { return impl_->HasAdapter(digest); }
int32_t Engine::AdapterPlaces() const { return impl_->executor->adapter_slots(); }

}  // namespace aisp
