#include "net/sse_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace aisp {
namespace {

// All events of a body that arrives in two pieces, cut at `cut`.
std::vector<SseEvent> ReadCutAt(std::string_view body, size_t cut) {
  SseReader reader;
  std::vector<SseEvent> events;
  for (const std::string_view piece : {body.substr(0, cut), body.substr(cut)}) {
    reader.Feed(piece);
    for (;;) {
      auto event = reader.Next();
      EXPECT_TRUE(event) << event.error().message;
      if (!event || !*event) break;
      events.push_back(**event);
    }
  }
  return events;
}

TEST(SseReader, EventsAreTheSameWhereverTheBodyIsCut) {
  const std::string body =
      ": hello\n\ndata: one\n\nid: 0:1\r\ndata: two\r\ndata:  lines\r\n\r\n"
      "event:error\rdata:{}\r\rretry: 5\n\n\n\ndata\n\ndata:\ndata: x\n\nid:7\n\ndata: "
      "unfinished\n";
  for (size_t cut = 0; cut <= body.size(); ++cut) {
    SCOPED_TRACE(cut);
    const auto events = ReadCutAt(body, cut);
    ASSERT_EQ(events.size(), 6u);
    EXPECT_EQ(events[0].data, "one");
    EXPECT_EQ(events[1].id, "0:1");
    EXPECT_EQ(events[1].data, "two\n lines");
    EXPECT_EQ(events[2].event, "error");
    EXPECT_EQ(events[2].data, "{}");
    EXPECT_EQ(events[3].data, "");
    EXPECT_EQ(events[4].data, "\nx");
    EXPECT_EQ(events[5].id, "7");
  }
}

TEST(SseReader, AnEventWithoutEndIsBounded) {
  SseReader endless_line(1000);
  endless_line.Feed(std::string(1001, 'x'));
  EXPECT_EQ(endless_line.Next().error().code, Code::kResourceExhausted);

  SseReader endless_event(1000);
  for (int i = 0; i < 20; ++i) endless_event.Feed("data: " + std::string(60, 'x') + "\n");
  EXPECT_EQ(endless_event.Next().error().code, Code::kResourceExhausted);
  EXPECT_FALSE(endless_event.Next());
}

TEST(SseReader, ManyEventsInOnePieceComeInOrder) {
  std::string body;
  for (int i = 0; i < 1000; ++i) body += "data: " + std::to_string(i) + "\n\n";
  const auto events = ReadCutAt(body, 0);
  ASSERT_EQ(events.size(), 1000u);
  EXPECT_EQ(events[999].data, "999");
}

}  // namespace
}  // namespace aisp
