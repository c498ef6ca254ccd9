// The checks of `aisp doctor` on made-up machines.
#include "commands/doctor.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "net/listen_socket.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using Level = Finding::Level;

// A tree of files in place of /proc and /sys.
class DoctorTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  TempFolder folder_;
  std::string root_ = folder_.path();
};

TEST_F(DoctorTest, AGovernorThatSavesPowerIsAWarningWithWhatToDo) {
  EXPECT_EQ(CheckGovernor(root_).level, Level::kOk);  // a virtual machine has no governor
  Write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance");
  Write("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance");
  EXPECT_EQ(CheckGovernor(root_).level, Level::kOk);
  EXPECT_EQ(CheckGovernor(root_).found, "performance on 2 CPUs");
  Write("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave");
  const Finding mixed = CheckGovernor(root_);
  EXPECT_EQ(mixed.level, Level::kWarning);
  EXPECT_THAT(mixed.advice, HasSubstr("cpupower"));
}

TEST_F(DoctorTest, HugePagesThatAreOffAreAWarning) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  EXPECT_EQ(CheckHugePages(root_).level, Level::kOk);
  Write(path, "always [madvise] never");
  EXPECT_EQ(CheckHugePages(root_).level, Level::kOk);
  EXPECT_EQ(CheckHugePages(root_).found, "madvise");
  Write(path, "always madvise [never]");
  EXPECT_EQ(CheckHugePages(root_).level, Level::kWarning);
}

TEST_F(DoctorTest, AProcessThatMayWanderBetweenNodesIsAWarning) {
  Write("/sys/devices/system/node/node0/cpulist", "0-4095");
  EXPECT_EQ(CheckNuma(root_, {}).level, Level::kOk);
  Write("/sys/devices/system/node/node1/cpulist", "0-4095");
  GpuFacts gpu;
  gpu.pci = "0000:18:00.0";
  Write("/sys/bus/pci/devices/0000:18:00.0/numa_node", "1");
  const Finding found = CheckNuma(root_, {gpu});
  EXPECT_EQ(found.level, Level::kWarning);
  EXPECT_THAT(found.found, HasSubstr("GPU 0000:18:00.0 on node 1"));
  EXPECT_THAT(found.advice, HasSubstr("numactl"));
  Write("/sys/devices/system/node/node1/cpulist", "4095");
  EXPECT_EQ(CheckNuma(root_, {gpu}).level, Level::kOk);
}

TEST(Doctor, LimitsMatterOnlyWhereSomethingNeedsThem) {
  EXPECT_EQ(CheckMemlock(65536, false).level, Level::kOk);
  EXPECT_EQ(CheckMemlock(65536, true).level, Level::kWarning);
  EXPECT_EQ(CheckMemlock(UINT64_MAX, true).level, Level::kOk);
  EXPECT_EQ(CheckSharedMemory(64 << 20, false).level, Level::kOk);
  EXPECT_EQ(CheckSharedMemory(64 << 20, true).level, Level::kWarning);
  EXPECT_EQ(CheckOpenFiles(1024, 4096).level, Level::kWarning);
  EXPECT_THAT(CheckOpenFiles(1024, 4096).advice, HasSubstr("ulimit -n 4352"));
  EXPECT_EQ(CheckOpenFiles(65536, 4096).level, Level::kOk);
}

TEST(Doctor, NoDriverIsANoteAndABrokenOneAProblem) {
  const Result<std::string> backend = std::string("loads");
  auto none = CheckGpus(NotFound("libcuda.so.1 is not there"), backend);
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].level, Level::kNote);
  auto broken = CheckGpus(Unavailable("cuInit: unknown error"), backend);
  EXPECT_EQ(broken[0].level, Level::kProblem);
}

TEST(Doctor, GpusWithoutPeerAccessAndAMissingBackendAreNamed) {
  DriverFacts driver;
  driver.cuda_version = 13000;
  GpuFacts gpu;
  gpu.name = "NVIDIA H200";
  gpu.unreachable = {1};
  driver.gpus = {gpu};
  const auto findings = CheckGpus(driver, NotFound("libaisp_cuda.so is not there"));
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].found, "runs CUDA 13.0");
  EXPECT_EQ(findings[1].level, Level::kProblem);
  EXPECT_THAT(findings[1].advice, HasSubstr("make cuda"));
  EXPECT_EQ(findings[2].level, Level::kWarning);
  EXPECT_THAT(findings[2].found, HasSubstr("NVIDIA H200"));
}

TEST(Doctor, ATakenPortIsAProblemUnlessOurOwnRouterHoldsIt) {
  const auto held = ListenOn("127.0.0.1", 0, "");
  ASSERT_TRUE(held);
  Config config;
  config.http.port = PortOf(*held);
  config.http.grpc = false;
  auto findings = CheckPorts(config, false);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::kProblem);
  EXPECT_THAT(findings[0].advice, HasSubstr("--port N"));
  EXPECT_EQ(CheckPorts(config, true)[0].level, Level::kOk);
  close(*held);
  EXPECT_EQ(CheckPorts(config, false)[0].level, Level::kOk);
}

TEST(Doctor, WorkersOfAnotherVersionAndClocksThatDifferAreWarnings) {
  EXPECT_EQ(CheckVersions("2", {}).level, Level::kOk);
  EXPECT_EQ(CheckVersions("2", {{"d0", "2"}, {"d1", "2"}}).level, Level::kOk);
  const Finding mixed = CheckVersions("2", {{"d0", "2"}, {"d1", "1"}, {"d2", ""}});
  EXPECT_EQ(mixed.level, Level::kWarning);
  EXPECT_THAT(mixed.found, HasSubstr("1: d1"));
  EXPECT_THAT(mixed.found, HasSubstr("too old to say: d2"));
  EXPECT_EQ(CheckSkew(1).level, Level::kOk);
  EXPECT_EQ(CheckSkew(-30).level, Level::kWarning);
}

TEST(Doctor, TheReportCountsWhatIsWrongAndPutsTheAdviceBelow) {
  const std::string text = FindingsText(
      {{Level::kOk, "a", "fine", ""}, {Level::kProblem, "b", "bad", "mend it"}}, false);
  EXPECT_THAT(text, HasSubstr("ok       a  fine\n"));
  EXPECT_THAT(text, HasSubstr("PROBLEM  b  bad\n"));
  EXPECT_THAT(text, HasSubstr("-> mend it\n"));
  EXPECT_THAT(text, HasSubstr("1 problems, 0 warnings"));
}

}  // namespace
}  // namespace aisp
