#include "worker/adapter_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/log.h"

namespace aisp {
namespace {

bool Later(const v1::AdapterSet& a, const v1::AdapterSet& b) {
  return std::make_tuple(a.version(), a.author()) > std::make_tuple(b.version(), b.author());
}

}  // namespace

AdapterKeeper::AdapterKeeper(v1::AdapterSet start, Loader loader)
    : set_(std::move(start)), loader_(std::move(loader)) {
  for (const v1::Adapter& adapter : set_.adapters()) held_.insert(adapter.digest());
}

bool AdapterKeeper::InSet(const std::string& digest) const {
  return std::any_of(set_.adapters().begin(), set_.adapters().end(),
                     [&](const v1::Adapter& each) { return each.digest() == digest; });
}

bool AdapterKeeper::OnTrial(const std::string& digest) const {
  return std::any_of(trial_.begin(), trial_.end(),
                     [&](const auto& each) { return each.second.count(digest) != 0; });
}

void AdapterKeeper::Drop(const std::string& digest) {
  held_.erase(digest);
  engine_->DropAdapter(digest);
}

void AdapterKeeper::Changed() {
  for (const auto& listener : listeners_) listener();
}

void AdapterKeeper::Load(LinkId link, const v1::LoadAdapter& asked, OnAnswer answer) {
  trial_[link];  // erased when the link goes down
  loader_(asked.name(), asked.path(),
          [this, link, asked, answer = std::move(answer)](Result<PackedAdapter> loaded) {
            const auto asker = trial_.find(link);
            if (asker == trial_.end()) return;
            v1::AdapterAnswer out;
            out.set_nonce(asked.nonce());
            const std::string digest = loaded ? loaded->digest : "";
            const Status taken = loaded ? engine_->LoadAdapter(std::move(*loaded))
                                        : Status(tl::unexpected(loaded.error()));
            if (taken) {
              held_.insert(digest);
              asker->second.insert(digest);
              troubles_.erase(digest);
              out.set_digest(digest);
              LogInfo("LoRA adapter loaded", {{"name", asked.name()}, {"digest", digest}});
            } else {
              out.mutable_error()->set_code(static_cast<int>(taken.error().code));
              out.mutable_error()->set_message(taken.error().message);
            }
            answer(std::move(out));
          });
}

void AdapterKeeper::Take(const v1::AdapterSet& set) {
  if (Later(set_, set)) return;
  set_ = set;
  for (auto& [link, digests] : trial_) digests.clear();
  const std::set<std::string> held = held_;
  for (const std::string& digest : held) {
    if (!InSet(digest)) Drop(digest);
  }
  std::erase_if(troubles_, [this](const auto& each) { return !InSet(each.first); });
  for (const v1::Adapter& adapter : set_.adapters()) {
    if (held_.count(adapter.digest()) == 0) LoadMissing(adapter);
  }
  Changed();
}

void AdapterKeeper::LoadMissing(const v1::Adapter& adapter) {
  if (!loading_.insert(adapter.digest()).second) return;
  loader_(adapter.name(), adapter.path(), [this, adapter](Result<PackedAdapter> loaded) {
    OnMissingLoaded(adapter, std::move(loaded));
  });
}

void AdapterKeeper::OnMissingLoaded(const v1::Adapter& wanted, Result<PackedAdapter> loaded) {
  const std::string& digest = wanted.digest();
  loading_.erase(digest);
  if (!InSet(digest) || held_.count(digest) != 0) return;
  if (loaded && loaded->digest != digest) {
    loaded = Fail(Code::kFailedPrecondition,
                  fmt::format("{}: the digest of its files is {}, that of the other workers' {}; "
                              "give all workers the same files",
                              wanted.path(), loaded->digest, digest));
  }
  const Status taken =
      loaded ? engine_->LoadAdapter(std::move(*loaded)) : Status(tl::unexpected(loaded.error()));
  if (taken) {
    held_.insert(digest);
    troubles_.erase(digest);
    LogInfo("LoRA adapter loaded", {{"name", wanted.name()}, {"digest", digest}});
  } else {
    troubles_[digest] = taken.error().message;
    LogError("this worker gets no requests of a LoRA adapter that it could not load",
             {{"name", wanted.name()}, {"error", taken.error().message}});
  }
  Changed();
}

void AdapterKeeper::OnLinkDown(LinkId link) {
  const auto gone = trial_.extract(link);
  if (gone.empty()) return;
  for (const std::string& digest : gone.mapped()) {
    if (!InSet(digest) && !OnTrial(digest)) Drop(digest);
  }
}

v1::AdapterReport AdapterKeeper::Report() const {
  v1::AdapterReport report;
  *report.mutable_set() = set_;
  for (const std::string& digest : held_) report.add_digests(digest);
  for (const auto& [digest, message] : troubles_) {
    v1::AdapterTrouble* trouble = report.add_troubles();
    trouble->set_digest(digest);
    trouble->set_message(message);
  }
  return report;
}

}  // namespace aisp
