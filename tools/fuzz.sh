#!/usr/bin/env bash
# Runs every fuzzer for a while, starting from its committed corpus. New corpus files and failing
# inputs are kept in the build folder; failing targets are named at the end.
#   tools/fuzz.sh BUILD SECONDS [JOBS [TARGET...]]
# Reproduce a finding: BUILD/bin/fuzz_<target> FILE. Then fix it, and commit the file to
# tests/fuzz/corpus/<target>/.
set -uo pipefail
cd "$(dirname "$0")/.."

if [ $# -lt 2 ]; then
  echo "usage: tools/fuzz.sh BUILD SECONDS [JOBS [TARGET...]]" >&2
  exit 2
fi
build=$1 seconds=$2 jobs=${3:-1}
shift $(($# < 3 ? $# : 3))
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for folder in tests/fuzz/corpus/*/; do targets+=("$(basename "$folder")"); done
fi

# Runs one target; prints one line.
run_one() {
  local target=$1 work=$build/fuzz/$1
  mkdir -p "$work/corpus" "$work/findings"
  if "$build/bin/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
      -artifact_prefix="$work/findings/" "$work/corpus" "tests/fuzz/corpus/$target" >"$work/log" 2>&1; then
    echo "$target: clean, $(sed -n 's/^Done \([0-9]*\) runs in \([0-9]*\) second.*/\1 inputs in \2 s/p' "$work/log")"
  else
    echo "$target: FAILED; findings in $work/findings, the end of $work/log:"
    tail -n 40 "$work/log"
    return 1
  fi
}
export -f run_one
export build seconds
# Corpus files that were found stay in the build folder: a second run starts from them.
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'run_one {} || touch "$build/fuzz/{}/failed"'
failed=0
for target in "${targets[@]}"; do
  if [ -e "$build/fuzz/$target/failed" ]; then
    rm "$build/fuzz/$target/failed"
    failed=$((failed + 1))
  fi
done
echo "$((${#targets[@]} - failed)) of ${#targets[@]} fuzzers clean"
[ "$failed" -eq 0 ]
