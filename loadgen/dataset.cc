#include "loadgen/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "common/random.h"

namespace aisp::loadgen {
namespace {

constexpr int64_t kDefaultPrompts = 1000;
constexpr int64_t kDefaultOutput = 128;

// A seed for one use: what it is for, and which one.
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
  for (int64_t i = 0; i < count; ++i) {
    WorkItem item;
    if (o.prefix_len > 0) item.parts.push_back({SeedOf(o.seed, kShared, 0), o.prefix_len});
    item.parts.push_back({SeedOf(o.seed, kOwn, static_cast<uint64_t>(i)),
                          DrawLength(&lengths, o.input_len, o.range_ratio)});
    item.input_tokens = o.prefix_len + item.parts.back().tokens;
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
  // Prefixes come in no order, so that a router cannot profit from one.
  SplitMix64 random(SeedOf(o.seed, kShuffle, 0));
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.Below(i)]);
  return items;
}

// From items in the order of a file to the number that is wanted.
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
  const int64_t want = o.num_prompts > 0 ? o.num_prompts : kDefaultPrompts;
  if (want > have) {
    notes->push_back(
        fmt::format("the dataset has {} prompts for {} requests: they are sent again, and prefix "
                    "caches will hit",
                    have, want));
  }
  for (int64_t i = have; i < want; ++i) items->push_back((*items)[static_cast<size_t>(i % have)]);
  items->resize(static_cast<size_t>(want));
  return {};
}

}  // namespace

Result<std::vector<WorkItem>> LoadDataset(const Options& o, std::vector<std::string>* notes) {
  const int64_t count = o.num_prompts > 0 ? o.num_prompts : kDefaultPrompts;
  if (o.dataset == "random") return MakeRandom(o, count);
  if (o.dataset == "prefix_repetition") return MakePrefixRepetition(o, count);
  std::ifstream in(o.dataset_path);
  if (!in) return NotFound(fmt::format("--dataset-path {}: cannot be read", o.dataset_path));
  const bool trace = o.dataset == "trace" || o.dataset == "mooncake" || o.dataset == "azure" ||
                     o.dataset == "burstgpt";
  auto items = o.dataset == "sharegpt"                           ? ReadShareGpt(in, o)
               : o.dataset == "custom"                           ? ReadCustom(in, o)
               : o.dataset == "azure" || o.dataset == "burstgpt" ? ReadCsvTrace(in, o)
                                                                 : ReadMooncake(in, o);
  if (!items) return tl::unexpected(items.error().WithContext(o.dataset_path));
  AISP_RETURN_IF_ERROR(FitCount(o, trace, &*items, notes));
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

// Takes tokens off the end of a made-up prompt.
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

void ClipToContext(std::vector<WorkItem>* items, int64_t max_model_len, int64_t frame,
                   std::vector<std::string>* notes) {
  int64_t clipped = 0, input_before = 0, input_after = 0, output_before = 0, output_after = 0;
  for (WorkItem& item : *items) {
    const bool known = item.made_up();
    const int64_t input = known ? item.input_tokens : std::max<int64_t>(item.input_tokens, 1);
    const int64_t room = max_model_len - (known ? 0 : frame);
    if (input + item.output_tokens <= room) continue;
    // The answer keeps up to half of the context, the prompt has the rest.
    const int64_t output =
        std::max<int64_t>(1, std::min(item.output_tokens, std::max(room - input, room / 2)));
    const int64_t kept = std::max<int64_t>(1, std::min(input, room - output));
    ++clipped;
    input_before += input;
    output_before += item.output_tokens;
    if (known) Shorten(&item, kept);
    // A text cannot be cut by tokens here: the server judges what it does with a prompt that is too long.
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
