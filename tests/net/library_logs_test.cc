#include "net/library_logs.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "reflection.pb.h"

namespace aisp {
namespace {

class LibraryLogs : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc_init();  // reads the log settings
    TakeLibraryLogs();
  }
  void TearDown() override {
    gpr_set_log_function(nullptr);
    google::protobuf::SetLogHandler(nullptr);
    grpc_shutdown();
  }
};

TEST_F(LibraryLogs, AFloodOfWhatCannotBeReadIsALineAndNotOneEach) {
  ::testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) {
        grpc::reflection::v1::ServerReflectionRequest request;
        EXPECT_FALSE(request.ParseFromString("\x0a\x01\xff"));
        gpr_log(GPR_ERROR, "handshake %d failed: %s", i, std::string(5000, 'x').c_str());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 4) << said;
  EXPECT_LE(said.size(), 4096u);
  EXPECT_THAT(said, ::testing::HasSubstr("Protobuf says"));
  EXPECT_THAT(said, ::testing::HasSubstr("gRPC says"));
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("libprotobuf")));
}

}  // namespace
}  // namespace aisp
