// Loading and unloading of LoRA adapters at run time. The set of all adapters is one value with a
// version: a router makes the next one, and workers keep the last they received and report it to
// all routers. A name is in the set only after every worker has loaded its files.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/log.h"
#include "common/strings.h"
#include "router/router_impl.h"

namespace aisp {
namespace {

// Time for reading and converting the files on the slowest worker.
constexpr Duration kLoadLimit = std::chrono::seconds(120);
constexpr size_t kMaxLoadsWaiting = 64;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxPathBytes = 4096;
// Bound on a set that a worker reports.
constexpr int kMostAdapters = 1024;

bool Later(const v1::AdapterSet& a, const v1::AdapterSet& b) {
  return std::make_tuple(a.version(), a.author()) > std::make_tuple(b.version(), b.author());
}

// Metric labels and --lora separate names with commas.
Status CheckName(const std::string& name) {
  const bool plain = std::none_of(
      name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f || c == ','; });
  if (!name.empty() && name.size() <= kMaxNameBytes && plain) return {};
  return InvalidArgument(fmt::format(
      "the name of a LoRA adapter is '{}'; it has 1 to {} bytes without commas and control "
      "characters",
      Excerpt(name), kMaxNameBytes));
}

}  // namespace

const v1::Adapter* Router::Impl::AdapterNamed(const std::string& name) const {
  const auto& all = adapters.adapters();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const v1::Adapter& each) { return each.name() == name; });
  return found == all.end() ? nullptr : &*found;
}

bool Router::Impl::ServesAdapter(const std::string& digest) const {
  return std::any_of(adapters.adapters().begin(), adapters.adapters().end(),
                     [&](const v1::Adapter& each) { return each.digest() == digest; });
}

bool Router::Impl::HasReadyWorker(const std::string& digest) const {
  if (digest.empty()) return true;
  return std::any_of(workers.begin(), workers.end(), [&](const auto& each) {
    const WorkerState& worker = each.second;
    return worker.decode() && worker.Ready() && worker.adapters.count(digest) != 0;
  });
}

Status Router::Impl::CheckAdapterWish(const AdapterWish& wish) const {
  AISP_RETURN_IF_ERROR(CheckName(wish.name));
  if (wish.path.empty() || wish.path.size() > kMaxPathBytes) {
    return InvalidArgument(
        fmt::format("the path of the LoRA adapter '{}' has {} bytes; give the folder with its "
                    "files, in at most {}",
                    wish.name, wish.path.size(), kMaxPathBytes));
  }
  const bool there = AdapterNamed(wish.name) != nullptr;
  if (wish.name == expected.model_name() || (there && !wish.replace)) {
    return Fail(Code::kAlreadyExists,
                fmt::format("the name '{}' is taken already; {}", wish.name,
                            there ? "unload it first, or set load_inplace to replace it"
                                  : "it is the model's own, give the adapter another"));
  }
  if (!there && adapters.adapters_size() >= options.max_adapters) {
    return InvalidArgument(
        fmt::format("{} LoRA adapters are served, as many as model.max_loras allows; unload one, "
                    "or start all processes with a greater --max-loras",
                    adapters.adapters_size()));
  }
  return {};
}

void Router::Impl::LoadAdapter(AdapterWish wish, OnAdapter done) {
  if (loads_waiting.size() >= kMaxLoadsWaiting) {
    return done(Fail(Code::kResourceExhausted,
                     fmt::format("{} LoRA adapters wait to be loaded, the limit; retry later",
                                 loads_waiting.size())));
  }
  AdapterLoad load;
  load.wish = std::move(wish);
  load.done = std::move(done);
  loads_waiting.push_back(std::move(load));
  StartLoads();
}

// One at a time, so that each sees the set left by the one before.
void Router::Impl::StartLoads() {
  while (!loading && !loads_waiting.empty()) {
    AdapterLoad load = std::move(loads_waiting.front());
    loads_waiting.pop_front();
    if (const Status fits = CheckAdapterWish(load.wish); !fits) {
      load.done(tl::unexpected(fits.error()));
      continue;
    }
    v1::RouterMessage message;
    v1::LoadAdapter* ask = message.mutable_load_adapter();
    load.nonce = next_adapter_nonce++;
    ask->set_nonce(load.nonce);
    ask->set_name(load.wish.name);
    ask->set_path(load.wish.path);
    for (const auto& [id, worker] : workers) {
      if (worker.draining) continue;
      sender->Send(worker.link, message);
      load.waits.insert(id);
    }
    if (load.waits.empty()) {
      load.done(Unavailable("no worker is registered that could load it; start one, and retry"));
      continue;
    }
    load.until = clock->Now() + kLoadLimit;
    loading = std::move(load);
  }
}

void Router::Impl::OnAdapterAnswer(WorkerState& worker, const v1::AdapterAnswer& answer) {
  const std::string& id = worker.info.worker_id();
  if (!loading || loading->nonce != answer.nonce() || loading->waits.erase(id) == 0) return;
  if (answer.has_error()) {
    loading->failures.push_back(fmt::format("worker {}: {}", id, answer.error().message()));
  } else {
    loading->digests[id] = answer.digest();
    worker.adapters.insert(answer.digest());
  }
  if (loading->waits.empty()) EndLoad();
}

void Router::Impl::OnAdapterWorkerGone(const std::string& worker_id) {
  if (!loading) return;
  loading->digests.erase(worker_id);
  if (loading->waits.erase(worker_id) != 0 && loading->waits.empty()) EndLoad();
}

void Router::Impl::OnLoadTimer(Instant now) {
  if (!loading || now < loading->until) return;
  for (const std::string& id : std::exchange(loading->waits, {})) {
    loading->failures.push_back(
        fmt::format("worker {} did not answer within {:.0f} s", id, ToSeconds(kLoadLimit)));
  }
  EndLoad();
}

Result<v1::Adapter> Router::Impl::ResultOf(const AdapterLoad& load) const {
  if (!load.failures.empty()) return InvalidArgument(Join(load.failures, "; "));
  if (load.digests.empty()) return Unavailable("the workers that were to load it are gone; retry");
  const auto& [first, digest] = *load.digests.begin();
  for (const auto& [id, other] : load.digests) {
    if (other == digest) continue;
    return FailedPrecondition(
        fmt::format("the files differ: worker {} has the digest {}, worker {} has {}; give all "
                    "workers the same files at {}",
                    first, digest, id, other, load.wish.path));
  }
  // The set may have changed meanwhile.
  AISP_RETURN_IF_ERROR(CheckAdapterWish(load.wish));
  v1::Adapter made;
  made.set_name(load.wish.name);
  made.set_digest(digest);
  made.set_path(load.wish.path);
  return made;
}

void Router::Impl::EndLoad() {
  const AdapterLoad load = std::move(*loading);
  loading.reset();
  const Result<v1::Adapter> made = ResultOf(load);
  if (made) {
    v1::AdapterSet next = Without(made->name());
    *next.add_adapters() = *made;
    Publish(std::move(next));
    LogInfo("LoRA adapter served", {{"name", made->name()},
                                    {"digest", made->digest()},
                                    {"path", made->path()},
                                    {"workers", load.digests.size()}});
  } else {
    LogWarning("LoRA adapter not loaded",
               {{"name", load.wish.name}, {"error", made.error().message}});
    // Workers that have loaded it drop it.
    for (const auto& [id, worker] : workers) SendAdapters(worker);
  }
  load.done(made);
  StartLoads();
}

Result<v1::Adapter> Router::Impl::UnloadAdapter(const std::string& name) {
  const v1::Adapter* found = AdapterNamed(name);
  if (found == nullptr) {
    std::vector<std::string> known;
    for (const v1::Adapter& each : adapters.adapters()) known.push_back(each.name());
    return NotFound(fmt::format("no LoRA adapter is named '{}'; served: {}", Excerpt(name),
                                known.empty() ? "none" : Join(known, ", ")));
  }
  v1::Adapter gone = *found;
  Publish(Without(name));
  LogInfo("LoRA adapter unloaded", {{"name", name}, {"digest", gone.digest()}});
  return gone;
}

// The next set, without this name.
v1::AdapterSet Router::Impl::Without(const std::string& name) const {
  v1::AdapterSet next;
  next.set_version(adapters.version() + 1);
  next.set_author(adapter_author);
  for (const v1::Adapter& each : adapters.adapters()) {
    if (each.name() != name) *next.add_adapters() = each;
  }
  return next;
}

void Router::Impl::SendAdapters(const WorkerState& worker) {
  v1::RouterMessage message;
  *message.mutable_adapters() = adapters;
  sender->Send(worker.link, std::move(message));
}

void Router::Impl::Publish(v1::AdapterSet set) {
  adapters = std::move(set);
  for (const auto& [id, worker] : workers) SendAdapters(worker);
  if (options.on_adapters) options.on_adapters(adapters);
  EndUnserved();
}

// Running requests continue; waiting ones end.
void Router::Impl::EndUnserved() {
  std::vector<RequestId> unserved;
  for (const auto* waiting : {&pending, &queued}) {
    for (const RequestId id : *waiting) {
      const std::string& digest = requests.at(id.value).spec.adapter;
      if (!digest.empty() && !ServesAdapter(digest)) unserved.push_back(id);
    }
  }
  for (const RequestId id : unserved) {
    if (Request* request = Find(id); request != nullptr)
      Finish(*request, v1::FINISH_ERROR, UnservedError(), {});
  }
}

Error Router::Impl::UnservedError() {
  return {Code::kNotFound, "the LoRA adapter of this request was unloaded or replaced"};
}

void Router::Impl::OnAdapterReport(WorkerState& worker, const v1::AdapterReport& report) {
  worker.adapters = {report.digests().begin(), report.digests().end()};
  for (const v1::AdapterTrouble& trouble : report.troubles()) {
    if (!worker.adapters_lacked.insert(trouble.digest()).second) continue;
    LogWarning("a worker gets no requests of a LoRA adapter that it could not load",
               {{"worker", worker.info.worker_id()}, {"error", trouble.message()}});
  }
  std::erase_if(worker.adapters_lacked,
                [&](const std::string& digest) { return worker.adapters.count(digest) != 0; });
  if (Later(report.set(), adapters) && report.set().adapters_size() <= kMostAdapters) {
    LogInfo("the LoRA adapters are those that a worker knows of",
            {{"worker", worker.info.worker_id()},
             {"version", report.set().version()},
             {"adapters", report.set().adapters_size()}});
    Publish(report.set());
  }
}

void Router::Impl::OnAdapterChange(WorkerState& worker, const v1::AdapterReport& report) {
  if (Later(adapters, report.set())) SendAdapters(worker);
  OnAdapterReport(worker, report);
  PlacePending();
}

void Router::LoadAdapter(AdapterWish wish, OnAdapter done) {
  impl_->LoadAdapter(std::move(wish), std::move(done));
}
Result<v1::Adapter> Router::UnloadAdapter(const std::string& name) {
  return impl_->UnloadAdapter(name);
}

}  // namespace aisp
