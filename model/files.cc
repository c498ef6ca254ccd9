#include "model/files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace aisp {

Result<std::string> ReadTextFile(const std::string& path) {
  constexpr uintmax_t kLimit = 64u << 20;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return NotFound(fmt::format("{}: {}", path, error.message()));
  if (size > kLimit)
    return InvalidArgument(
        fmt::format("{}: {} bytes, more than {} that such a file may have", path, size, kLimit));
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(fmt::format("{}: {}", path, std::strerror(errno)));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Result<std::vector<std::byte>> ReadBytes(const std::string& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return NotFound(fmt::format("{}: {}", path, error.message()));
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(fmt::format("{}: {}", path, std::strerror(errno)));
  std::vector<std::byte> bytes(size);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (static_cast<uintmax_t>(file.gcount()) != size) {
    return Unavailable(
        fmt::format("{}: {} of its {} bytes could be read; it changes, or the disk "
                    "fails",
                    path, file.gcount(), size));
  }
  return bytes;
}

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

}  // namespace aisp
