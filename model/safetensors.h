// Checkpoint: the tensors of a directory's safetensors files, mapped read-only: one
// model.safetensors, or several named by model.safetensors.index.json. Files are untrusted: headers
// are checked before a tensor is returned, so a view never exceeds its file.
//
// Views stay valid as long as the Checkpoint. Immutable after Open: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "kernels/device/tensor_view.h"

namespace aisp {

struct StoredTensor {
  std::string dtype;  // as in the file: "BF16"
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // in the mapped file; its alignment is the file's
  std::string file;
};

// A mapped file. Move-only.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& o) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// Checks a file's header and returns its tensors. `name` is for messages. INVALID_ARGUMENT:
// truncated, not JSON, a tensor named twice, an unknown dtype, a size that does not match the
// shape, offsets outside the file, overlapping or with gaps.
Result<std::map<std::string, StoredTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                             const std::string& name);

// "F32", "BF16", ... as a DType; nullopt for one that no kernel reads.
std::optional<DType> StoredDType(std::string_view name);

class Checkpoint {
 public:
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& directory);

  // nullptr when there is none.
  const StoredTensor* Find(const std::string& name) const;
  // NOT_FOUND names the tensor, INVALID_ARGUMENT names both shapes or the dtype.
  Result<TensorView> Get(const std::string& name, std::span<const int64_t> shape) const;
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  std::vector<MappedFile> files_;
  std::map<std::string, StoredTensor> tensors_;
};

// A view of a stored tensor; INVALID_ARGUMENT for a dtype without kernels or a rank above 4.
Result<TensorView> ViewOf(const StoredTensor& tensor, const std::string& name);

// Identifies a checkpoint without reading all of it: XXH3-128 (32 hexadecimal digits) over
// config.json and, by name, every tensor's name, dtype, shape and content (whole up to 4 KiB, else
// eight evenly spaced pieces of 512 bytes). Detects other training, but not a single flipped byte.
Result<std::string> DigestCheckpoint(const std::string& directory);

}  // namespace aisp
