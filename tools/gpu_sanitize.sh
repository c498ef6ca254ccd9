#!/usr/bin/env bash
# compute-sanitizer over the GPU kernels: memcheck, racecheck, synccheck and initcheck on small tests that reach every kernel of a
# served model. Prints a table; exit 1 on any error. Runs from the root of an unpacked bundle (make bundle CUDA=1) or of the source
# tree after a build with CUDA. docs/gpu.md says what each tool sees and what is left out.
#   tools/gpu_sanitize.sh [--tools memcheck,racecheck] [--only WORD] [--jobs N] [--limit SECONDS] [--logs FOLDER]
set -u
cd "$(dirname "$0")/.."

usage() { sed -n '5s/^# *//p' "$0" >&2; exit 2; }
tools=memcheck,racecheck,synccheck,initcheck only='' jobs=4 limit=300 logs=''
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --tools) tools=$2 ;;
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

# Name, tools, test program, filter. The longest first.
every=memcheck,racecheck,synccheck,initcheck
cases() {
  cat <<CASES
steps-bf16 $every kernels_cuda_test Formats/GpuSteps.*/bf16
steps-fp8 $every kernels_cuda_test Formats/GpuSteps.*/fp8
steps-fp4 $every kernels_cuda_test Formats/GpuSteps.*/nvfp4
steps-kv8 $every kernels_cuda_test Formats/GpuSteps.*/bf16_kv_fp8
chain $every kernels_cuda_linear_test ChainTest.TinyShapes
chain-odd memcheck kernels_cuda_linear_test ChainTest.OddShapesWithBias
few-rows $every kernels_cuda_linear_test LinearTest.Fp8WeightsAndActivationsOddOutputs:LinearTest.Bf16SplitAlongK:LinearTest.QuantisingOnLoadKeepsTheFormatsPrecision
many-rows $every kernels_cuda_linear_test Formats/GemmFormats.SmallShapes/*
many-odd memcheck kernels_cuda_linear_test Formats/GemmFormats.OddShapesWithBias/*
decode $every kernels_cuda_attention_test CudaRunDecode.SlidingWindow:CudaRunDecode.PaddingIsLeftAlone
prefill $every kernels_cuda_attention_test CudaPrefillAttention.SlidingWindow
planned $every kernels_cuda_attention_test CudaDecodeAttention.SlidingWindow
mixed memcheck,synccheck,initcheck kernels_cuda_attention_test CudaDecodeAttention.HeadDim256TakesManyRowsInChunks:CudaAttention.MixedStepsServeDecodeAndPrefillRows
append $every kernels_cuda_attention_test CudaRopeAppend.BlockSizesAndHeadCounts
draw $every kernels_cuda_test GpuDraw.ARowThatIsNotFiniteFailsAlone:GpuDraw.BansThatLeaveNothingAreTold:GpuDraw.LogprobsAreTheHosts
ops $every kernels_cuda_test GpuOps.RmsNorm:GpuOps.EmbeddingReadsTokensAndSlots:GpuOps.SiluMul:GpuParity.RmsNormOfStridedRows:GpuPagedParity.RopeAppendInEveryFormatLeavesPaddingAlone
CASES
}

# A warp's lane 0 arrives at a barrier for all lanes, behind __syncwarp: racecheck has to be told to follow that.
declare -A options
if "$sanitizer" --help | grep -q racecheck-indirect-barrier-dependency; then
  options[racecheck]='--racecheck-indirect-barrier-dependency yes'
fi

# One tool on one case; leaves "tool name seconds result" in a file.
run_case() {
  local tool=$1 name=$2 program=$3 filter=$4 began=$SECONDS rc result log=$logs/$1-$2.log
  # Errors of the API are not reported: tests ask for a petabyte to see it refused.
  # shellcheck disable=SC2086
  timeout "$limit" "$sanitizer" --tool "$tool" ${options[$tool]:-} --report-api-errors no --error-exitcode 86 --print-limit 20 \
    "$programs/$program" --gtest_filter="$filter" >"$log" 2>&1
  rc=$?
  local passed
  passed=$(grep -oE '^\[  PASSED  \] [0-9]+' "$log" | grep -oE '[0-9]+')
  local summary
  summary=$(grep -oE '(ERROR|RACECHECK) SUMMARY: .*' "$log" | tail -n 1)
  case $rc in
    0) result="ok: ${passed:-0} tests" ;;
    86) result="ERRORS: $summary" ;;
    124) result="TOO SLOW: $limit s" ;;
    *) result="FAILED: exit $rc" ;;
  esac
  # A test that skips says nothing about the kernels.
  if [ "$rc" = 0 ] && [ "${passed:-0}" = 0 ]; then result="FAILED: no test ran"; fi
  printf '%-10s %-11s %4d s  %s\n' "$tool" "$name" $((SECONDS - began)) "$result" | tee "$logs/$tool-$name.result"
}

# Which matrix kernels are the fastest is measured once, outside the sanitizers.
TEST_TMPDIR=$logs/tuning
export TEST_TMPDIR
mkdir -p "$TEST_TMPDIR"
"$programs/kernels_cuda_test" --gtest_brief=1 --gtest_filter='Formats/GpuSteps.*' >"$logs/tuning.log" 2>&1 ||
  { echo 'without a sanitizer:'; tail -n 20 "$logs/tuning.log"; } >&2

while read -r name for_tools program filter; do
  case $name in *"$only"*) ;; *) continue ;; esac
  for tool in ${tools//,/ }; do
    case ,$for_tools, in *",$tool,"*) ;; *) continue ;; esac
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    run_case "$tool" "$name" "$program" "$filter" &
  done
done < <(cases)
wait
ran=$(cat "$logs"/*.result 2>/dev/null | wc -l)
bad=$(cat "$logs"/*.result 2>/dev/null | grep -vc ' s  ok: ')
echo "$ran runs, $bad with errors"
for log in "$logs"/*.result; do
  grep -q ' s  ok: ' "$log" || { echo "--- ${log%.result}.log"; grep -E '^=========' "${log%.result}.log" | head -n 40; }
done
[ "$ran" -gt 0 ] && [ "$bad" -eq 0 ]
