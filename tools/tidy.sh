#!/usr/bin/env bash
# clang-tidy on the .cc files named on standard input, by the compile commands of a configured build folder.
#   git ls-files '*.cc' | tools/tidy.sh <build folder> <jobs>
set -euo pipefail

build=$1
jobs=$2
tidy=${CLANG_TIDY:-$("$(dirname "$0")/clang_tidy.sh")}

# Files that this build does not compile (another backend, another preset) have no compile command: say so, go on.
compiled=$(python3 -c '
import json, os, sys
for entry in json.load(open(os.path.join(sys.argv[1], "compile_commands.json"))):
    print(os.path.relpath(os.path.join(entry["directory"], entry["file"])))' "$build" | sort -u)
files=()
while IFS= read -r file; do
  if grep -qxF -- "$file" <<<"$compiled"; then
    files+=("$file")
  else
    echo "tidy: $file is not part of $build" >&2
  fi
done
[ "${#files[@]}" -eq 0 ] && exit 0

# g++ knows coroutines by itself; clang is not believed by Boost 1.74 unless it is told. Deprecation is the compiler's
# business: clang also sees what libstdc++ 12 uses inside std::stable_sort. CI's parameters of g++ mean nothing to clang.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" "$tidy" -p "$build" --quiet --warnings-as-errors='*' \
  --extra-arg=-Wno-unused-command-line-argument --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations \
  --extra-arg=-DBOOST_ASIO_HAS_CO_AWAIT=1 --extra-arg=-DBOOST_ASIO_HAS_STD_COROUTINE=1
