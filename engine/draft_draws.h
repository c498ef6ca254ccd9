// DraftDraws: draws of what proposes tokens on a device that computes beside the host.
//
// Rows, edits and masks of a step's draws go to the device, their tokens come back to memory that
// it writes. There are some places, each for the draws of one step: a step's may come to one while
// the step before reads the other. Edits and masks, which few steps have, share one place. Draws
// are AsyncExecutor's; the logprob of a token under a mask is that among all tokens. Engine thread
// only.
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
  int32_t rows = 0;        // of a step
  int32_t slots = 0;       // 0: no token is left for a later step
  int32_t vocabulary = 0;  // of the logits that it draws from
  size_t places = 1;
};

class DraftDraws {
 public:
  // The device outlives it.
  static Result<std::unique_ptr<DraftDraws>> Create(const DraftDrawsOptions& options,
                                                    Device& device);

  // So many rows of a place, for a step or for a capture; of none: no draws.
  StepDraws Of(int32_t rows, bool filters, size_t place) const;
  // Until the device is done with the place's last step. It is free then.
  Status Wait(size_t place);
  // To a free place, with padding up to `rows`: draws by `upload`, edits and masks by `stream`,
  // which comes behind it.
  Status Upload(std::span<const SampleRow> samples, int32_t rows, size_t place, Stream& upload,
                Stream& stream);
  // Behind the step that draws, or that is in the place without drawing.
  Status Record(size_t place, Stream& stream);
  // What was drawn for the samples, in order, each with its logprob. Behind Wait.
  std::vector<SampledToken> Drawn(size_t place) const;

 private:
  // What the host has for a step, until that has been done.
  struct Place {
    Buffer rows;          // on the device: DrawRow [rows]
    Buffer staging;       // page-locked: DrawRow [rows], then edits
    Buffer mask_staging;  // page-locked
    std::unique_ptr<Event> done;
    // By sample: of the token that is drawn, and why it was not drawn.
    std::vector<uint32_t> positions;
    std::vector<Status> refused;
  };

  DraftDraws(const DraftDrawsOptions& options, Device& device)
      : options_(options), device_(device), edits_(options.vocabulary) {}
  Status Allocate();
  size_t MaskWords() const { return (static_cast<size_t>(options_.vocabulary) + 31) / 32; }
  size_t MaxEdits() const;
  // Where the device leaves what it draws for a sample.
  size_t DrawnAt(size_t place, size_t sample) const {
    return place * static_cast<size_t>(options_.rows) + sample;
  }
  SampledToken TokenOf(size_t place, size_t sample) const;

  const DraftDrawsOptions options_;
  Device& device_;
  EditWriter edits_;
  std::vector<Place> places_;
  Buffer draw_edits_, draw_masks_;
  Buffer drawn_;  // page-locked, written by the device: DrawnToken [places, rows]
};

}  // namespace aisp
