#!/usr/bin/env bash
# clang-tidy on the .cc files named on standard input, by the compile commands of a configured build
# folder.
#   git ls-files '*.cc' | tools/tidy.sh <build folder> <jobs>
set -euo pipefail

build=$1
jobs=$2
tidy=${CLANG_TIDY:-$("$(dirname "$0")/clang_tidy.sh")}

# Files that this build does not compile (another backend, another preset) have no compile command:
# report them and go on.
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

# Boost 1.74 does not enable coroutines for clang by itself. Deprecation is left to the compiler:
# clang also reports what libstdc++ 12 uses inside std::stable_sort. clang does not know CI's
# parameters of g++.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" "$tidy" -p "$build" --quiet --warnings-as-errors='*' \
  --extra-arg=-Wno-unused-command-line-argument --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations \
  --extra-arg=-DBOOST_ASIO_HAS_CO_AWAIT=1 --extra-arg=-DBOOST_ASIO_HAS_STD_COROUTINE=1
