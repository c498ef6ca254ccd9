#!/usr/bin/env bash
# compute-sanitizer over the GPU kernels: memcheck, racecheck, synccheck and initcheck on small
# tests that reach every kernel of a served model. Prints a table; exit 1 on any error. Runs from
# the root of an unpacked bundle (make bundle CUDA=1) or of the source tree after a build with CUDA.
# docs/gpu.md says what each tool sees and what is left out.
#   tools/gpu_sanitize.sh [--only REGEX, of "racecheck chain"] [--jobs N] [--limit SECONDS]
#     [--logs FOLDER]
set -u
cd "$(dirname "$0")/.." || exit 1

usage() { sed -n '6,7s/^# *//p' "$0" >&2; exit 2; }
only='' jobs=4 limit=300 logs=''
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --only) only=$2 ;;
    --jobs) jobs=$2 ;;
    --limit) limit=$2 ;;
    --logs) logs=$2 ;;
    *) usage ;;
  esac
  shift 2
done

programs=build-cuda/tests
[ -x bin/aisp ] && programs=tests
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "gpu_sanitize.sh: no compute-sanitizer; it comes with the CUDA toolkit" >&2; exit 1; }
if [ -z "$logs" ]; then
  logs=$(mktemp -d)
  trap 'rm -rf "$logs"' EXIT
fi
mkdir -p "$logs"

# Name, test program, filter, the tools (m, r, s, i). The longest first.
cases() {
  cat <<'CASES'
steps-bf16 kernels_cuda_test r Formats/GpuSteps.LogitsAreTheCpus/bf16
steps-fp8 kernels_cuda_test r Formats/GpuSteps.LogitsAreTheCpus/fp8
steps-fp4 kernels_cuda_test r Formats/GpuSteps.LogitsAreTheCpus/nvfp4
steps-kv8 kernels_cuda_test r Formats/GpuSteps.LogitsAreTheCpus/bf16_kv_fp8
graphs-bf16 kernels_cuda_test msi Formats/GpuSteps.GraphsGiveTheBitsOfPlainLaunches/bf16:Formats/GpuSteps.OneSequenceAlone/bf16
graphs-fp8 kernels_cuda_test msi Formats/GpuSteps.GraphsGiveTheBitsOfPlainLaunches/fp8
graphs-fp4 kernels_cuda_test msi Formats/GpuSteps.GraphsGiveTheBitsOfPlainLaunches/nvfp4
graphs-kv8 kernels_cuda_test msi Formats/GpuSteps.GraphsGiveTheBitsOfPlainLaunches/bf16_kv_fp8
chain kernels_cuda_linear_test mri ChainTest.TinyShapes:ChainTest.OneTokenTiny:ChainTest.FewTokensTiny
chain-odd kernels_cuda_linear_test m ChainTest.OddShapesWithBias
few-rows kernels_cuda_linear_test mrsi LinearTest.Fp8WeightsAndActivationsOddOutputs:LinearTest.Bf16SplitAlongK:LinearTest.QuantisingOnLoadKeepsTheFormatsPrecision
many-rows kernels_cuda_linear_test mrsi Formats/GemmFormats.SmallShapes/0:Formats/GemmFormats.SmallShapes/1:Formats/GemmFormats.SmallShapes/2
split kernels_cuda_linear_test mrs GemmTest.PartsOfKOfOneTile
apart kernels_cuda_linear_test mrs GemmTest.NeighbouringClustersAddTheirParts
many-fp4 kernels_cuda_linear_test mrsi Formats/GemmFormats.SmallShapes/3
many-odd kernels_cuda_linear_test m Formats/GemmFormats.OddShapesWithBias/*
decode kernels_cuda_attention_test mrsi CudaRunDecode.SlidingWindow:CudaRunDecode.PaddingIsLeftAlone
verify kernels_cuda_attention_test mrs CudaRunDecode.RowsSeeTheirOwnWindows
prefill kernels_cuda_attention_test mrsi CudaPrefillAttention.SlidingWindow
planned kernels_cuda_attention_test mrsi CudaDecodeAttention.OneSequenceOfEveryOddLength
mixed kernels_cuda_attention_test msi CudaDecodeAttention.HeadDim256TakesManyRowsInChunks:CudaAttention.MixedStepsServeDecodeAndPrefillRows
hand-over kernels_cuda_attention_test mrsi HandOver.StepsWithSlotsAndStepsWithRowsLeaveNothingBehind
append kernels_cuda_attention_test mrsi CudaRopeAppend.BlockSizesAndHeadCounts
engine kernels_cuda_test m GpuEngine.ConstraintsAndProposedTokensGiveWhatTheCpuDraws
draw kernels_cuda_test mrsi GpuDraw.ARowThatIsNotFiniteFailsAlone:GpuDraw.BansThatLeaveNothingAreTold:GpuDraw.LogprobsAreTheHosts
ops kernels_cuda_test mrsi GpuOps.RmsNorm:OddAndEven/GpuEmbedding.ReadsTokensAndSlots/*:GpuOps.SiluMul:GpuParity.RmsNormOfStridedRows:GpuPagedParity.RopeAppendInEveryFormatLeavesPaddingAlone
CASES
}

# The vendor's kernels are excluded, except for racecheck over whole steps, which fails as soon as a
# kernel of a step is excluded. docs/gpu.md says what else is excluded from a tool, and why.
options_of() {
  case "$1 $2" in
    'racecheck steps'*) echo '--force-blocking-launches' ;;
    'synccheck graphs'*) echo '--kernel-name kns=aisp --kernel-name-exclude kns=ChainKernel' ;;
    memcheck*) ;;
    *) echo '--kernel-name kns=aisp' ;;
  esac
}

# Runs one tool on one case: a line of the table, on stdout and in a file.
run_case() {
  local tool=$1 name=$2 program=$3 filter=$4 began=$SECONDS log=$logs/$1-$2.log rc passed result
  # Errors of the API are not reported: tests ask for a petabyte to see it refused.
  # shellcheck disable=SC2046
  timeout "$limit" "$sanitizer" --tool "$tool" $(options_of "$tool" "$name") --report-api-errors no --error-exitcode 86 \
    --print-limit 20 "$programs/$program" --gtest_filter="$filter" >"$log" 2>&1
  rc=$?
  passed=$(grep -oE '^\[  PASSED  \] [0-9]+' "$log" | grep -oE '[0-9]+')
  case $rc in
    0) result="ok: ${passed:-0} tests" ;;
    86) result="ERRORS: $(grep -oE 'SUMMARY: .*' "$log" | tail -n 1)" ;;
    124) result="TOO SLOW: $limit s" ;;
    *) result="FAILED: exit $rc" ;;
  esac
  # A skipped test says nothing about the kernels.
  if [ "$rc" = 0 ] && [ "${passed:-0}" = 0 ]; then result='FAILED: no test ran'; fi
  printf '%-10s %-11s %4d s  %s\n' "$tool" "$name" $((SECONDS - began)) "$result" | tee "$logs/$tool-$name.result"
}

# A renamed test must not drop out unnoticed.
while read -r _ program _ filter; do
  for piece in ${filter//:/ }; do
    "$programs/$program" --gtest_list_tests --gtest_filter="$piece" | grep -q '^  ' && continue
    echo "gpu_sanitize.sh: $program has no test $piece" >&2
    exit 1
  done
done < <(cases)

# Matrix kernels are tuned once, outside the sanitizers.
export TEST_TMPDIR=$logs/tuning
mkdir -p "$TEST_TMPDIR"
"$programs/kernels_cuda_test" --gtest_brief=1 --gtest_filter='Formats/GpuSteps.*' >"$logs/tuning.log" 2>&1 ||
  { echo 'without a sanitizer:'; tail -n 20 "$logs/tuning.log"; } >&2

while read -r name program letters filter; do
  for tool in memcheck racecheck synccheck initcheck; do
    [[ $letters == *${tool:0:1}* && "$tool $name" =~ $only ]] || continue
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    run_case "$tool" "$name" "$program" "$filter" &
  done
done < <(cases)
wait

ran=0 bad=0
for result in "$logs"/*.result; do
  [ -e "$result" ] || continue
  ran=$((ran + 1))
  grep -q ' s  ok: ' "$result" && continue
  bad=$((bad + 1))
  echo "--- $(basename "${result%.result}")"
  grep -E '^=========|Failure' -A 3 "${result%.result}.log" | grep -v 'Host Frame' | head -n 40
done
echo "$ran runs, $bad with errors"
[ "$ran" -gt 0 ] && [ "$bad" -eq 0 ]
