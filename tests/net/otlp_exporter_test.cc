// The span exporter with a collector in this process: complete, late, refusing, absent.
#include "net/otlp_exporter.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <mutex>

#include "otlp.grpc.pb.h"
#include "tests/net/half_server.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kLong{20};

class Collector final : public otlp::TraceService::Service {
 public:
  grpc::Status Export(grpc::ServerContext* context, const otlp::ExportTraceServiceRequest* request,
                      otlp::ExportTraceServiceResponse* response) override {
    std::unique_lock lock(mutex_);
    if (packs_) context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    if (rejected_ > 0) response->mutable_partial_success()->set_rejected_spans(rejected_);
    if (!said_.empty()) response->mutable_partial_success()->set_error_message(said_);
    ++calls_;
    changed_.notify_all();
    changed_.wait_for(lock, kLong, [&] { return !held_ || context->IsCancelled(); });
    if (refuse_.error_code() != grpc::StatusCode::OK) return refuse_;
    for (const auto& resource : request->resource_spans()) {
      for (const auto& attribute : resource.resource().attributes())
        resource_[attribute.key()] = attribute.value().string_value();
      for (const auto& scope : resource.scope_spans()) {
        for (const auto& span : scope.spans()) names_.push_back(span.name());
      }
    }
    changed_.notify_all();
    return grpc::Status::OK;
  }
  void Hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  void Refuse(grpc::Status status) {
    const std::lock_guard lock(mutex_);
    refuse_ = std::move(status);
  }
  void Reject(int64_t spans) {
    const std::lock_guard lock(mutex_);
    rejected_ = spans;
  }
  void Say(std::string text, bool packed) {
    const std::lock_guard lock(mutex_);
    said_ = std::move(text);
    packs_ = packed;
  }
  bool AwaitCalls(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [&] { return calls_ >= count; });
  }
  std::vector<std::string> AwaitNames(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLong, [&] { return names_.size() >= count; });
    return names_;
  }
  std::map<std::string, std::string> resource() {
    const std::lock_guard lock(mutex_);
    return resource_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  grpc::Status refuse_;
  int64_t rejected_ = 0;
  std::string said_;
  bool packs_ = false;
  int calls_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, std::string> resource_;
};

std::vector<otlp::OtlpSpan> Spans(const std::string& name, size_t count = 1) {
  std::vector<otlp::OtlpSpan> spans(count);
  for (otlp::OtlpSpan& span : spans) span.set_name(name);
  return spans;
}

class OtlpExporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&collector_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    options_.endpoint = "http://127.0.0.1:" + std::to_string(port);
    options_.resource = {{"service.name", "aisp"}};
    options_.batch_interval = std::chrono::milliseconds(1);
    options_.retry_min = std::chrono::milliseconds(1);
  }
  void TearDown() override {
    collector_.Hold(false);
    server_->Shutdown();
  }
  std::unique_ptr<OtlpExporter> Make() {
    auto exporter = OtlpExporter::Create(options_, &metrics_);
    EXPECT_TRUE(exporter);
    return std::move(*exporter);
  }
  double Dropped(const std::string& reason) {
    return metrics_
        .AddCounter("aisp_trace_spans_dropped_total",
                    "Spans that no OTLP collector will see, by reason", {{"reason", reason}})
        .Value();
  }

  Metrics metrics_;
  OtlpOptions options_;
  Collector collector_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(OtlpExporterTest, DeliversEverySpanWithItsProcess) {
  auto exporter = Make();
  exporter->Send(Spans("a"));
  exporter->Send(Spans("b", 2));
  EXPECT_THAT(collector_.AwaitNames(3), ::testing::ElementsAre("a", "b", "b"));
  EXPECT_EQ(collector_.resource()["service.name"], "aisp");
}

TEST_F(OtlpExporterTest, ACollectorThatIsSlowBlocksNobodyAndWhatDoesNotFitIsCounted) {
  options_.queue_spans = 4;
  collector_.Hold(true);
  auto exporter = Make();
  exporter->Send(Spans("first"));
  ASSERT_TRUE(collector_.AwaitCalls(1));
  for (int i = 0; i < 10; ++i) exporter->Send(Spans("more"));
  EXPECT_EQ(Dropped("queue_full"), 6);
  collector_.Hold(false);
  EXPECT_EQ(collector_.AwaitNames(5).size(), 5u);
}

TEST_F(OtlpExporterTest, ACollectorThatIsAwayIsTriedAgainAndThenWhatItMissedIsCounted) {
  options_.max_attempts = 3;
  collector_.Refuse({grpc::StatusCode::UNAVAILABLE, "away"});
  auto exporter = Make();
  exporter->Send(Spans("lost", 3));
  ASSERT_TRUE(collector_.AwaitCalls(3));
  exporter->Stop(kLong);
  EXPECT_EQ(Dropped("not_delivered"), 3);
}

TEST_F(OtlpExporterTest, WhatACollectorRefusesIsNotSentAgain) {
  collector_.Refuse({grpc::StatusCode::INVALID_ARGUMENT, "no"});
  auto exporter = Make();
  exporter->Send(Spans("bad", 2));
  exporter->Stop(kLong);
  EXPECT_EQ(Dropped("refused"), 2);
}

TEST_F(OtlpExporterTest, ACollectorWhoseHeadDoesNotEndIsCut) {
  constexpr int kFrames = 100'000;
  HalfServer collector;
  options_.endpoint = collector.address();
  options_.call_timeout = kLong;
  options_.max_attempts = 1;
  auto exporter = Make();
  exporter->Send(Spans("a", 2));
  collector.AwaitCall();
  EXPECT_LT(collector.SendEndlessHead(kFrames, /*begun=*/false), kFrames) << "1.6 GB were taken";
  exporter->Stop(kLong);
  EXPECT_EQ(Dropped("not_delivered"), 2);
}

TEST_F(OtlpExporterTest, ACollectorCannotRejectMoreSpansThanItWasSent) {
  collector_.Reject(int64_t{1} << 60);
  auto exporter = Make();
  exporter->Send(Spans("a", 3));
  exporter->Stop(kLong);
  EXPECT_EQ(Dropped("refused"), 3);
}

TEST_F(OtlpExporterTest, AnswersThatArePackedOrLargeAreRefused) {
  for (const bool packs : {false, true}) {
    collector_.Say(std::string(8 << 20, 'x'), packs);
    options_.max_attempts = 1;
    auto exporter = Make();
    exporter->Send(Spans("a", 1));
    exporter->Stop(kLong);
  }
  EXPECT_EQ(Dropped("not_delivered") + Dropped("refused"), 2);
}

TEST_F(OtlpExporterTest, StopDeliversWhatIsQueued) {
  options_.batch_interval = std::chrono::hours(1);
  auto exporter = Make();
  exporter->Send(Spans("last", 5));
  exporter->Stop(kLong);
  EXPECT_EQ(collector_.AwaitNames(5).size(), 5u);
  exporter->Send(Spans("too late"));
  EXPECT_EQ(Dropped("queue_full"), 1);
}

TEST_F(OtlpExporterTest, StopWithoutTimeEndsACallThatHangs) {
  collector_.Hold(true);
  auto exporter = Make();
  exporter->Send(Spans("stuck"));
  ASSERT_TRUE(collector_.AwaitCalls(1));
  exporter->Stop({});
  EXPECT_EQ(Dropped("not_delivered") + Dropped("refused"), 1);
}

TEST_F(OtlpExporterTest, AnEndpointThatIsNoneIsRefusedWithWhatItWants) {
  for (const char* bad : {"localhost", "http://", ":4317", "host:0", "host:port", "http://h:1/x"}) {
    options_.endpoint = bad;
    const auto made = OtlpExporter::Create(options_, &metrics_);
    ASSERT_FALSE(made) << bad;
    EXPECT_THAT(made.error().message, HasSubstr("host:port"));
  }
}

}  // namespace
}  // namespace aisp
