// How aisp top, drain, role and the planner handle a hostile router.
#include "commands/admin_client.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "net/unique_descriptor.h"
#include "tests/net/loopback_listener.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

// Answers one request with these bytes, `times` over.
class OneAnswer {
 public:
  explicit OneAnswer(std::string bytes, size_t times = 1) {
    thread_ = std::thread([this, bytes = std::move(bytes), times] {
      const UniqueDescriptor client = listener_.Accept();
      char asked[4096];
      if (recv(client.get(), asked, sizeof(asked), 0) <= 0) return;
      for (size_t i = 0; i < times; ++i) {
        if (send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) <= 0) return;
      }
    });
  }
  ~OneAnswer() { thread_.join(); }
  AdminClient Client() const {
    return AdminClient::Create("http://" + listener_.address(), "").value();
  }

 private:
  const LoopbackListener listener_;
  std::thread thread_;
};

std::string Json(const std::string& body, int status = 200) {
  return "HTTP/1.1 " + std::to_string(status) +
         " x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(AdminClient, AnEndlessAnswerIsCut) {
  const OneAnswer router("HTTP/1.1 200 OK\r\n\r\n" + std::string(16 << 20, ' '), 100);
  const auto answer = router.Client().Get("/admin/workers");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kResourceExhausted) << answer.error().message;
}

TEST(AdminClient, HeadsWithoutAnEndAreCut) {
  const std::string field = "x: " + std::string(8000, 'y') + "\r\n";
  const OneAnswer interim("HTTP/1.1 102 Processing\r\n" + field + "\r\n", 100'000);
  const auto answer = interim.Client().Get("/admin/workers");
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message, HasSubstr("bytes of heads and trailers"));
}

TEST(AdminClient, AMessageThatIsNoTextIsNone) {
  const OneAnswer router(Json(R"({"error":{"message":[1,{}]}})", 500));
  const auto answer = router.Client().Get("/admin/workers");
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message, HasSubstr("answers 500"));
}

TEST(AdminClient, TextsControlNoTerminal) {
  const OneAnswer router(Json("{\"workers\":[{\"id\":\"a\\u001b]0;x\\u0007\\u009bz\"}]}"));
  const auto answer = router.Client().Get("/admin/workers");
  ASSERT_TRUE(answer);
  EXPECT_EQ((*answer)["workers"][0]["id"], "a?]0;x??z");
}

TEST(AdminClient, DepthIsNoMatter) {
  const OneAnswer router(
      Json("{\"a\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}"));
  EXPECT_TRUE(router.Client().Get("/admin/workers"));
}

}  // namespace
}  // namespace aisp
