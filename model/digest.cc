#include <cstring>
#include <string>
#include <vector>

#include "common/hash.h"
#include "model/files.h"
#include "model/safetensors.h"

namespace aisp {
namespace {

constexpr size_t kWhole = 4096;
constexpr size_t kPieces = 8;
constexpr size_t kPieceBytes = 512;

void AppendHash(const Hash128& hash, std::string* out) {
  out->append(reinterpret_cast<const char*>(&hash.lo), sizeof(hash.lo));
  out->append(reinterpret_cast<const char*>(&hash.hi), sizeof(hash.hi));
}

void AppendContent(std::span<const std::byte> data, std::string* out) {
  if (data.size() <= kWhole) {
    out->append(reinterpret_cast<const char*>(data.data()), data.size());
    return;
  }
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t at = (data.size() - kPieceBytes) * i / (kPieces - 1);
    out->append(reinterpret_cast<const char*>(data.data()) + at, kPieceBytes);
  }
}

}  // namespace

Result<std::string> DigestCheckpoint(const std::string& directory) {
  AISP_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(directory));
  AISP_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(directory + "/config.json"));
  std::string hashes;
  AppendHash(HashBytes(config), &hashes);
  std::string sample;
  for (const auto& [name, tensor] : checkpoint->tensors()) {
    sample = name + '\0' + tensor.dtype + '\0';
    for (int64_t extent : tensor.shape)
      sample.append(reinterpret_cast<const char*>(&extent), sizeof(extent));
    AppendContent(tensor.data, &sample);
    AppendHash(HashBytes(sample), &hashes);
  }
  return HashBytes(hashes).ToHex();
}

}  // namespace aisp
