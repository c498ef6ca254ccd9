// Files and folders that exist as long as a test. Their names contain the process id, so that two
// runs on one machine do not collide.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace aisp {

// Created only if it has content; removed at the end.
class TempFile {
 public:
  explicit TempFile(const std::string& name)
      : path_(::testing::TempDir() + "/aisp_" + std::to_string(getpid()) + "_" + name) {}
  TempFile(const std::string& name, const std::string& content) : TempFile(name) { Write(content); }
  ~TempFile() { unlink(path_.c_str()); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
  }
  std::string Read() const {
    std::ifstream in(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

 private:
  const std::string path_;
};

// An empty folder, removed at the end with all its contents.
class TempFolder {
 public:
  TempFolder() {
    path_ = (std::filesystem::temp_directory_path() / "aisp_test_XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "no folder " << path_;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(std::filesystem::path(path_) / name, std::ios::binary) << content;
  }

 private:
  std::string path_;
};

}  // namespace aisp
