#include "tests/e2e/load.h"

#include <memory>

#include "common/strings.h"

namespace aisp::e2e {

StoryLoad::StoryLoad(std::string address, int streams)
    : address_(std::move(address)), stories_(RecordedStories()) {
  for (int i = 0; i < streams; ++i) threads_.emplace_back([this, i] { RunClient(i); });
}

StoryLoad::~StoryLoad() { Stop(); }

void StoryLoad::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::vector<std::string> StoryLoad::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

void StoryLoad::RunClient(int number) {
  std::unique_ptr<HttpClient> client;
  for (int turn = 0; !stop_; ++turn) {
    const Recorded& story = stories_[static_cast<size_t>(number + turn) % stories_.size()];
    const std::string failure = AskOnce(&client, story, number + turn);
    if (failure.empty()) {
      ++completed_;
      continue;
    }
    client.reset();
    const std::lock_guard lock(mutex_);
    failures_.push_back("client " + std::to_string(number) + ", request " + std::to_string(turn) +
                        ": " + failure);
  }
}

std::string StoryLoad::AskOnce(std::unique_ptr<HttpClient>* client, const Recorded& story,
                               int number) {
  if (*client == nullptr) *client = std::make_unique<HttpClient>(Connect(address_));
  const char* const routes[] = {"", "remote", "local"};
  const auto head = OpenChat(**client, story.messages, story.completion_tokens, routes[number % 3]);
  if (!head) return "no answer: " + head.error().message;
  const Reply reply = ReadStream(**client, *head);
  if (reply.status != 200 || !reply.error.empty())
    return "status " + std::to_string(reply.status) + ", " + reply.error;
  if (!reply.done) return "the stream ended without [DONE]";
  if (reply.text != story.text) return "wrong text: " + reply.text;
  if (EqualsIgnoreCaseAscii(head->Header("connection"), "close")) client->reset();
  return "";
}

}  // namespace aisp::e2e
