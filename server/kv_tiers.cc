#include "server/kv_tiers.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/log.h"
#include "common/prefix_hash.h"
#include "common/strings.h"
#include "proto/fingerprint.h"

namespace aisp {
namespace {

// Limit of workers of one host that share a folder.
constexpr int kMaxFiles = 64;

// Identifies blocks by model, arithmetic and layout; others cannot be used.
Hash128 DiskFingerprint(const v1::Fingerprint& fingerprint, const KvLayout& kv) {
  return PrefixRoot(
      PrefixDigest(fingerprint), DTypeName(kv.dtype), "kv disk",
      fmt::format("{}x{}x{}x{}", kv.num_layers, kv.num_kv_heads, kv.head_dim, kv.block_tokens));
}

// Opens the first file of this role that no other process holds. So after a restart a worker finds
// the blocks that it, or another worker of its role, left.
Result<std::unique_ptr<PosixBlockFile>> OpenFile(const std::string& folder, const std::string& role,
                                                 uint64_t bytes, std::string* path) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return InvalidArgument(fmt::format("kv.disk_path {}: {}", folder, error.message()));
  for (int i = 0; i < kMaxFiles; ++i) {
    *path = fmt::format("{}/{}-{}.kv", folder, role, i);
    auto file = PosixBlockFile::Open(*path, bytes);
    if (file || file.error().code != Code::kAlreadyExists) return file;
  }
  return ResourceExhausted(
      fmt::format("all {} files of kv.disk_path {} are in use", kMaxFiles, folder));
}

// Host memory with the alignment that the file's reads need.
struct Aligned {
  Buffer memory;
  std::span<std::byte> bytes;
};
Result<Aligned> AllocateAligned(Device& device, size_t bytes) {
  constexpr size_t kAlign = BlockFile::kAlignment;
  AISP_ASSIGN_OR_RETURN(Buffer memory, device.Allocate(bytes + kAlign, MemoryKind::kHost));
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  const size_t skip = (kAlign - address % kAlign) % kAlign;
  const std::span<std::byte> span{static_cast<std::byte*>(memory.data()) + skip, bytes};
  return Aligned{std::move(memory), span};
}

// Time to read a block, measured on the newest entries; 0: nothing could be read.
double MeasureRead(DiskStore& disk, std::span<const TierEntry> entries,
                   std::span<std::byte> slot_buffer) {
  constexpr size_t kMeasured = 4;
  const SteadyClock clock;
  const Instant begin = clock.Now();
  size_t read = 0;
  for (size_t i = 0; i < std::min(kMeasured, entries.size()); ++i) {
    const TierEntry& entry = entries[entries.size() - 1 - i];
    if (disk.Read(entry.slot, entry.key, slot_buffer)) ++read;
  }
  return read == 0 ? 0 : ToSeconds(clock.Now() - begin) / static_cast<double>(read);
}

Result<std::unique_ptr<DiskStore>> OpenDisk(const Config& config,
                                            const v1::Fingerprint& fingerprint,
                                            const std::string& role, const Backend& backend,
                                            TierOptions* tiers) {
  const KvLayout& kv = backend.executor->kv_layout();
  const size_t slot_bytes = DiskStore::SlotBytes(kv.BlockBytes());
  const auto slots =
      std::min<size_t>(static_cast<size_t>(config.kv.disk_bytes) / slot_bytes, INT32_MAX / 2);
  if (slots == 0) {
    return InvalidArgument(
        fmt::format("kv.disk_bytes is {} and a block takes {}; give it more room, or no "
                    "kv.disk_path",
                    config.kv.disk_bytes, slot_bytes));
  }
  std::string path;
  auto file = OpenFile(config.kv.disk_path, role, slots * slot_bytes, &path);
  if (!file) {
    if (file.error().code != Code::kResourceExhausted)
      return tl::unexpected(file.error().WithContext("kv.disk_path"));
    LogError("this worker has no disk tier", {{"error", file.error().message}});
    return nullptr;
  }
  const bool direct = (*file)->direct();
  auto disk = std::make_unique<DiskStore>(
      DiskStore::Shape{DiskFingerprint(fingerprint, kv), kv.BlockBytes(),
                       backend.executor->max_context()},
      std::move(*file), static_cast<int32_t>(slots));
  const SteadyClock clock;
  const Instant begin = clock.Now();
  AISP_ASSIGN_OR_RETURN(const Aligned scratch, AllocateAligned(*backend.device, slot_bytes));
  tiers->on_disk = disk->Scan(scratch.bytes.first(DiskStore::kHeaderBytes));
  tiers->disk_load_seconds = MeasureRead(*disk, tiers->on_disk, scratch.bytes);
  LogInfo("KV disk tier", {{"file", path},
                           {"size", HumanBytes(slots * slot_bytes)},
                           {"blocks", slots},
                           {"found", tiers->on_disk.size()},
                           {"block_ms", 1e3 * tiers->disk_load_seconds},
                           {"direct", direct},
                           {"read_ms", ToMs(clock.Now() - begin)}});
  return disk;
}

// A setting that would have no effect is an error, or at least a warning.
Status CheckTierSettings(const Config& config) {
  const Config::Kv& kv = config.kv;
  if (kv.disk_path.empty() && kv.disk_bytes != Config::Kv().disk_bytes) {
    return InvalidArgument(
        fmt::format("kv.disk_bytes is {} and there is no kv.disk_path; name a folder with "
                    "--kv-disk-path, or leave kv.disk_bytes out",
                    kv.disk_bytes));
  }
  if (!config.engine.prefix_cache && (kv.host_memory > 0 || !kv.disk_path.empty())) {
    LogWarning("this worker has no KV tiers: they hold prefixes, and engine.prefix_cache is off");
  }
  return {};
}

}  // namespace

Result<WorkerTiers> OpenTiers(const Config& config, const v1::Fingerprint& fingerprint,
                              const std::string& role, const Backend& backend,
                              std::function<void()> on_done) {
  WorkerTiers tiers;
  AISP_RETURN_IF_ERROR(CheckTierSettings(config));
  if (!config.engine.prefix_cache) return tiers;
  const KvLayout& kv = backend.executor->kv_layout();
  TierThreads::Options threads;
  threads.layout = kv;
  threads.pool = static_cast<std::byte*>(backend.executor->kv_pool().data());
  threads.on_done = std::move(on_done);
  if (config.kv.host_memory > 0) {
    const auto slots = static_cast<size_t>(config.kv.host_memory) / kv.BlockBytes();
    if (slots == 0) {
      return InvalidArgument(
          fmt::format("kv.host_memory is {} and a block takes {}; give it more, "
                      "or 0 for none",
                      config.kv.host_memory, kv.BlockBytes()));
    }
    threads.host_slots = static_cast<int32_t>(std::min<size_t>(slots, INT32_MAX / 2));
    LogInfo("KV host tier", {{"size", HumanBytes(slots * kv.BlockBytes())}, {"blocks", slots}});
  }
  if (!config.kv.disk_path.empty()) {
    AISP_ASSIGN_OR_RETURN(threads.disk,
                          OpenDisk(config, fingerprint, role, backend, &tiers.options));
  }
  if (threads.host_slots == 0 && threads.disk == nullptr) return tiers;
  tiers.options.host_slots = threads.host_slots;
  tiers.options.disk_slots = threads.disk == nullptr ? 0 : threads.disk->slots();
  AISP_ASSIGN_OR_RETURN(tiers.threads, TierThreads::Start(std::move(threads), *backend.device));
  tiers.options.io = tiers.threads.get();
  return tiers;
}

}  // namespace aisp
