#include "net/http_reader.h"

#include <gmock/gmock.h>

namespace aisp {
namespace {

using ::testing::HasSubstr;
using Kind = HttpReader::Kind;

struct Read {
  int heads = 0;
  int ends = 0;
  std::string body;
  std::string error;
};

// Reads all that is available now.
void Drain(HttpReader* reader, Read* read) {
  for (;;) {
    const auto item = reader->Next();
    if (!item) {
      read->error = item.error().message;
      return;
    }
    if (item->kind == Kind::kMore) return;
    read->heads += item->kind == Kind::kHead;
    read->body += item->body;
    if (item->kind == Kind::kEnd) {
      ++read->ends;
      return;
    }
  }
}

constexpr std::string_view kChunked =
    "HTTP/1.1 100 Continue\r\n\r\n"
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    "5;ext=1\r\nhello\r\nB\r\n, my\r\nworld\r\n0\r\nTrailer: x\r\n\r\n";

TEST(HttpReader, ReadsAChunkedAnswerAlikeWhereverItIsCut) {
  for (size_t cut = 0; cut <= kChunked.size(); ++cut) {
    HttpReader reader;
    Read read;
    reader.Begin();
    reader.Feed(kChunked.substr(0, cut));
    Drain(&reader, &read);
    if (read.ends == 0) {
      reader.Feed(kChunked.substr(cut));
      Drain(&reader, &read);
    }
    ASSERT_EQ(read.error, "") << cut;
    ASSERT_EQ(read.heads, 1) << cut;
    ASSERT_EQ(read.ends, 1) << cut;
    ASSERT_EQ(read.body, "hello, my\r\nworld") << cut;
    ASSERT_EQ(reader.status(), 200);
    ASSERT_EQ(reader.Header("content-type"), "text/event-stream");
    ASSERT_TRUE(reader.keep_alive());
  }
}

TEST(HttpReader, ReadsOneAnswerAfterTheOther) {
  HttpReader reader;
  reader.Begin();
  reader.Feed("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
  Read first, second;
  Drain(&reader, &first);
  EXPECT_EQ(first.body, "no");
  EXPECT_TRUE(reader.keep_alive());
  reader.Begin();
  reader.Feed("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
  Drain(&reader, &second);
  EXPECT_EQ(second.ends, 1);
  EXPECT_EQ(reader.status(), 204);
  EXPECT_FALSE(reader.keep_alive());
}

TEST(HttpReader, ACloseEndsOnlyWhatEndsSo) {
  HttpReader until_close;
  until_close.Begin();
  until_close.Feed("HTTP/1.0 200 OK\r\n\r\nall of it");
  Read read;
  Drain(&until_close, &read);
  EXPECT_EQ(read.body, "all of it");
  EXPECT_TRUE(until_close.AtEof());
  EXPECT_FALSE(until_close.keep_alive());
  for (const char* cut :
       {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"}) {
    HttpReader reader;
    reader.Begin();
    reader.Feed(cut);
    Read some;
    Drain(&reader, &some);
    EXPECT_FALSE(reader.AtEof()) << cut;
  }
}

TEST(HttpReader, WhatIsNoHttpIsAnError) {
  for (const char* bytes :
       {"SSH-2.0-OpenSSH\r\n", "HTTP/1.1 abc OK\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"}) {
    HttpReader reader;
    reader.Begin();
    reader.Feed(bytes);
    Read read;
    Drain(&reader, &read);
    EXPECT_NE(read.error, "") << bytes;
  }
  HttpReader endless;
  endless.Begin();
  endless.Feed(std::string(100'000, 'x'));
  Read read;
  Drain(&endless, &read);
  EXPECT_THAT(read.error, HasSubstr("a line of more than"));
}

// Short lines, few at a time, but without an end.
TEST(HttpReader, HeadsAndTrailersHaveAnEnd) {
  const std::string field = "x: " + std::string(8000, 'y') + "\r\n";
  struct Case {
    std::string begin, again;
  };
  for (const Case& each :
       {Case{"HTTP/1.1 200 OK\r\n", field},
        Case{"", "HTTP/1.1 102 Processing\r\n" + field + "\r\n"},
        Case{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", field}}) {
    HttpReader reader;
    reader.Begin();
    reader.Feed(each.begin);
    Read read;
    for (int i = 0; i < 200 && read.error.empty(); ++i) {
      reader.Feed(each.again);
      Drain(&reader, &read);
    }
    EXPECT_THAT(read.error, HasSubstr("bytes of heads and trailers")) << each.begin;
    EXPECT_EQ(read.ends, 0);
  }
}

// The bound is per answer.
TEST(HttpReader, ManyAnswersOnOneConnectionAreRead) {
  HttpReader reader;
  Read read;
  for (int i = 0; i < 100; ++i) {
    reader.Begin();
    reader.Feed("HTTP/1.1 200 OK\r\nx: " + std::string(8000, 'y') +
                "\r\nContent-Length: 0\r\n\r\n");
    Drain(&reader, &read);
  }
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.ends, 100);
}

}  // namespace
}  // namespace aisp
