#!/usr/bin/env bash
# Measures the cost of HTTP serving on one GPU: tokens/s of the engine alone in a closed loop (aisp
# bench engine --rounds) against those that aisp-loadgen gets from `aisp serve --role all` on this
# machine, with the same shape, streams, lengths and settings, prompts included. Runs from the root
# of an unpacked bundle (make bundle CUDA=1) or of the source tree after a build with CUDA.
#
# Usage: tools/gpu_serve.sh [--root DIR] [--shape NAME] [--streams N] [--rounds N] [--device D]
#                           [--vocab N] [--flags 'MORE FLAGS'] [ISL:OSL...]
# One line per workload goes to stdout; logs and JSON to ${TMPDIR:-/tmp}/gpu_serve. Exit code 1 when
# a run failed.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
[ -x "$root/bin/aisp" ] || root=$root/build-cuda
shape=llama-3.1-8b streams=128 rounds=2 device=cuda vocab=30000 more=''
while [ $# -gt 0 ]; do
  case $1 in
    --root) root=$2 ;;
    --shape) shape=$2 ;;
    --streams) streams=$2 ;;
    --rounds) rounds=$2 ;;
    --device) device=$2 ;;
    --vocab) vocab=$2 ;;
    --flags) more=$2 ;;
    *) break ;;
  esac
  shift 2
done
[ $# -gt 0 ] || set -- 128:512 1024:256
out=${TMPDIR:-/tmp}/gpu_serve
port=18080
mkdir -p "$out"
status=0

number() { grep -o "\"$1\": *[0-9.]*" | head -1 | grep -o '[0-9.]*$'; }

# CPU seconds of every thread of a process, the busiest first.
threads() {
  for task in /proc/"$1"/task/*; do
    awk -v hz="$(getconf CLK_TCK)" '{ name = $2; sub(/^.*\) /, ""); printf "%.1f %s\n", ($12 + $13) / hz, name }' \
      "$task/stat" 2>/dev/null
  done | sort -rn | awk '$1 >= 0.2 { printf "%s %s s, ", $2, $1 }' | head -c 600
}

for pair in "$@"; do
  isl=${pair%:*} osl=${pair#*:}
  length=$((isl + osl + 2))
  blocks=$((streams * ((length + 15) / 16 + 1)))
  flags=(--device "$device" --model "$shape" --weights random:1 --max-batch-tokens 2048 --max-prefill-chunk 2048
    --block-size 16)
  # shellcheck disable=SC2206
  flags+=($more)
  name=$out/$(basename "$shape" .json)-$isl-$osl
  "$root/bin/aisp" bench engine "${flags[@]}" --isl "$isl" --osl "$osl" --batch "$streams" --rounds "$rounds" \
    --read-tbps 4.66 >"$name.engine.json" 2>"$name.engine.log" || { tail -3 "$name.engine.log"; status=1; continue; }
  engine=$(grep -o '"closed_loop".*' "$name.engine.json" | number output_tokens_per_s)

  "$root/bin/aisp" serve --role all --port $port "${flags[@]}" --max-num-seqs "$streams" --max-model-len $length \
    --kv-blocks $blocks --no-grpc --log-level warning >"$name.serve.log" 2>&1 &
  server=$!
  "$root/bin/aisp-loadgen" --base-url http://127.0.0.1:$port --wait-ready 120 --no-progress --temperature 0 \
    --num-prompts $((streams * rounds)) --max-concurrency "$streams" --input-len "$isl" --output-len "$osl" \
    --ignore-eos --vocab-size "$vocab" --num-warmups 8 --save-result --result-filename "$name.http.json" >"$name.http.log" 2>&1 ||
    { tail -20 "$name.http.log" "$name.serve.log"; status=1; }
  cpu=$(threads $server)
  kill -TERM $server 2>/dev/null
  wait $server || { echo "the server ended with $?"; tail -3 "$name.serve.log"; status=1; }
  http=$(number output_throughput <"$name.http.json" | cut -d. -f1)
  echo "$shape isl $isl osl $osl streams $streams: engine $engine tokens/s, HTTP $http tokens/s," \
    "$(awk -v a="${http:-0}" -v b="${engine:-0}" 'BEGIN { printf "%.1f %%", (b > 0) ? 100 * a / b : 0 }')"
  echo "  engine: $(grep -o '"closed_loop".*' "$name.engine.json" | tr -d '{}"' | cut -c14-)"
  echo "  client: $(grep -E 'Mean TTFT|Mean TPOT|P99 TPOT|Failed|CPU' "$name.http.log" | tr -s ' ' | tr '\n' ';')"
  echo "  server threads: $cpu"
done
exit $status
