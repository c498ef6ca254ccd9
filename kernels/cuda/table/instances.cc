#include "kernels/cuda/table/instances.h"

namespace aisp::cuda {
namespace {

using enum aisp::WeightFormat;

constexpr StreamInstance kStream[] = {
    {kCompute, false, 8, 64, 128},    {kCompute, false, 16, 64, 128},
    {kCompute, false, 32, 64, 128},   {kCompute, false, 64, 128, 64},
    {kFp8, false, 8, 128, 128},       {kFp8, false, 16, 128, 256},
    {kFp8, false, 32, 128, 256},      {kFp8, false, 64, 128, 128},
    {kFp8, false, 128, 128, 128},     {kFp8Block, false, 8, 128, 128},
    {kFp8Block, false, 16, 128, 128}, {kFp8Block, false, 32, 128, 128},
    {kFp8Block, false, 64, 128, 128}, {kFp8, true, 8, 64, 256},
    {kFp8, true, 16, 64, 256},        {kFp8, true, 32, 64, 256},
    {kFp8, true, 64, 128, 128},       {kFp8, true, 128, 128, 128},
    {kFp8Block, true, 8, 128, 128},   {kFp8Block, true, 16, 128, 128},
    {kFp8Block, true, 32, 128, 128},  {kFp8Block, true, 64, 128, 128},
    {kNvfp4, false, 8, 128, 256},     {kNvfp4, false, 16, 192, 256},
    {kNvfp4, false, 32, 128, 256},    {kNvfp4, false, 64, 128, 128},
    {kNvfp4, false, 128, 128, 128},
};

constexpr StreamInstance kChain[] = {
    {kCompute, false, 8, 64, 128},    {kCompute, false, 16, 64, 128},
    {kCompute, false, 32, 64, 128},   {kCompute, false, 64, 64, 128},
    {kFp8, false, 8, 128, 128},       {kFp8, false, 16, 128, 128},
    {kFp8, false, 32, 128, 128},      {kFp8, false, 64, 128, 128},
    {kFp8Block, false, 8, 128, 128},  {kFp8Block, false, 16, 128, 128},
    {kFp8Block, false, 32, 128, 128}, {kFp8Block, false, 64, 128, 128},
    {kNvfp4, false, 8, 128, 256},     {kNvfp4, false, 16, 128, 256},
    {kNvfp4, false, 32, 128, 256},    {kNvfp4, false, 64, 128, 128},
};

constexpr GemmInstance kGemm[] = {
    {kCompute, false, 128, 64, 64},   {kCompute, false, 192, 64, 64},
    {kCompute, false, 256, 64, 64},   {kFp8, true, 64, 128, 256, 64},
    {kFp8, true, 128, 128, 256},      {kFp8, true, 192, 128, 128},
    {kFp8, true, 256, 128, 128},      {kFp8Block, true, 128, 128, 128},
    {kFp8Block, true, 256, 128, 128}, {kFp8, false, 128, 64, 128},
    {kFp8, false, 256, 64, 128},      {kFp8Block, false, 128, 64, 128},
    {kFp8Block, false, 256, 64, 128}, {kNvfp4, false, 128, 64, 256},
    {kNvfp4, false, 256, 64, 256},
};

}  // namespace

std::span<const StreamInstance> StreamInstances() { return kStream; }
std::span<const StreamInstance> ChainInstances() { return kChain; }
std::span<const GemmInstance> GemmInstances() { return kGemm; }

OneTokenInstance OneTokenInstanceOf(aisp::WeightFormat format) {
  switch (format) {
    case kFp8:
    case kFp8Block:
      return {8, 128, 16384, 7680};
    case kNvfp4:
      return {8, 256, 18432, 11712};
    case kCompute:
      break;
  }
  return {8, 64, 16384, 7680};
}

int FewTokensBlockK(aisp::WeightFormat format) {
  if (format == kCompute) return 64;
  return format == kFp8 ? 128 : 0;
}

}  // namespace aisp::cuda
