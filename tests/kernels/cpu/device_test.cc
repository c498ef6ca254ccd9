#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/device/buffer.h"

namespace aisp {
namespace {

class CpuDeviceTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Stream> stream_ = std::move(*device_->CreateStream());
};

TEST_F(CpuDeviceTest, MemoryIsZeroedAndAligned) {
  for (MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kHost, MemoryKind::kShareable}) {
    auto buffer = device_->Allocate(100'000, kind);
    ASSERT_TRUE(buffer.has_value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
    const auto* bytes = static_cast<const uint8_t*>(buffer->data());
    for (size_t i = 0; i < buffer->bytes(); ++i) ASSERT_EQ(bytes[i], 0);
  }
}

TEST_F(CpuDeviceTest, AbsurdSizesAreRefusedWithTheSize) {
  const auto buffer = device_->Allocate(size_t{1} << 60, MemoryKind::kShareable);
  ASSERT_FALSE(buffer.has_value());
  EXPECT_EQ(buffer.error().code, Code::kResourceExhausted);
  EXPECT_NE(buffer.error().message.find("1152921504606846976"), std::string::npos)
      << buffer.error().message;
  EXPECT_FALSE(device_->Allocate(0, MemoryKind::kDevice).has_value());
}

TEST_F(CpuDeviceTest, ExportedMemoryIsTheSameMemoryWhenImported) {
  Buffer own = std::move(*device_->Allocate(1 << 16, MemoryKind::kShareable));
  const auto handle = device_->Export(own);
  ASSERT_TRUE(handle.has_value());
  Buffer other = std::move(*device_->Import(*handle));
  EXPECT_NE(own.data(), other.data());
  static_cast<char*>(own.data())[12345] = 'x';
  EXPECT_EQ(static_cast<char*>(other.data())[12345], 'x');
  // The importer keeps it alive.
  own = Buffer();
  EXPECT_EQ(static_cast<char*>(other.data())[12345], 'x');
}

// A process that imports it holds its descriptor.
TEST_F(CpuDeviceTest, SharedMemoryCannotBeTakenAway) {
  Buffer own = std::move(*device_->Allocate(1 << 16, MemoryKind::kShareable));
  const auto handle = device_->Export(own);
  ASSERT_TRUE(handle.has_value());
  EXPECT_NE(ftruncate(handle->fd, 0), 0);
  EXPECT_NE(fcntl(handle->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  static_cast<char*>(own.data())[12345] = 'x';
  // Unsealed memory is not imported.
  MemoryHandle foreign = *handle;
  foreign.fd = memfd_create("unsealed", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(foreign.fd, 1 << 16), 0);
  EXPECT_EQ(device_->Import(foreign).error().code, Code::kInvalidArgument);
  close(foreign.fd);
}

TEST_F(CpuDeviceTest, OnlyShareableMemoryIsExportedAndOnlyWholeFilesAreImported) {
  const Buffer local = std::move(*device_->Allocate(4096, MemoryKind::kDevice));
  EXPECT_EQ(device_->Export(local).error().code, Code::kFailedPrecondition);
  const Buffer shared = std::move(*device_->Allocate(4096, MemoryKind::kShareable));
  MemoryHandle handle = *device_->Export(shared);
  handle.bytes = 8192;
  EXPECT_EQ(device_->Import(handle).error().code, Code::kInvalidArgument);
  handle = *device_->Export(shared);
  handle.device_kind = "cuda";
  EXPECT_EQ(device_->Import(handle).error().code, Code::kInvalidArgument);
}

TEST_F(CpuDeviceTest, RangesAreCopiedToWhereTheySay) {
  std::vector<char> source(64), target(64, '.');
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>('0' + i);
  const CopyRange ranges[] = {{0, 32, 4}, {10, 0, 3}};
  ASSERT_TRUE(device_->CopyRanges(target.data(), source.data(), ranges, *stream_).has_value());
  EXPECT_EQ(std::memcmp(target.data() + 32, source.data(), 4), 0);
  EXPECT_EQ(std::memcmp(target.data(), source.data() + 10, 3), 0);
  EXPECT_EQ(target[3], '.');
}

TEST_F(CpuDeviceTest, GraphsAreAnsweredAsUnsupported) {
  EXPECT_FALSE(device_->info().supports_graphs);
  EXPECT_EQ(device_->BeginCapture(*stream_).error().code, Code::kUnimplemented);
  EXPECT_EQ(device_->EndCapture(*stream_).error().code, Code::kUnimplemented);
}

TEST_F(CpuDeviceTest, MemoryInfoIsPlausible) {
  const auto info = device_->GetMemoryInfo();
  ASSERT_TRUE(info.has_value());
  EXPECT_GT(info->total_bytes, size_t{64} << 20);
  EXPECT_LE(info->free_bytes, info->total_bytes);
}

TEST_F(CpuDeviceTest, AnArenaGivesAlignedPartsUntilItIsUsedUp) {
  DeviceArena arena(std::move(*device_->Allocate(1024, MemoryKind::kDevice)));
  const auto a = arena.AllocateTensor(DType::kF32, {3, 5});
  const auto b = arena.AllocateTensor(DType::kBF16, {100});
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_EQ(static_cast<std::byte*>(b->data) - static_cast<std::byte*>(a->data), 256);
  EXPECT_EQ(arena.Allocate(513).error().code, Code::kResourceExhausted);
  EXPECT_TRUE(arena.Allocate(512).has_value());
  EXPECT_EQ(arena.used(), arena.capacity());
}

}  // namespace
}  // namespace aisp
