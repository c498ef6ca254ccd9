// Values that a training script recorded with a golden head, and copies of such heads with one
// thing changed.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "model/files.h"
#include "model/json_reader.h"
#include "tests/model/golden.h"

namespace aisp {

class Recorded {
 public:
  explicit Recorded(const std::string& golden)
      : file_(*MappedFile::Open(GoldenDirectory(golden) + "/expected.safetensors")) {
    tensors_ = *ParseSafetensors(file_.bytes(), "expected");
  }
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const std::span<const std::byte> data = tensors_.at(name).data;
    std::vector<T> out(data.size() / sizeof(T));
    std::memcpy(out.data(), data.data(), data.size());
    return out;
  }

 private:
  const MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

class ChangedFolder : public testing::Test {
 protected:
  explicit ChangedFolder(std::string golden) : golden_(std::move(golden)) {}
  void SetUp() override {
    folder_ = testing::TempDir() + "/changed-" + golden_ + "-" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(GoldenDirectory(golden_), folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void SetConfig(const std::string& key, const Json& value) {
    Json json = Json::parse(*ReadTextFile(folder_ + "/config.json"));
    json[key] = value;
    std::ofstream(folder_ + "/config.json") << json.dump();
  }
  // The offset of the tensor's bytes in the file.
  size_t Place(const std::string& tensor) {
    const auto file = MappedFile::Open(folder_ + "/model.safetensors");
    const auto tensors = ParseSafetensors(file->bytes(), "changed");
    return static_cast<size_t>(tensors->at(tensor).data.data() - file->bytes().data());
  }
  void Write(size_t at, std::string_view bytes) {
    std::fstream file(folder_ + "/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  const std::string golden_;
  std::string folder_;
};

}  // namespace aisp
