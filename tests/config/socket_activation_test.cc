#include "config/socket_activation.h"

#include <gmock/gmock.h>

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(SocketActivation, DescriptorsAreFoundByNameElseByTheirOrder) {
  EXPECT_THAT(*ParseActivationSockets("42", "2", "workers:http", 42),
              ElementsAre(Pair("http", 4), Pair("workers", 3)));
  EXPECT_THAT(*ParseActivationSockets("42", "3", "", 42),
              ElementsAre(Pair("grpc", 5), Pair("http", 3), Pair("workers", 4)));
  EXPECT_THAT(*ParseActivationSockets("42", "1", "", 42), ElementsAre(Pair("http", 3)));
}

TEST(SocketActivation, WhatIsMeantForAnotherProcessIsLeftAlone) {
  EXPECT_THAT(*ParseActivationSockets("41", "1", "", 42), IsEmpty());
  EXPECT_THAT(*ParseActivationSockets("", "1", "", 42), IsEmpty());
  EXPECT_THAT(*ParseActivationSockets("", "", "", 42), IsEmpty());
}

TEST(SocketActivation, WhatMakesNoSenseIsNamed) {
  const auto error = [](const char* pid, const char* fds, const char* names) {
    const auto sockets = ParseActivationSockets(pid, fds, names, 42);
    return sockets ? "" : sockets.error().message;
  };
  EXPECT_THAT(error("42", "nine", ""), HasSubstr("LISTEN_FDS is 'nine'"));
  EXPECT_THAT(error("42", "4", ""), HasSubstr("allowed: 0 to 3"));
  EXPECT_THAT(error("me", "1", ""), HasSubstr("LISTEN_PID is 'me'"));
  EXPECT_THAT(error("42", "2", "http"), HasSubstr("1 names for LISTEN_FDS=2"));
  EXPECT_THAT(error("42", "2", "http:http"), HasSubstr("each of http, workers and grpc"));
  EXPECT_THAT(error("42", "1", "ftp"), HasSubstr("'ftp'"));
}

}  // namespace
}  // namespace aisp
