#include "tests/support/provenance_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "common/check.h"
#include "kvcache/kv_conversion.h"

namespace aisp {
namespace {
constexpr size_t Index(int32_t i) { return static_cast<size_t>(i); }

constexpr int32_t kParts = 2;    // K and V
constexpr int32_t kHeadDim = 2;  // two f32: one 64-bit word per part of a slot
constexpr int32_t kSpelledDim = 16;

// The finaliser of SplitMix64.
uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
uint64_t Mix(uint64_t a, uint64_t b) { return Mix(a + 0x9e3779b97f4a7c15u + Mix(b)); }

uint64_t Embed(const ProvenanceOptions& o, TokenId token, int32_t position) {
  return Mix(Mix(o.weights, static_cast<uint64_t>(static_cast<uint32_t>(token))),
             static_cast<uint64_t>(position));
}
// `state`: the hidden state that enters `layer` at a position.
uint64_t KvWord(uint64_t state, int32_t layer, int32_t head, int32_t part) {
  return Mix(state, Index(((layer + 1) * 4096 + head) * kParts + part));
}
// One position's contribution to the attention; contributions are summed, in any order.
uint64_t Glance(uint64_t k, uint64_t v, int32_t position) {
  return Mix(k ^ (v << 21 | v >> 43) ^ (static_cast<uint64_t>(position) << 32));
}

bool UsesGenerated(const SamplingParams& p) {
  return p.presence_penalty != 0 || p.frequency_penalty != 0 ||
         (p.repetition_penalty != 1 && p.repetition_penalty != 0);
}

SampledToken Draw(const ProvenanceOptions& o, uint64_t state, uint32_t position,
                  const SamplingParams& params, std::span<const TokenId> prompt,
                  std::span<const TokenId> generated, std::span<const TokenId> banned,
                  std::span<const uint32_t> mask) {
  uint64_t h = Mix(state, position);
  if (params.temperature != 0) h = Mix(Mix(h, params.seed), params.choice);
  if (UsesGenerated(params)) {
    for (TokenId t : prompt) h = Mix(h, static_cast<uint64_t>(t));
    for (TokenId t : generated) h = Mix(h, static_cast<uint64_t>(t) + 7);
  }
  SampledToken out;
  out.token = static_cast<TokenId>(h % static_cast<uint64_t>(o.vocabulary));
  const auto allowed = [&](TokenId t) {
    const auto at = static_cast<size_t>(t);
    const bool masked = !mask.empty() && (mask[at / 32] >> (at % 32) & 1) == 0;
    return !masked && std::find(banned.begin(), banned.end(), t) == banned.end();
  };
  for (int32_t tried = 0; !allowed(out.token); ++tried) {
    AISP_CHECK_MSG(tried < o.vocabulary, "no token is left to draw");
    out.token = (out.token + 1) % o.vocabulary;
  }
  if (params.num_logprobs >= 0) out.logprob = TokenLogprob{-static_cast<float>(h >> 56), {}};
  return out;
}

// From -1 to 1, so that sums of them are hardly ever zero.
float HiddenElement(uint64_t state, int32_t i) {
  return static_cast<float>(static_cast<int64_t>(Mix(state, static_cast<uint64_t>(i) + 99))) *
         0x1p-63f;
}
float ScoreOf(uint64_t state, TokenId token) {
  return -static_cast<float>(Mix(state, static_cast<uint64_t>(token) + 77) >> 50);
}

// The model over plain arrays: KV of every position of one sequence, and the last one's final
// state.
class PlainModel {
 public:
  explicit PlainModel(const ProvenanceOptions& o) : o_(o) {
    words_.resize(Index(o.num_layers * o.num_kv_heads * kParts));
  }
  void Append(TokenId token) {
    uint64_t x = Embed(o_, token, length_);
    for (int32_t layer = 0; layer < o_.num_layers; ++layer) {
      uint64_t sum = 0;
      for (int32_t head = 0; head < o_.num_kv_heads; ++head) {
        for (int32_t part = 0; part < kParts; ++part)
          Words(layer, head, part).push_back(KvWord(x, layer, head, part));
        for (int32_t p = 0; p <= length_; ++p)
          sum += Glance(Word(layer, head, 0, p), Word(layer, head, 1, p), p);
      }
      x = Mix(x, sum);
    }
    state_ = x;
    ++length_;
  }
  uint64_t state() const { return state_; }
  uint64_t Word(int32_t layer, int32_t head, int32_t part, int32_t position) {
    return Words(layer, head, part)[static_cast<size_t>(position)];
  }

 private:
  std::vector<uint64_t>& Words(int32_t layer, int32_t head, int32_t part) {
    return words_[Index((layer * o_.num_kv_heads + head) * kParts + part)];
  }
  const ProvenanceOptions o_;
  std::vector<std::vector<uint64_t>> words_;
  int32_t length_ = 0;
  uint64_t state_ = 0;
};

}  // namespace

namespace {

// Advances the request's guide by the drawn tokens; `taken`: their number.
ExpectedEnd Draw(const ProvenanceOptions& options, const SequenceRequest& request, size_t* taken) {
  PlainModel model(options);
  for (TokenId t : request.tokens) model.Append(t);
  std::vector<TokenId> tokens = request.tokens;
  const auto prompt = static_cast<size_t>(request.prompt_tokens);
  ExpectedEnd end;
  const auto& stops = request.stop_token_ids;
  for (;;) {
    const std::span<const TokenId> all = tokens;
    const auto generated = static_cast<int32_t>(tokens.size() - prompt);
    std::span<const TokenId> banned;
    if (generated < request.min_new_tokens) banned = stops;
    std::span<const uint32_t> mask;
    if (request.guide) mask = request.guide->Allowed();
    const SampledToken drawn =
        Draw(options, model.state(), static_cast<uint32_t>(tokens.size()), request.sampling,
             all.first(prompt), all.subspan(prompt), banned, mask);
    const TokenId token = drawn.token;
    if (drawn.logprob) end.logprobs.push_back(drawn.logprob->logprob);
    tokens.push_back(token);
    end.tokens.push_back(token);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      end.finish = FinishReason::kStop;
      return end;
    }
    if (request.guide) {
      AISP_CHECK(request.guide->Take(token));
      ++*taken;
      if (request.guide->AtEnd()) {
        end.finish = FinishReason::kStop;
        return end;
      }
    }
    if (generated + 1 >= request.max_new_tokens ||
        static_cast<int32_t>(tokens.size()) >= options.max_context) {
      end.finish = FinishReason::kLength;
      return end;
    }
    model.Append(token);
  }
}

}  // namespace

ExpectedEnd ExpectedOutput(const ProvenanceOptions& options, const SequenceRequest& request) {
  size_t taken = 0;
  ExpectedEnd end = Draw(options, request, &taken);
  if (request.guide) request.guide->Rewind(taken);
  return end;
}

std::vector<TokenId> ExpectedTokens(const ProvenanceOptions& options,
                                    std::span<const TokenId> prompt, int32_t count, uint64_t seed) {
  SequenceRequest request;
  request.tokens.assign(prompt.begin(), prompt.end());
  request.prompt_tokens = static_cast<int32_t>(prompt.size());
  request.max_new_tokens = count;
  request.sampling.seed = seed;
  return ExpectedOutput(options, request).tokens;
}

std::vector<float> ExpectedEmbedding(const ProvenanceOptions& options,
                                     const SequenceRequest& request) {
  constexpr size_t kSize = ProvenanceExecutor::kHidden;
  PlainModel model(options);
  std::vector<double> sum(kSize);
  for (size_t p = 0; p < request.tokens.size(); ++p) {
    model.Append(request.tokens[p]);
    const bool wanted = request.pooling == Pooling::kMean ||
                        (request.pooling == Pooling::kFirst && p == 0) ||
                        (request.pooling == Pooling::kLast && p + 1 == request.tokens.size());
    for (size_t i = 0; wanted && i < kSize; ++i)
      sum[i] += static_cast<double>(HiddenElement(model.state(), static_cast<int32_t>(i)));
  }
  double square = 0;
  for (const double x : sum) square += x * x;
  std::vector<float> out;
  for (const double x : sum) out.push_back(static_cast<float>(x / std::sqrt(square)));
  return out;
}

std::vector<float> ExpectedPromptLogprobs(const ProvenanceOptions& options,
                                          const SequenceRequest& request) {
  PlainModel model(options);
  std::vector<float> out;
  for (int32_t p = 0; p + 1 < request.prompt_tokens; ++p) {
    model.Append(request.tokens[static_cast<size_t>(p)]);
    out.push_back(ScoreOf(model.state(), request.tokens[static_cast<size_t>(p) + 1]));
  }
  return out;
}

std::vector<uint64_t> ExpectedStates(const ProvenanceOptions& options,
                                     std::span<const TokenId> tokens) {
  PlainModel model(options);
  std::vector<uint64_t> out;
  for (const TokenId token : tokens) {
    model.Append(token);
    out.push_back(model.state());
  }
  return out;
}

SampledToken ExpectedDraw(const ProvenanceOptions& options, uint64_t state, const SampleRow& row) {
  return Draw(options, state, row.position, *row.params, row.prompt, row.generated, row.banned,
              row.mask);
}

KvLayout ProvenanceExecutor::LayoutOf(const ProvenanceOptions& options) {
  KvLayout layout;
  layout.num_layers = options.num_layers;
  layout.num_kv_heads = options.num_kv_heads;
  layout.head_dim = options.spelled ? kSpelledDim : kHeadDim;
  layout.block_tokens = options.block_tokens;
  layout.dtype = options.spelled.value_or(DType::kF32);
  layout.num_blocks = options.num_blocks;
  return layout;
}

ProvenanceExecutor::ProvenanceExecutor(const ProvenanceOptions& options, std::span<std::byte> pool)
    : options_(options),
      layout_(LayoutOf(options)),
      pool_(pool),
      slots_(static_cast<size_t>(options.max_slots)),
      kept_(static_cast<size_t>(options.max_depth)) {
  if (pool_.empty()) {
    own_pool_.resize(layout_.PoolBytes(), std::byte{0xee});
    pool_ = own_pool_;
  }
  AISP_CHECK(pool_.size() >= layout_.PoolBytes());
}

Result<Ticket> ProvenanceExecutor::Launch(const StepInput& input) {
  if (fail_next_launch) return tl::unexpected(*std::exchange(fail_next_launch, std::nullopt));
  if (fail_every_launch) return tl::unexpected(*fail_every_launch);
  const auto& tokens = input.batch.tokens;
  if (poison && std::find(tokens.begin(), tokens.end(), *poison) != tokens.end())
    return InvalidArgument("a poisoned step");
  AISP_CHECK(static_cast<int>(pending_.size()) < options_.max_depth);
  AISP_CHECK(input.step > last_step_);
  last_step_ = input.step;
  CheckInput(input);
  Pending& pending = pending_.emplace_back();
  pending.ticket = Ticket(next_ticket_++);
  pending.input = input;
  if (input.before_draw) input.before_draw();
  for (const SampleRow& s : input.samples) pending.masks.emplace_back(s.mask.begin(), s.mask.end());
  if (options_.max_depth == 1) pending.result = Execute(pending);
  return pending.ticket;
}

Result<StepResult> ProvenanceExecutor::Collect(Ticket ticket) {
  if (fail_next_collect) return tl::unexpected(*std::exchange(fail_next_collect, std::nullopt));
  AISP_CHECK(!pending_.empty() && pending_.front().ticket == ticket);
  Pending pending = std::move(pending_.front());
  pending_.pop_front();
  if (!pending.result) pending.result = Execute(pending);
  return std::move(*pending.result);
}

void ProvenanceExecutor::CheckInput(const StepInput& input) {
  const ForwardBatch& b = input.batch;
  const auto rows = static_cast<int32_t>(b.tokens.size());
  AISP_CHECK(rows > 0 && rows <= options_.max_batch_tokens);
  AISP_CHECK(b.positions.size() == b.tokens.size() && b.slot_of_row.size() == b.tokens.size());
  AISP_CHECK(input.samples.size() + input.scored.size() == b.logit_rows.size());
  AISP_CHECK(static_cast<int32_t>(input.scored.size()) <= options_.max_scored_rows);
  std::set<int32_t> slots;
  std::set<int32_t> written;
  int32_t next_row = 0;
  for (const SequenceRows& s : b.sequences) {
    AISP_CHECK(s.row_begin == next_row && s.num_rows > 0);
    next_row += s.num_rows;
    AISP_CHECK(s.context_len >= s.num_rows && s.context_len <= options_.max_context);
    const int32_t table = layout_.BlocksFor(s.context_len);
    AISP_CHECK(s.table_begin >= 0 &&
               s.table_begin + table <= static_cast<int32_t>(b.block_tables.size()));
    for (int32_t i = 0; i < table; ++i) {
      const int32_t block = b.block_tables[Index(s.table_begin + i)];
      AISP_CHECK(block >= 0 && block < layout_.num_blocks);
      const bool writes = (i + 1) * layout_.block_tokens > s.context_len - s.num_rows;
      if (writes)
        AISP_CHECK_MSG(written.insert(block).second,
                       "two sequences write one block in the same step");
    }
    const int32_t slot = b.slot_of_row[static_cast<size_t>(s.row_begin)];
    AISP_CHECK(slot >= 0 && slot < options_.max_slots);
    AISP_CHECK_MSG(slots.insert(slot).second, "two sequences of a step share a slot");
    for (int32_t i = 0; i < s.num_rows; ++i) {
      const auto row = Index(s.row_begin + i);
      AISP_CHECK(b.positions[row] == s.context_len - s.num_rows + i && b.slot_of_row[row] == slot);
    }
  }
  AISP_CHECK(next_row == rows);
  for (const CopiedBlock& copy : input.copies) {
    AISP_CHECK(options_.copies_blocks && copy.from.value >= 0 && copy.to.value >= 0);
    AISP_CHECK_MSG(written.contains(copy.to.value), "a block is copied for nobody in the step");
    AISP_CHECK_MSG(!written.contains(copy.from.value), "a block that is copied is written too");
  }
  for (size_t i = 0; i < input.samples.size(); ++i) {
    const SampleRow& sample = input.samples[i];
    const auto at = static_cast<size_t>(sample.logit_index);
    AISP_CHECK(at < b.logit_rows.size() && sample.params != nullptr);
    AISP_CHECK(i == 0 || sample.logit_index > input.samples[i - 1].logit_index);
    const auto row = static_cast<size_t>(b.logit_rows[at]);
    AISP_CHECK(sample.slot == b.slot_of_row[row]);
    AISP_CHECK(sample.position == static_cast<uint32_t>(b.positions[row] + 1));
  }
  AISP_CHECK(std::is_sorted(b.logit_rows.begin(), b.logit_rows.end(), std::less_equal<>()));
  AISP_CHECK(std::is_sorted(input.hidden_rows.begin(), input.hidden_rows.end()));
  AISP_CHECK(std::is_sorted(input.feature_rows.begin(), input.feature_rows.end()));
  AISP_CHECK(input.feature_rows.empty() || options_.gives_features);
  AISP_CHECK(static_cast<int32_t>(input.kept_rows.size()) <= max_kept_features());
  AISP_CHECK(std::includes(input.feature_rows.begin(), input.feature_rows.end(),
                           input.kept_rows.begin(), input.kept_rows.end()));
}

// Overwrites the features of the step max_depth ago, as a device does.
void ProvenanceExecutor::ReadFeatures(const StepInput& input, std::span<const uint64_t> states,
                                      StepResult* result) {
  const auto append = [&](std::span<const int32_t> rows, auto* to) {
    for (const int32_t row : rows) {
      const auto features = FeaturesOf(states[static_cast<size_t>(row)]);
      to->insert(to->end(), features.begin(), features.end());
    }
  };
  if (features_on_host()) return append(input.feature_rows, &result->features);
  KeptRows& kept = kept_[executed_++ % kept_.size()];
  kept = {};
  append(input.feature_rows, &kept.on_device);
  append(input.kept_rows, &kept.on_host);
  features_kept_ += input.kept_rows.size();
  result->device_features = std::as_bytes(std::span(kept.on_device));
  result->kept_features = kept.on_host;
}

void ProvenanceExecutor::ReadRows(const StepInput& input, std::span<const uint64_t> states,
                                  StepResult* result) {
  for (const ScoredRow& row : input.scored) {
    const int32_t at = input.batch.logit_rows[static_cast<size_t>(row.logit_index)];
    RowScore score;
    score.logprob.logprob = ScoreOf(states[static_cast<size_t>(at)], row.token);
    result->scores.push_back(std::move(score));
  }
  ReadFeatures(input, states, result);
  for (const int32_t row : input.hidden_rows) {
    for (int32_t i = 0; i < kHidden; ++i)
      result->hidden.push_back(HiddenElement(states[static_cast<size_t>(row)], i));
  }
}

TokenId ProvenanceExecutor::TokenOfRow(const StepInput& input, int32_t row) {
  const TokenId token = input.batch.tokens[static_cast<size_t>(row)];
  if (token != kTokenOnDevice) return token;
  const SlotToken& slot =
      slots_[static_cast<size_t>(input.batch.slot_of_row[static_cast<size_t>(row)])];
  AISP_CHECK_MSG(slot.step + 1 == input.step, "the step before drew no token for this slot");
  ++rows_from_device_;
  return slot.token;
}

StepResult ProvenanceExecutor::Execute(const Pending& pending) {
  const StepInput& input = pending.input;
  const ForwardBatch& b = input.batch;
  for (const CopiedBlock& copy : input.copies) Copy(copy);
  std::vector<uint64_t> x(b.tokens.size());
  for (size_t row = 0; row < x.size(); ++row) {
    x[row] = Embed(options_, TokenOfRow(input, static_cast<int32_t>(row)), b.positions[row]);
  }
  for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
    for (const SequenceRows& s : b.sequences) {
      for (int32_t i = 0; i < s.num_rows; ++i) {
        const auto row = Index(s.row_begin + i);
        const int32_t p = b.positions[row];
        const int32_t block = b.block_tables[Index(s.table_begin + p / layout_.block_tokens)];
        for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
          for (int32_t part = 0; part < kParts; ++part) {
            Store(layer, block, head, part, p % layout_.block_tokens,
                  KvWord(x[row], layer, head, part));
          }
        }
      }
      for (int32_t i = 0; i < s.num_rows; ++i) {
        const auto row = Index(s.row_begin + i);
        x[row] = Mix(x[row], Attend(layer, s, input, b.positions[row]));
      }
    }
    if (input.sink != nullptr && !input.slices.empty()) input.sink->OnLayer(layer, input.slices);
    if (input.between_layers) input.between_layers();
  }
  StepResult result;
  for (size_t i = 0; i < input.samples.size(); ++i) {
    const SampleRow& s = input.samples[i];
    const int32_t row = b.logit_rows[static_cast<size_t>(s.logit_index)];
    SampledToken sampled = Draw(options_, x[static_cast<size_t>(row)], s.position, *s.params,
                                s.prompt, s.generated, s.banned, pending.masks[i]);
    slots_[static_cast<size_t>(s.slot)] = SlotToken{sampled.token, input.step};
    if (row_fault) sampled.status = row_fault(s);
    result.tokens.push_back(std::move(sampled));
  }
  ReadRows(input, x, &result);
  ++steps_;
  rows_computed_ += x.size();
  return result;
}

uint64_t ProvenanceExecutor::Attend(int32_t layer, const SequenceRows& rows, const StepInput& input,
                                    int32_t position) const {
  uint64_t sum = 0;
  for (int32_t p = 0; p <= position; ++p) {
    const int32_t block =
        input.batch.block_tables[Index(rows.table_begin + p / layout_.block_tokens)];
    const int32_t slot = p % layout_.block_tokens;
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      sum += Glance(Load(layer, block, head, 0, slot), Load(layer, block, head, 1, slot), p);
    }
  }
  return sum;
}

bool ProvenanceExecutor::Holds(std::span<const TokenId> tokens, std::span<const BlockId> blocks,
                               int32_t begin, int32_t end) const {
  PlainModel model(options_);
  for (int32_t p = 0; p < end; ++p) model.Append(tokens[static_cast<size_t>(p)]);
  for (int32_t p = begin; p < end; ++p) {
    const int32_t block = blocks[static_cast<size_t>(p / layout_.block_tokens)].value;
    for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
      for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
        for (int32_t part = 0; part < kParts; ++part) {
          const uint64_t word = Load(layer, block, head, part, p % layout_.block_tokens);
          if (word != model.Word(layer, head, part, p)) return false;
        }
      }
    }
  }
  return true;
}

// [layer][block][kv_head][K|V][slot][head_dim]
size_t ProvenanceExecutor::WordOffset(int32_t layer, int32_t block, int32_t head, int32_t part,
                                      int32_t slot) const {
  const auto index = Index((head * kParts + part) * layout_.block_tokens + slot);
  const size_t row = static_cast<size_t>(layout_.head_dim) * DTypeBytes(layout_.dtype);
  return layout_.Offset(layer, BlockId(block)) + index * row;
}
uint64_t ProvenanceExecutor::Load(int32_t layer, int32_t block, int32_t head, int32_t part,
                                  int32_t slot) const {
  uint64_t word = 0;
  if (options_.spelled) {
    std::array<float, kSpelledDim> letters;
    ConvertNumbers(layout_.dtype, pool_.data() + WordOffset(layer, block, head, part, slot),
                   DType::kF32, reinterpret_cast<std::byte*>(letters.data()), letters.size());
    for (const float letter : letters) {
      // Not a letter: memory that holds none of these words.
      if (!(letter >= 0 && letter < 16 && letter == std::floor(letter))) return ~word;
      word = word << 4 | static_cast<uint64_t>(letter);
    }
    return word;
  }
  std::memcpy(&word, pool_.data() + WordOffset(layer, block, head, part, slot), sizeof(word));
  return word;
}
void ProvenanceExecutor::Store(int32_t layer, int32_t block, int32_t head, int32_t part,
                               int32_t slot, uint64_t word) {
  if (options_.spelled) {
    std::array<float, kSpelledDim> letters;
    for (size_t i = 0; i < letters.size(); ++i)
      letters[i] = static_cast<float>(word >> (60 - 4 * i) & 15);
    return ConvertNumbers(DType::kF32, reinterpret_cast<const std::byte*>(letters.data()),
                          layout_.dtype, pool_.data() + WordOffset(layer, block, head, part, slot),
                          letters.size());
  }
  std::memcpy(pool_.data() + WordOffset(layer, block, head, part, slot), &word, sizeof(word));
}

}  // namespace aisp
