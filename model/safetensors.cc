#include "model/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "common/strings.h"
#include "model/files.h"
#include "model/json_reader.h"
#include "model/safetensors_header.h"

namespace aisp {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct DTypeEntry {
  std::string_view name;
  size_t bytes;
  std::optional<DType> dtype;
};
constexpr std::array kDTypes = {
    DTypeEntry{"F64", 8, {}},
    DTypeEntry{"F32", 4, DType::kF32},
    DTypeEntry{"F16", 2, DType::kF16},
    DTypeEntry{"BF16", 2, DType::kBF16},
    DTypeEntry{"F8_E4M3", 1, DType::kF8E4M3},
    DTypeEntry{"F8_E5M2", 1, {}},
    DTypeEntry{"I64", 8, DType::kI64},
    DTypeEntry{"I32", 4, DType::kI32},
    DTypeEntry{"I16", 2, {}},
    DTypeEntry{"I8", 1, {}},
    DTypeEntry{"U8", 1, DType::kU8},
    DTypeEntry{"U16", 2, {}},
    DTypeEntry{"U32", 4, {}},
    DTypeEntry{"U64", 8, {}},
    DTypeEntry{"BOOL", 1, {}},
};

const DTypeEntry* FindDType(std::string_view name) {
  for (const DTypeEntry& e : kDTypes) {
    if (e.name == name) return &e;
  }
  return nullptr;
}

struct Extent {
  uint64_t begin, end;
  std::string name;
};

std::optional<uint64_t> AsUnsigned(const Json& v) {
  if (!v.is_number_unsigned()) return std::nullopt;
  return v.get<uint64_t>();
}

// One entry of the header: {"dtype": .., "shape": [..], "data_offsets": [begin, end]}.
Result<StoredTensor> ParseEntry(const Json& entry, uint64_t data_bytes, Extent* extent) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    return InvalidArgument("its header entry needs dtype, shape and two data_offsets");
  }
  StoredTensor t;
  t.dtype = entry["dtype"].get<std::string>();
  const DTypeEntry* dtype = FindDType(t.dtype);
  if (dtype == nullptr)
    return InvalidArgument(fmt::format("unknown dtype \"{}\"", Excerpt(t.dtype)));
  uint64_t bytes = dtype->bytes;
  uint64_t stride = 1;  // an extent of 0 means no bytes; keeps the other strides valid
  for (const Json& d : entry["shape"]) {
    const auto extent_of = AsUnsigned(d);
    if (!extent_of || *extent_of > uint64_t{1} << 48 ||
        __builtin_mul_overflow(bytes, *extent_of, &bytes) ||
        __builtin_mul_overflow(stride, std::max<uint64_t>(1, *extent_of), &stride) ||
        stride > INT64_MAX) {
      return InvalidArgument(fmt::format("impossible shape {}", Excerpt(entry["shape"].dump())));
    }
    t.shape.push_back(static_cast<int64_t>(*extent_of));
  }
  const auto begin = AsUnsigned(entry["data_offsets"][0]),
             end = AsUnsigned(entry["data_offsets"][1]);
  if (!begin || !end || *begin > *end || *end > data_bytes) {
    return InvalidArgument(fmt::format(
        "data_offsets {} do not lie within the {} bytes of data; the file may be truncated",
        Excerpt(entry["data_offsets"].dump()), data_bytes));
  }
  if (*end - *begin != bytes) {
    return InvalidArgument(fmt::format("{} bytes of data, but {} {} take {}", *end - *begin,
                                       t.dtype, Excerpt(entry["shape"].dump()), bytes));
  }
  *extent = {*begin, *end, {}};
  return t;
}

Status CheckExtents(std::vector<Extent> extents, uint64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Extent& e : extents) {
    if (e.begin < at)
      return InvalidArgument(fmt::format("tensor \"{}\" overlaps the one before it at byte {}",
                                         Excerpt(e.name), e.begin));
    if (e.begin > at)
      return InvalidArgument(
          fmt::format("a hole of {} bytes before tensor \"{}\"", e.begin - at, Excerpt(e.name)));
    at = e.end;
  }
  if (at != data_bytes)
    return InvalidArgument(fmt::format("{} bytes of data belong to no tensor", data_bytes - at));
  return {};
}

// nlohmann silently keeps the last of equal keys; a tensor named twice must be an error.
Result<Json> ParseHeader(std::string_view text) {
  std::set<std::string> names;
  std::string twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth == 1 && event == Json::parse_event_t::key &&
        !names.insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  Json header = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object())
    return InvalidArgument("its header is not a JSON object");
  if (!twice.empty())
    return InvalidArgument(fmt::format("tensor \"{}\" is named twice", Excerpt(twice)));
  return header;
}

// All tensors of the header, each with its extent and without data.
Result<std::vector<std::pair<Extent, StoredTensor>>> ParseEntries(std::string_view text,
                                                                  uint64_t data_bytes) {
  AISP_ASSIGN_OR_RETURN(const Json header, ParseHeader(text));
  std::vector<std::pair<Extent, StoredTensor>> entries;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    Extent extent{};
    auto tensor = ParseEntry(entry, data_bytes, &extent);
    if (!tensor)
      return tl::unexpected(
          tensor.error().WithContext(fmt::format("tensor \"{}\"", Excerpt(name))));
    extent.name = name;
    extents.push_back(extent);
    entries.emplace_back(std::move(extent), std::move(*tensor));
  }
  AISP_RETURN_IF_ERROR(CheckExtents(std::move(extents), data_bytes));
  return entries;
}

Result<std::map<std::string, StoredTensor>> ParseFile(std::span<const std::byte> file) {
  if (file.size() < 8)
    return InvalidArgument(fmt::format("{} bytes; a safetensors file has 8 at least", file.size()));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - 8) {
    return InvalidArgument(fmt::format(
        "a header of {} bytes is announced, {} follow; not a safetensors file, or truncated",
        header_bytes, file.size() - 8));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  const auto data = file.subspan(8 + header_bytes);
  AISP_ASSIGN_OR_RETURN(auto entries, ParseEntries(text, data.size()));
  std::map<std::string, StoredTensor> tensors;
  for (auto& [extent, tensor] : entries) {
    tensor.data = data.subspan(extent.begin, extent.end - extent.begin);
    tensors.emplace(std::move(extent.name), std::move(tensor));
  }
  return tensors;
}

// The files of a checkpoint and, with an index, the file of each tensor.
struct FileList {
  std::vector<std::string> files;
  std::map<std::string, std::string> file_of_tensor;
};

Result<FileList> ListFiles(const std::string& directory) {
  FileList list;
  const std::string index = directory + "/model.safetensors.index.json";
  if (!FileExists(index)) {
    if (!FileExists(directory + "/model.safetensors")) {
      return NotFound(fmt::format(
          "{}: neither model.safetensors nor model.safetensors.index.json is there", directory));
    }
    list.files.push_back("model.safetensors");
    return list;
  }
  AISP_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index));
  AISP_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, index));
  if (!json.contains("weight_map") || !json["weight_map"].is_object())
    return InvalidArgument(index + ": \"weight_map\" is missing");
  std::set<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      return InvalidArgument(fmt::format("{}: tensor \"{}\" lies in \"{}\", which is no file name",
                                         index, Excerpt(tensor), Excerpt(name)));
    }
    files.insert(name);
    list.file_of_tensor.emplace(tensor, name);
  }
  list.files.assign(files.begin(), files.end());
  return list;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotFound(fmt::format("{}: {}", path, std::strerror(errno)));
  struct stat st {};
  if (fstat(fd, &st) != 0 || st.st_size <= 0) {
    close(fd);
    return InvalidArgument(fmt::format("{}: empty or not a regular file", path));
  }
  const auto bytes = static_cast<size_t>(st.st_size);
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  close(fd);
  if (data == MAP_FAILED)
    return ResourceExhausted(
        fmt::format("{}: mapping {} bytes: {}", path, bytes, std::strerror(error)));
  return MappedFile({static_cast<const std::byte*>(data), bytes});
}

MappedFile::MappedFile(MappedFile&& o) noexcept : bytes_(std::exchange(o.bytes_, {})) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<std::map<std::string, StoredTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                             const std::string& name) {
  auto tensors = ParseFile(file);
  if (!tensors) return tl::unexpected(tensors.error().WithContext(name));
  for (auto& [tensor, stored] : *tensors) stored.file = name;
  return tensors;
}

Result<std::map<std::string, StoredTensor>> ParseSafetensorsHeader(std::string_view header,
                                                                   uint64_t data_bytes,
                                                                   const std::string& name) {
  auto entries = ParseEntries(header, data_bytes);
  if (!entries) return tl::unexpected(entries.error().WithContext(name));
  std::map<std::string, StoredTensor> tensors;
  for (auto& [extent, tensor] : *entries) {
    tensor.file = name;
    tensors.emplace(std::move(extent.name), std::move(tensor));
  }
  return tensors;
}

std::optional<DType> StoredDType(std::string_view name) {
  const DTypeEntry* e = FindDType(name);
  return e == nullptr ? std::nullopt : e->dtype;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory) {
  AISP_ASSIGN_OR_RETURN(const FileList list, ListFiles(directory));
  auto checkpoint = std::make_unique<Checkpoint>();
  checkpoint->directory_ = directory;
  for (const std::string& name : list.files) {
    const std::string path = fmt::format("{}/{}", directory, name);
    AISP_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    AISP_ASSIGN_OR_RETURN(auto tensors, ParseSafetensors(file.bytes(), path));
    checkpoint->files_.push_back(std::move(file));
    for (auto& [tensor, stored] : tensors) {
      const auto [it, added] = checkpoint->tensors_.emplace(tensor, std::move(stored));
      if (!added)
        return InvalidArgument(fmt::format("tensor \"{}\" is in {} and in {}", Excerpt(tensor),
                                           it->second.file, path));
    }
  }
  for (const auto& [tensor, file] : list.file_of_tensor) {
    const StoredTensor* stored = checkpoint->Find(tensor);
    if (stored == nullptr || stored->file != fmt::format("{}/{}", directory, file)) {
      return InvalidArgument(
          fmt::format("{}: the index says that tensor \"{}\" is in {}, but it is not", directory,
                      Excerpt(tensor), file));
    }
  }
  return checkpoint;
}

const StoredTensor* Checkpoint::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Result<TensorView> ViewOf(const StoredTensor& tensor, const std::string& name) {
  const auto dtype = StoredDType(tensor.dtype);
  if (!dtype)
    return InvalidArgument(
        fmt::format("tensor \"{}\": dtype {} cannot be used", name, tensor.dtype));
  if (tensor.shape.size() > TensorView::kMaxRank) {
    return InvalidArgument(fmt::format("tensor \"{}\": {} dimensions, at most {} are possible",
                                       name, tensor.shape.size(), TensorView::kMaxRank));
  }
  TensorView view;
  view.data = const_cast<std::byte*>(tensor.data.data());
  view.dtype = *dtype;
  view.rank = static_cast<int32_t>(tensor.shape.size());
  int64_t stride = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    view.shape[i] = tensor.shape[i];
    view.strides[i] = stride;
    stride *= tensor.shape[i];
  }
  return view;
}

Result<TensorView> Checkpoint::Get(const std::string& name, std::span<const int64_t> shape) const {
  const StoredTensor* stored = Find(name);
  if (stored == nullptr)
    return NotFound(fmt::format("{}: tensor \"{}\" is missing", directory_, name));
  if (!std::equal(shape.begin(), shape.end(), stored->shape.begin(), stored->shape.end())) {
    return InvalidArgument(fmt::format("{}: tensor \"{}\" has shape [{}], config.json wants [{}]",
                                       stored->file, name, fmt::join(stored->shape, ", "),
                                       fmt::join(shape.begin(), shape.end(), ", ")));
  }
  return ViewOf(*stored, name);
}

}  // namespace aisp
