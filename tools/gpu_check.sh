#!/usr/bin/env bash
# Everything that needs a GPU, in a few minutes: the GPU tests, the sanitizers, the peak rates of
# the card, and the engine on shapes with random weights. Runs from the root of an unpacked bundle
# (make bundle CUDA=1) or of the source tree after a build with CUDA.
# Usage: tools/gpu_check.sh [--quick] [SHAPE...]   JSON lines of the benchmarks go to stdout.
set -u
cd "$(dirname "$0")/.."
root=.
[ -x bin/aisp ] || root=build-cuda
quick=0
[ "${1:-}" = --quick ] && { quick=1; shift; }
shapes=("${@:-llama-3.1-8b}")
text=bench/quality.txt
status=0
for test in "$root"/tests/*cuda*_test; do
  timeout 240 "$test" --gtest_brief=1 || status=1
done
# These tests fork, so each needs its own process.
for test in BytesArriveExactlyWhereTheyShould NothingLandsAfterTheProofOfAWritersDeath; do
  for gpus in OneGpu TwoGpus; do
    timeout 120 "$root/tests/kvcache_transport_test" --gtest_brief=1 \
      --gtest_filter="Gpus/CudaIpcOnGpu.$test/$gpus" || status=1
  done
done
timeout 120 "$root/tests/kvcache_transport_test" --gtest_brief=1 --gtest_filter='CudaIpcOwner.*' || status=1
[ "$quick" = 1 ] || tools/gpu_sanitize.sh || status=1
"$root/bin/aisp" bench limits || status=1
"$root/bin/aisp" bench kernels --json || status=1
for shape in "${shapes[@]}"; do
  "$root/bin/aisp" bench prefill --device cuda --model "$shape" --json || status=1
done
for flags in "--dtype f32" "--dtype bf16" "--dtype bf16 --quantization fp8" "--dtype bf16 --quantization nvfp4" \
  "--dtype bf16 --kv-dtype fp8"; do
  # shellcheck disable=SC2086
  "$root/bin/aisp" bench quality --device cuda --text "$text" $flags || status=1
done
# The first prompts decode while the others of the 128 are computed: with shorter outputs no steps
# of the whole batch would be left to time.
for shape in "${shapes[@]}"; do
  for flags in "" "--quantization fp8" "--quantization nvfp4" "--kv-dtype fp8"; do
    # shellcheck disable=SC2086
    timeout 240 "$root/bin/aisp" bench engine --device cuda --weights random:1 --model "$shape" --isl 1024 --osl 400 \
      --batch 1,8,32,128 $flags || status=1
    [ "$quick" = 1 ] && break
  done
done
exit $status
