#include "loadgen/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "common/random.h"
#include "loadgen/text_datasets.h"

namespace aisp::loadgen {
namespace {

constexpr int64_t kDefaultPrompts = 1000;
constexpr int64_t kDefaultInput = 1024;
constexpr int64_t kDefaultOutput = 128;

// A seed derived from the purpose and an index.
uint64_t SeedOf(uint64_t seed, uint64_t use, uint64_t index) {
  SplitMix64 a(seed ^ (use * 0x9E3779B97F4A7C15));
  SplitMix64 b(a.Next() + index);
  return b.Next();
}
enum Use : uint64_t { kShared = 1, kOwn = 2, kLengths = 3, kPrefix = 4, kWarmup = 5, kShuffle = 6 };

int64_t DrawLength(SplitMix64* random, int64_t length, double ratio) {
  const auto low = static_cast<int64_t>(std::floor(static_cast<double>(length) * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(length) * (1 + ratio)));
  const int64_t from = std::max<int64_t>(low, 1);
  return from + static_cast<int64_t>(random->Below(static_cast<uint64_t>(high - from + 1)));
}

std::vector<WorkItem> MakeRandom(const Options& o, int64_t count) {
  std::vector<WorkItem> items;
  SplitMix64 lengths(SeedOf(o.seed, kLengths, 0));
  for (int64_t i = 0; i < count * o.turns; ++i) {
    WorkItem item;
    if (o.turns > 1) {
      item.conversation = i / o.turns;
      item.turn = i % o.turns;
    }
    if (o.prefix_len > 0 && item.turn == 0)
      item.parts.push_back({SeedOf(o.seed, kShared, 0), o.prefix_len});
    item.parts.push_back(
        {SeedOf(o.seed, kOwn, static_cast<uint64_t>(i)),
         DrawLength(&lengths, o.input_len.value_or(kDefaultInput), o.range_ratio)});
    item.input_tokens = item.parts.back().tokens + (item.turn == 0 ? o.prefix_len : 0);
    item.output_tokens = DrawLength(&lengths, o.output_len.value_or(kDefaultOutput), o.range_ratio);
    items.push_back(std::move(item));
  }
  return items;
}

std::vector<WorkItem> MakePrefixRepetition(const Options& o, int64_t count) {
  std::vector<WorkItem> items;
  for (int64_t i = 0; i < count; ++i) {
    WorkItem item;
    const auto prefix = static_cast<uint64_t>(i % o.num_prefixes);
    item.parts.push_back({SeedOf(o.seed, kPrefix, prefix), o.repetition_prefix_len});
    item.parts.push_back({SeedOf(o.seed, kOwn, static_cast<uint64_t>(i)), o.repetition_suffix_len});
    item.input_tokens = o.repetition_prefix_len + o.repetition_suffix_len;
    item.output_tokens = o.output_len.value_or(kDefaultOutput);
    items.push_back(std::move(item));
  }
  // Prompts are shuffled, so that a router cannot profit from the order of prefixes.
  SplitMix64 random(SeedOf(o.seed, kShuffle, 0));
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.Below(i)]);
  return items;
}

// The number of requests, or of conversations with --turns; `otherwise` by default.
int64_t Wanted(const Options& o, int64_t otherwise) {
  if (o.num_conversations > 0) return o.num_conversations;
  if (o.num_prompts > 0) return (o.num_prompts + o.turns - 1) / o.turns;
  return otherwise;
}

// Reduces or repeats the file's items to the wanted number.
Status FitCount(const Options& o, bool trace, std::vector<WorkItem>* items,
                std::vector<std::string>* notes) {
  if (items->empty()) {
    return InvalidArgument(fmt::format("{}: there is no usable request in it", o.dataset_path));
  }
  const auto have = static_cast<int64_t>(items->size());
  if (trace) {
    if (o.num_prompts > have) {
      notes->push_back(fmt::format("the trace has {} requests; --num-prompts {} asks for more",
                                   have, o.num_prompts));
    }
    if (o.num_prompts > 0 && o.num_prompts < have)
      items->resize(static_cast<size_t>(o.num_prompts));
    return {};
  }
  const std::vector<size_t> first = FirstTurns(*items);  // a conversation is kept whole
  const auto groups = static_cast<int64_t>(first.size());
  const int64_t want = Wanted(o, std::min(groups, kDefaultPrompts));
  if (want > groups) {
    notes->push_back(fmt::format(
        "the dataset has {} for {}: they are sent again, and prefix caches will hit",
        o.turns > 1 ? fmt::format("{} conversations", groups) : fmt::format("{} prompts", groups),
        o.turns > 1 ? fmt::format("{}", want) : fmt::format("{} requests", want)));
  }
  std::vector<WorkItem> out;
  for (int64_t i = 0; i < want; ++i) {
    const auto group = static_cast<size_t>(i % groups);
    const size_t end = group + 1 < first.size() ? first[group + 1] : items->size();
    for (size_t at = first[group]; at < end; ++at) {
      out.push_back((*items)[at]);
      if (out.back().conversation >= 0) out.back().conversation = i;
    }
  }
  *items = std::move(out);
  return {};
}

// For every later turn: the length of its history, as far as it is known now.
void AddHistoryLengths(std::vector<WorkItem>* items) {
  for (size_t i = 1; i < items->size(); ++i) {
    WorkItem& item = (*items)[i];
    const WorkItem& before = (*items)[i - 1];
    if (item.turn > 0) item.input_tokens += before.input_tokens + before.output_tokens;
  }
}

}  // namespace

Result<std::vector<WorkItem>> LoadDataset(const Options& o, std::vector<std::string>* notes) {
  const int64_t count = Wanted(o, (kDefaultPrompts + o.turns - 1) / o.turns);
  if (o.dataset == "random") {
    std::vector<WorkItem> items = MakeRandom(o, count);
    AddHistoryLengths(&items);
    return items;
  }
  if (o.dataset == "prefix_repetition") return MakePrefixRepetition(o, count);
  if (IsTextDataset(o.dataset)) return MakeTexts(o.dataset, o, count);
  std::ifstream in(o.dataset_path);
  if (!in) return NotFound(fmt::format("--dataset-path {}: cannot be read", o.dataset_path));
  const bool trace = IsTrace(o.dataset);
  auto items = o.dataset == "sharegpt"                              ? ReadShareGpt(in, o)
               : o.dataset == "custom" || o.dataset == "spec_bench" ? ReadCustom(in, o)
               : o.dataset == "azure" || o.dataset == "burstgpt"    ? ReadCsvTrace(in, o)
                                                                    : ReadMooncake(in, o);
  if (!items) return tl::unexpected(items.error().WithContext(o.dataset_path));
  AISP_RETURN_IF_ERROR(FitCount(o, trace, &*items, notes));
  AddHistoryLengths(&*items);
  return items;
}

std::vector<WorkItem> WarmupItems(const std::vector<WorkItem>& items, int64_t count,
                                  uint64_t seed) {
  std::vector<WorkItem> out;
  for (int64_t i = 0; i < count; ++i) {
    const WorkItem& like = items[static_cast<size_t>(i) % items.size()];
    WorkItem item;
    item.input_tokens = like.input_tokens > 0 ? like.input_tokens : 64;
    item.output_tokens = like.output_tokens;
    item.parts.push_back({SeedOf(seed, kWarmup, static_cast<uint64_t>(i)), item.input_tokens});
    out.push_back(std::move(item));
  }
  return out;
}

namespace {

// Removes tokens from the end of a synthetic prompt.
void Shorten(WorkItem* item, int64_t tokens) {
  int64_t excess = item->input_tokens - tokens;
  item->input_tokens = tokens;
  while (excess > 0) {
    PromptPart& last = item->parts.back();
    const int64_t cut = std::min(excess, last.tokens);
    last.tokens -= cut;
    excess -= cut;
    if (last.tokens == 0 && item->parts.size() > 1) item->parts.pop_back();
  }
}

}  // namespace

namespace {

// Ends a conversation before the turn that exceeds the context, since its history cannot be cut.
void EndLongConversations(std::vector<WorkItem>* items, int64_t max_model_len,
                          std::vector<std::string>* notes) {
  std::vector<WorkItem> out;
  std::vector<int64_t> ended;
  for (WorkItem& item : *items) {
    const bool over = !ended.empty() && ended.back() == item.conversation;
    const bool fits = item.input_tokens + item.output_tokens <= max_model_len;
    if (item.turn > 0 && (over || !fits)) {
      if (!over) ended.push_back(item.conversation);
      continue;
    }
    out.push_back(std::move(item));
  }
  if (!ended.empty()) {
    notes->push_back(fmt::format(
        "{} conversations outgrow the model's context of {} tokens and end before: {} turns of {} "
        "are left out",
        ended.size(), max_model_len, items->size() - out.size(), items->size()));
  }
  *items = std::move(out);
}

}  // namespace

void ClipToContext(std::vector<WorkItem>* items, int64_t max_model_len, int64_t frame,
                   std::vector<std::string>* notes) {
  EndLongConversations(items, max_model_len - frame, notes);
  int64_t clipped = 0, input_before = 0, input_after = 0, output_before = 0, output_after = 0;
  for (WorkItem& item : *items) {
    const bool known = item.made_up();
    const int64_t input = known ? item.input_tokens : std::max<int64_t>(item.input_tokens, 1);
    const int64_t room = max_model_len - (known ? 0 : frame);
    if (input + item.output_tokens <= room) continue;
    // The answer gets up to half of the context, the prompt the rest.
    const int64_t output =
        std::max<int64_t>(1, std::min(item.output_tokens, std::max(room - input, room / 2)));
    const int64_t kept = std::max<int64_t>(1, std::min(input, room - output));
    ++clipped;
    input_before += input;
    output_before += item.output_tokens;
    if (known) Shorten(&item, kept);
    // A text cannot be cut by tokens here; the server decides about a prompt that is too long.
    item.output_tokens = output;
    input_after += known ? kept : input;
    output_after += output;
  }
  if (clipped == 0) return;
  notes->push_back(
      fmt::format("{} of {} requests do not fit into the model's context of {} tokens and are "
                  "clipped: their prompts from {} "
                  "to {} tokens, their answers from {} to {}",
                  clipped, items->size(), max_model_len, input_before, input_after, output_before,
                  output_after));
}

}  // namespace aisp::loadgen
