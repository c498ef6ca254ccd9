// Loading and unloading of LoRA adapters, as seen by the router.
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RouterOptions Options() {
  RouterOptions options;
  options.max_adapters = 2;
  v1::Adapter* given = options.adapters.add_adapters();
  given->set_name("given");
  given->set_digest("g");
  given->set_path("/given");
  return options;
}

class RouterAdapters : public testing::Test {
 protected:
  explicit RouterAdapters(RouterOptions options = Options())
      : h_([this, &options] {
          options.on_adapters = [this](const v1::AdapterSet& set) {
            names_.clear();
            for (const v1::Adapter& each : set.adapters()) names_.push_back(each.name());
          };
          return options;
        }()) {}

  using Outcome = std::shared_ptr<std::optional<Result<v1::Adapter>>>;
  Outcome Load(const std::string& name, const std::string& path = "/one", bool replace = false) {
    auto said = std::make_shared<std::optional<Result<v1::Adapter>>>();
    h_.router.LoadAdapter({name, path, replace},
                          [said](const Result<v1::Adapter>& made) { said->emplace(made); });
    return said;
  }
  const v1::RouterMessage& Last(LinkId link) { return h_.sender.sent[link].back(); }
  // Answers the last load request on that link.
  void Answer(LinkId link, const std::string& digest, const std::string& error = "") {
    ASSERT_TRUE(Last(link).has_load_adapter());
    v1::WorkerMessage message;
    v1::AdapterAnswer* answer = message.mutable_adapter_answer();
    answer->set_nonce(Last(link).load_adapter().nonce());
    answer->set_digest(digest);
    if (!error.empty()) answer->mutable_error()->set_message(error);
    h_.router.OnMessage(link, message);
  }
  // The last set sent to the worker.
  const v1::AdapterSet& LastSet(LinkId link) {
    const auto& sent = h_.sender.sent[link];
    const auto last = std::find_if(sent.rbegin(), sent.rend(), [](const auto& each) {
      return each.has_adapters() || each.has_registered();
    });
    if (last == sent.rend()) return v1::AdapterSet::default_instance();
    return last->has_adapters() ? last->adapters() : last->registered().adapters();
  }
  std::vector<std::string> Told(LinkId link) {
    std::vector<std::string> digests;
    for (const v1::Adapter& each : LastSet(link).adapters()) digests.push_back(each.digest());
    return digests;
  }
  static v1::AdapterReport Report(const v1::AdapterSet& set) {
    v1::AdapterReport report;
    *report.mutable_set() = set;
    for (const v1::Adapter& each : set.adapters()) report.add_digests(each.digest());
    return report;
  }
  LinkId AddReporting(const std::string& id, const v1::AdapterReport& report) {
    v1::Register registration = h_.Registration(id, v1::ROLE_DECODE);
    *registration.mutable_adapters() = report;
    const LinkId link = h_.Attach(registration);
    h_.Report(link, h_.ReadyTelemetry());
    return link;
  }
  Result<RequestId> Submit(const std::string& digest, RecordingObserver* observer) {
    RouterRequest request = h_.Request(20);
    request.adapter = digest;
    return h_.Submit(std::move(request), observer);
  }

  std::vector<std::string> names_;
  RouterHarness h_;
};

TEST_F(RouterAdapters, ANameIsServedWhenEveryWorkerHasItsFiles) {
  const LinkId d = h_.AddDecode("d"), p = h_.AddPrefill("p");
  const Outcome loaded = Load("one");
  EXPECT_EQ(Last(d).load_adapter().path(), "/one");
  Answer(d, "1");
  EXPECT_FALSE(*loaded);
  RecordingObserver early;
  EXPECT_EQ(Submit("1", &early).error().code, Code::kNotFound);
  Answer(p, "1");
  ASSERT_TRUE(*loaded);
  EXPECT_EQ((**loaded)->digest(), "1");
  EXPECT_THAT(names_, ElementsAre("given", "one"));
  EXPECT_THAT(Told(d), ElementsAre("g", "1"));
  EXPECT_THAT(Told(p), ElementsAre("g", "1"));
  RecordingObserver observer;
  ASSERT_TRUE(Submit("1", &observer).has_value());
  EXPECT_EQ(h_.Generates(d).back().adapter(), "1");
}

TEST_F(RouterAdapters, AWorkerThatCannotIsNamedAndTheOthersDropIt) {
  const LinkId d0 = h_.AddDecode("d0"), d1 = h_.AddDecode("d1");
  Outcome loaded = Load("one");
  Answer(d0, "1");
  Answer(d1, "", "/one: no such file");
  ASSERT_TRUE(*loaded);
  EXPECT_EQ((*loaded)->error().code, Code::kInvalidArgument);
  EXPECT_THAT((*loaded)->error().message, HasSubstr("worker d1: /one: no such file"));
  EXPECT_TRUE(names_.empty());
  EXPECT_THAT(Told(d0), ElementsAre("g"));
  // The files differ.
  loaded = Load("one");
  Answer(d0, "1");
  Answer(d1, "2");
  ASSERT_TRUE(*loaded);
  EXPECT_EQ((*loaded)->error().code, Code::kFailedPrecondition);
  EXPECT_THAT((*loaded)->error().message, HasSubstr("d0 has the digest 1, worker d1 has 2"));
  // A worker does not answer.
  loaded = Load("one");
  Answer(d0, "1");
  for (int i = 0; i < 125; ++i) {
    h_.Advance(std::chrono::seconds(1));
    h_.Report(d0, h_.ReadyTelemetry());
    h_.Report(d1, h_.ReadyTelemetry());
  }
  ASSERT_TRUE(*loaded);
  EXPECT_THAT((*loaded)->error().message, HasSubstr("worker d1 did not answer within 120 s"));
}

TEST_F(RouterAdapters, WhatCannotBeIsRefusedWithTheWayOut) {
  EXPECT_EQ((*Load("one"))->error().code, Code::kUnavailable);  // no worker
  const LinkId d = h_.AddDecode("d");
  EXPECT_EQ((*Load("given"))->error().code, Code::kAlreadyExists);
  EXPECT_EQ((*Load("story"))->error().code, Code::kAlreadyExists);
  EXPECT_THAT((*Load("a,b"))->error().message, HasSubstr("without commas"));
  const Outcome second = Load("one");
  const Outcome third = Load("two");
  EXPECT_FALSE(*third) << "one after the other";
  Answer(d, "1");
  EXPECT_TRUE((*second)->has_value());
  EXPECT_THAT((*third)->error().message, HasSubstr("--max-loras"));
  const auto unknown = h_.router.UnloadAdapter("three");
  EXPECT_EQ(unknown.error().code, Code::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("given, one"));
}

TEST_F(RouterAdapters, ANameIsReplacedWhenThatIsAskedFor) {
  const LinkId d = h_.AddDecode("d");
  const Outcome loaded = Load("given", "/new", /*replace=*/true);
  Answer(d, "n");
  ASSERT_TRUE((*loaded)->has_value());
  EXPECT_THAT(names_, ElementsAre("given"));
  EXPECT_THAT(Told(d), ElementsAre("n"));
}

TEST_F(RouterAdapters, WhatRunsWithAnUnloadedOneGoesOnAndWhatWaitsEnds) {
  const LinkId d = h_.AddDecode("d");
  RecordingObserver running, waiting;
  ASSERT_TRUE(Submit("g", &running).has_value());
  ASSERT_TRUE(Submit("g", &waiting).has_value());
  const auto sent = h_.Generates(d);
  h_.Fail(d, sent[1].request_id(), Code::kUnavailable, /*retryable=*/true);
  EXPECT_EQ(waiting.finishes, 0);
  ASSERT_TRUE(h_.router.UnloadAdapter("given").has_value());
  EXPECT_TRUE(Told(d).empty());
  EXPECT_EQ(waiting.finishes, 1);
  EXPECT_EQ(waiting.error.code, Code::kNotFound);
  EXPECT_EQ(running.finishes, 0);
  h_.Tokens(d, sent[0].request_id(), 20, {1, 2}, v1::FINISH_STOP);
  EXPECT_EQ(running.finish, v1::FINISH_STOP);
  RecordingObserver late;
  EXPECT_EQ(Submit("g", &late).error().code, Code::kNotFound);
}

TEST_F(RouterAdapters, AWorkerThatComesLaterIsToldAndUsedWhenItHasLoaded) {
  const LinkId d0 = h_.AddDecode("d0");
  const Outcome loaded = Load("one");
  Answer(d0, "1");
  ASSERT_TRUE((*loaded)->has_value());
  const LinkId d1 = AddReporting("d1", Report(Options().adapters));
  EXPECT_THAT(Told(d1), ElementsAre("g", "1"));
  const v1::AdapterSet set = LastSet(d1);
  h_.router.OnLinkDown(d0, {Code::kUnavailable, "killed"});
  RecordingObserver observer;
  const auto refused = Submit("1", &observer);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr("has the LoRA adapter"));
  ASSERT_TRUE(Submit("g", &observer).has_value());
  v1::WorkerMessage has;
  *has.mutable_adapters() = Report(set);
  h_.router.OnMessage(d1, has);
  ASSERT_TRUE(Submit("1", &observer).has_value());
}

TEST_F(RouterAdapters, APrefillWorkerWithoutItComputesNoPromptOfIt) {
  const LinkId d = h_.AddDecode("d");
  v1::Register registration = h_.Registration("p", v1::ROLE_PREFILL);
  *registration.mutable_adapters()->mutable_set() = Options().adapters;
  h_.Report(h_.Attach(registration), h_.ReadyTelemetry());
  RecordingObserver observer;
  RouterRequest request = h_.Request(600);
  request.prefill = PrefillPreference::kRemote;
  ASSERT_TRUE(h_.Submit(request, &observer).has_value());
  EXPECT_TRUE(h_.Generates(d).back().has_prefill());
  request.adapter = "g";
  ASSERT_TRUE(h_.Submit(std::move(request), &observer).has_value());
  EXPECT_FALSE(h_.Generates(d).back().has_prefill());
}

TEST_F(RouterAdapters, ARequestWhoseWorkerDiesGoesToAnotherOneThatHasIt) {
  const LinkId d0 = h_.AddDecode("d0");
  RecordingObserver observer;
  ASSERT_TRUE(Submit("g", &observer).has_value());
  v1::Register without = h_.Registration("d1", v1::ROLE_DECODE);
  *without.mutable_adapters()->mutable_set() = Options().adapters;
  const LinkId d1 = h_.Attach(without);
  h_.Report(d1, h_.ReadyTelemetry());
  const LinkId d2 = h_.AddDecode("d2");
  h_.Tokens(d0, h_.Generates(d0).back().request_id(), 20, {1});
  h_.router.OnLinkDown(d0, {Code::kUnavailable, "killed"});
  EXPECT_TRUE(h_.Generates(d1).empty());
  ASSERT_EQ(h_.Generates(d2).size(), 1u);
  EXPECT_EQ(h_.Generates(d2)[0].adapter(), "g");
}

TEST_F(RouterAdapters, ALaterSetThatAWorkerKnowsOfIsTakenOver) {
  const LinkId old = AddReporting("d0", Report(Options().adapters));
  v1::AdapterSet set;
  set.set_version(7);
  set.set_author(3);
  v1::Adapter* other = set.add_adapters();
  other->set_name("other");
  other->set_digest("o");
  other->set_path("/other");
  const LinkId d1 = AddReporting("d1", Report(set));
  EXPECT_THAT(names_, ElementsAre("other"));
  EXPECT_THAT(Told(old), ElementsAre("o"));
  RecordingObserver observer;
  ASSERT_TRUE(Submit("o", &observer).has_value());
  EXPECT_EQ(h_.Generates(d1).size(), 1u) << "the other one has not loaded it yet";
  // An older set is not used, and its worker gets the current one.
  const LinkId d2 = AddReporting("d2", Report(Options().adapters));
  EXPECT_THAT(names_, ElementsAre("other"));
  EXPECT_THAT(Told(d2), ElementsAre("o"));
}

TEST_F(RouterAdapters, AWorkerThatGoesWhileItLoadsIsNotWaitedFor) {
  const LinkId d0 = h_.AddDecode("d0"), d1 = h_.AddDecode("d1");
  Outcome loaded = Load("one");
  Answer(d0, "1");
  h_.router.OnLinkDown(d1, {Code::kUnavailable, "killed"});
  ASSERT_TRUE(*loaded);
  EXPECT_TRUE((*loaded)->has_value());
  loaded = Load("one", "/two", true);
  h_.router.OnLinkDown(d0, {Code::kUnavailable, "killed"});
  EXPECT_EQ((*loaded)->error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace aisp
