// DraftDraws: the draws of a proposer on an asynchronous device.
//
// Rows, edits and masks of a step's draws are uploaded; the device writes tokens to host memory.
// Each "place" holds the draws of one step, so a step can be uploaded while the previous one reads
// another place. Masks are rare and share one buffer. Draws follow AsyncExecutor's rules;
// with a mask, the logprob is still over all tokens. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/draw_rows.h"
#include "engine/executor.h"
#include "model/model.h"

namespace aisp {

struct DraftDrawsOptions {
  int32_t rows = 0;        // most draws of a step
  int32_t slots = 0;       // 0: no token is kept for a later step
  int32_t vocabulary = 0;  // of the logits
  size_t places = 1;
};

class DraftDraws {
 public:
  // The device outlives it.
  static Result<std::unique_ptr<DraftDraws>> Create(const DraftDrawsOptions& options,
                                                    Device& device);

  // Arguments to draw `rows` rows from `place`, for a step or a capture; 0 rows: no draws.
  StepDraws Of(int32_t rows, bool filters, size_t place) const;
  // Waits until the device has finished the place's last step; the place is then free.
  Status Wait(size_t place);
  // Uploads to a free place, padded to `rows`. Draws and edits go through `upload`; masks through
  // `stream`, which the caller makes wait for `upload`. Edits without room refuse their draw
  // (RESOURCE_EXHAUSTED in the token's status).
  Status Upload(std::span<const SampleRow> samples, int32_t rows, size_t place, Stream& upload,
                Stream& stream);
  // Marks the end of the step that uses the place, whether or not it drew.
  Status Record(size_t place, Stream& stream);
  // Tokens drawn for the samples, in order, with logprobs. Call Wait first.
  std::vector<SampledToken> Drawn(size_t place) const;

 private:
  // Host inputs of one step, until it is done.
  struct Place {
    Buffer rows;          // on the device: DrawRow [rows of the step], then edits (FirstEdit)
    Buffer staging;       // page-locked, likewise
    Buffer mask_staging;  // page-locked
    std::unique_ptr<Event> done;
    // By sample: position of the drawn token, and why it could not be drawn.
    std::vector<uint32_t> positions;
    std::vector<Status> refused;
  };

  DraftDraws(const DraftDrawsOptions& options, Device& device)
      : options_(options), device_(device), edits_(options.vocabulary) {}
  Status Allocate();
  size_t MaskWords() const { return (static_cast<size_t>(options_.vocabulary) + 31) / 32; }
  size_t MaxEdits() const;
  // Index in `drawn_` where the device writes a sample's token.
  size_t DrawnAt(size_t place, size_t sample) const {
    return place * static_cast<size_t>(options_.rows) + sample;
  }
  SampledToken TokenOf(size_t place, size_t sample) const;

  const DraftDrawsOptions options_;
  Device& device_;
  EditWriter edits_;
  std::vector<Place> places_;
  Buffer draw_masks_;
  Buffer drawn_;  // page-locked, written by the device: DrawnToken [places, rows]
};

}  // namespace aisp
