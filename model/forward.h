// ForwardBatch: one ragged step over a model, from the engine. Views only; the caller keeps the
// memory alive until the step is collected.
//
// Rows are tokens. Sequence s owns rows [row_begin, row_begin + num_rows) with consecutive
// positions that end at context_len - 1. Its KV of positions [0, context_len - num_rows) is in the
// pool already; the step appends the rest.
#pragma once

#include <cstdint>
#include <span>

#include "common/ids.h"

namespace aisp {

struct SequenceRows {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t context_len = 0;  // tokens in the KV after this step
  int32_t table_begin = 0;  // index of the sequence's first entry in block_tables
};

// A token that the host does not know yet: the last one sampled for `slot_of_row`, on the device.
inline constexpr TokenId kTokenOnDevice = -1;

struct ForwardBatch {
  std::span<const TokenId> tokens;     // [rows]; kTokenOnDevice: read the slot's last sampled token
  std::span<const int32_t> positions;  // [rows]
  std::span<const int32_t> slot_of_row;     // [rows]; the engine's slot, for kTokenOnDevice
  std::span<const SequenceRows> sequences;  // [sequences]
  std::span<const int32_t> block_tables;    // concatenated tables of block ids
  std::span<const int32_t> logit_rows;      // rows whose logits are wanted, ascending
  // [rows]: each row's adapter slot, -1: none. Empty: no row has one.
  std::span<const int32_t> adapter_of_row = {};
};

}  // namespace aisp
