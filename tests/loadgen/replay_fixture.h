// A replay server in this process, and runs against it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loadgen/replay_server.h"
#include "loadgen/session.h"
#include "tests/net/loop_thread.h"

namespace aisp::loadgen {

class ReplayTest : public ::testing::Test {
 protected:
  void Serve(const ReplayOptions& options, std::vector<ReplayTiming> recording = {}) {
    loop_.On([&] {
      server_ = std::make_unique<ReplayServer>(&loop_.loop(), options, std::move(recording));
      ASSERT_TRUE(server_->Start());
    });
  }
  void TearDown() override {
    loop_.On([&] { server_.reset(); });
    loop_.Stop();
  }
  Options Asking(const std::vector<std::string>& flags) const {
    std::vector<std::string> args = {"--port", std::to_string(server_->port()), "--no-progress"};
    args.insert(args.end(), flags.begin(), flags.end());
    auto options = ParseOptions(args);
    EXPECT_TRUE(options) << options.error().message;
    return options.value_or(Options());
  }
  Outcome Run(const std::vector<std::string>& flags) const {
    const Options options = Asking(flags);
    auto session = Session::Open(options, {});
    EXPECT_TRUE(session) << session.error().message;
    auto outcome = session->Run(options);
    EXPECT_TRUE(outcome) << outcome.error().message;
    return std::move(*outcome);
  }

  LoopThread loop_;
  std::unique_ptr<ReplayServer> server_;
};

}  // namespace aisp::loadgen
