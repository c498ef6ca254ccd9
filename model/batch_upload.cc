#include "model/batch_upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace aisp {
namespace {

constexpr int32_t kSmallestBlock = 16;

// Carves int32 arrays from memory that exists on the host and on the device. Without host memory
// only device addresses are computed.
class Cutter {
 public:
  Cutter(void* host, void* device)
      : host_(static_cast<std::byte*>(host)), device_(static_cast<std::byte*>(device)) {}

  template <typename T>
  T* Take(size_t n, const T** on_device) {
    auto* host = reinterpret_cast<T*>(host_ + used_);
    *on_device = reinterpret_cast<const T*>(device_ + used_);
    used_ += (n * sizeof(T) + 15) / 16 * 16;
    return host;
  }
  // `values`, then `padding` up to `n`.
  const int32_t* Put(std::span<const int32_t> values, size_t n, int32_t padding) {
    const int32_t* on_device = nullptr;
    int32_t* host = Take<int32_t>(n, &on_device);
    if (!values.empty()) std::memcpy(host, values.data(), values.size_bytes());
    std::fill(host + values.size(), host + n, padding);
    return on_device;
  }
  size_t used() const { return used_; }

 private:
  std::byte* const host_;
  std::byte* const device_;
  size_t used_ = 0;
};

static_assert(sizeof(RowSpan) == sizeof(SequenceRows));

}  // namespace

Result<BatchUpload> BatchUpload::Create(Device& device, const BatchLimits& limits) {
  BatchUpload upload;
  upload.limits_ = limits;
  const auto rows = static_cast<size_t>(limits.max_rows),
             sequences = static_cast<size_t>(limits.max_sequences);
  const size_t table =
      (static_cast<size_t>(limits.max_context) + kSmallestBlock - 1) / kSmallestBlock + 1;
  const size_t numbers = 5 * rows + sequences * (sizeof(RowSpan) / sizeof(int32_t)) +
                         static_cast<size_t>(limits.max_logit_rows) + sequences * table;
  const size_t bytes = numbers * sizeof(int32_t) + 9 * 16;
  for (Buffer& staging : upload.staging_) {
    AISP_ASSIGN_OR_RETURN(staging, device.Allocate(bytes, MemoryKind::kHost));
  }
  for (Buffer& place : upload.places_) {
    AISP_ASSIGN_OR_RETURN(place, device.Allocate(bytes, MemoryKind::kDevice));
  }
  return upload;
}

Status BatchUpload::Check(const ForwardBatch& b, int32_t vocabulary, int32_t block_tokens) const {
  const size_t rows = b.tokens.size();
  if (rows == 0 || rows > static_cast<size_t>(limits_.max_rows)) {
    return InvalidArgument(fmt::format("a step of {} rows; 1 to {} are possible (max_batch_tokens)",
                                       rows, limits_.max_rows));
  }
  AISP_CHECK(b.adapter_of_row.empty() || b.adapter_of_row.size() == rows);
  if (b.positions.size() != rows || (!b.slot_of_row.empty() && b.slot_of_row.size() != rows)) {
    return InvalidArgument(fmt::format("{} tokens, {} positions, {} slots in a step", rows,
                                       b.positions.size(), b.slot_of_row.size()));
  }
  if (b.sequences.size() > static_cast<size_t>(limits_.max_sequences) ||
      b.logit_rows.size() > static_cast<size_t>(limits_.max_logit_rows)) {
    return InvalidArgument(fmt::format(
        "a step of {} sequences and {} logit rows; {} and {} are possible", b.sequences.size(),
        b.logit_rows.size(), limits_.max_sequences, limits_.max_logit_rows));
  }
  for (TokenId token : b.tokens) {
    if (token >= vocabulary || (token < 0 && token != kTokenOnDevice)) {
      return InvalidArgument(
          fmt::format("token {} is not in the vocabulary of {}", token, vocabulary));
    }
    if (token == kTokenOnDevice && b.slot_of_row.empty())
      return InvalidArgument("a token on the device without a slot");
  }
  int32_t above = -1;
  for (int32_t row : b.logit_rows) {
    if (row <= above || static_cast<size_t>(row) >= rows)
      return InvalidArgument(
          fmt::format("logits of row {} of {} after those of row {}", row, rows, above));
    above = row;
  }
  int32_t next = 0;
  for (const SequenceRows& s : b.sequences) {
    if (s.row_begin != next || s.num_rows < 1 || s.num_rows > s.context_len ||
        s.context_len > limits_.max_context) {
      return InvalidArgument(
          fmt::format("a sequence with rows [{}, {}) and a context of {}; rows have to follow each "
                      "other, contexts to be at most {}",
                      s.row_begin, s.row_begin + s.num_rows, s.context_len, limits_.max_context));
    }
    next += s.num_rows;
    const int64_t table_end =
        int64_t{s.table_begin} + (s.context_len + block_tokens - 1) / block_tokens;
    if (s.table_begin < 0 || table_end > static_cast<int64_t>(b.block_tables.size())) {
      return InvalidArgument(fmt::format("a block table that ends at {} of {} entries", table_end,
                                         b.block_tables.size()));
    }
    for (int32_t i = 0; i < s.num_rows; ++i) {
      if (b.positions[static_cast<size_t>(s.row_begin) + static_cast<size_t>(i)] !=
          s.context_len - s.num_rows + i) {
        return InvalidArgument(fmt::format(
            "row {}: positions of a sequence have to end at its context length", s.row_begin + i));
      }
    }
  }
  if (static_cast<size_t>(next) != rows)
    return InvalidArgument(fmt::format("{} rows, but the sequences have {}", rows, next));
  return {};
}

DeviceBatch BatchUpload::Padded(int32_t rows, int32_t longest, int32_t place, bool all_logits,
                                bool adapters) const {
  Cutter cutter(nullptr, places_[static_cast<size_t>(place)].data());
  const auto n = static_cast<size_t>(rows);
  DeviceBatch out;
  out.num_logit_rows = out.ragged.rows = rows;
  out.ragged.num_sequences = PaddedSequences(rows);
  out.ragged.longest_rows = longest;
  cutter.Take<int32_t>(n, &out.tokens);
  cutter.Take<int32_t>(n, &out.ragged.positions);
  cutter.Take<int32_t>(n, &out.slot_of_row);
  if (!all_logits) {
    out.num_logit_rows = out.ragged.num_sequences;
    cutter.Take<int32_t>(static_cast<size_t>(out.num_logit_rows), &out.logit_rows);
  }
  cutter.Take<RowSpan>(static_cast<size_t>(out.ragged.num_sequences), &out.ragged.sequences);
  cutter.Take<int32_t>(n, &out.ragged.kv_slots);
  if (adapters) cutter.Take<int32_t>(n, &out.adapter_of_row);
  cutter.Take<int32_t>(0, &out.ragged.block_tables);
  return out;
}

Result<DeviceBatch> BatchUpload::Upload(const ForwardBatch& b, int32_t vocabulary,
                                        int32_t block_tokens, int32_t pad_to, int32_t place,
                                        Device& device, Stream& stream) {
  AISP_RETURN_IF_ERROR(Check(b, vocabulary, block_tokens));
  AISP_CHECK(pad_to == 0 || static_cast<size_t>(pad_to) >= b.tokens.size());
  const size_t rows = std::max(b.tokens.size(), static_cast<size_t>(pad_to));
  const size_t sequence_count =
      std::max(b.sequences.size(), static_cast<size_t>(PaddedSequences(pad_to)));
  // Logit rows are ascending, so as many as rows means all.
  const bool all = b.logit_rows.size() == b.tokens.size();
  const size_t logit_rows = all ? rows : pad_to > 0 ? sequence_count : b.logit_rows.size();
  AISP_CHECK(logit_rows >= b.logit_rows.size() &&
             logit_rows <= static_cast<size_t>(limits_.max_logit_rows));
  turn_ ^= 1;
  const Buffer& target = places_[static_cast<size_t>(place)];
  Cutter cutter(staging_[turn_].data(), target.data());
  DeviceBatch out;
  out.num_logit_rows = static_cast<int32_t>(logit_rows);
  out.ragged.rows = static_cast<int32_t>(rows);
  out.ragged.num_sequences = static_cast<int32_t>(sequence_count);
  out.tokens = cutter.Put(b.tokens, rows, 0);
  out.ragged.positions = cutter.Put(b.positions, rows, -1);
  out.slot_of_row = cutter.Put(b.slot_of_row, b.slot_of_row.empty() ? 0 : rows, 0);
  if (!all) out.logit_rows = cutter.Put(b.logit_rows, logit_rows, 0);
  RowSpan* sequences = cutter.Take<RowSpan>(sequence_count, &out.ragged.sequences);
  int32_t* slots = cutter.Take<int32_t>(rows, &out.ragged.kv_slots);
  if (!b.adapter_of_row.empty()) out.adapter_of_row = cutter.Put(b.adapter_of_row, rows, -1);
  // Copies only this step's block tables, each cut to its sequence's length.
  size_t table_entries = 0;
  const auto block = static_cast<size_t>(block_tokens);
  for (const SequenceRows& s : b.sequences)
    table_entries += (static_cast<size_t>(s.context_len) + block - 1) / block;
  int32_t* tables = cutter.Take<int32_t>(table_entries, &out.ragged.block_tables);
  AISP_CHECK(cutter.used() <= staging_[turn_].bytes());
  int32_t at = 0;
  for (size_t i = 0; i < b.sequences.size(); ++i) {
    const SequenceRows& s = b.sequences[i];
    const int32_t blocks = (s.context_len + block_tokens - 1) / block_tokens;
    std::memcpy(tables + at, b.block_tables.data() + s.table_begin,
                static_cast<size_t>(blocks) * sizeof(int32_t));
    sequences[i] = {s.row_begin, s.num_rows, s.context_len, at};
    out.ragged.longest_rows = std::max(out.ragged.longest_rows, s.num_rows);
    for (int32_t r = 0; r < s.num_rows; ++r) {
      const int32_t position = s.context_len - s.num_rows + r;
      slots[s.row_begin + r] =
          tables[at + position / block_tokens] * block_tokens + position % block_tokens;
    }
    at += blocks;
  }
  for (size_t i = b.sequences.size(); i < sequence_count; ++i)
    sequences[i] = {static_cast<int32_t>(i), 0, 0, 0};
  std::fill(slots + b.tokens.size(), slots + rows, 0);
  out.ragged.host_sequences = {sequences, sequence_count};
  AISP_RETURN_IF_ERROR(device.Upload(target.data(), staging_[turn_].data(), cutter.used(), stream));
  return out;
}

}  // namespace aisp
