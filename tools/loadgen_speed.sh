#!/usr/bin/env bash
# Measures aisp-loadgen itself against its own replay server on loopback, without any model. Three
# loads: requests, one event per token, and tokens as fast as they come. Prints the rates and the
# share of a core.
#
# Usage: tools/loadgen_speed.sh [PATH OF aisp-loadgen]
set -euo pipefail
loadgen=${1:-build/bin/aisp-loadgen}
server=''
# Stops the server; its last line gives what it served and the CPU time.
stop() {
  [ -n "$server" ] || return 0
  kill -INT "$server"
  sed 's/^/replay server: /' <&3
  server=''
}
trap stop EXIT

serve() {
  exec 3< <(exec "$loadgen" --serve-replay "$@")
  server=$!
  local first
  read -r first <&3
  url=$(grep -o 'http://[^;]*' <<<"$first")
}

load() {
  local what=$1
  shift
  echo "== $what"
  "$loadgen" --base-url "$url" --disable-tqdm --input-len 64 "$@" |
    grep -E 'Successful|Failed|Request throughput|Output token throughput|CPU of|busiest|timers|WARNING'
}

serve --replay-ttft-ms 5
load "as many requests of 10 tokens as 64 connections give" --num-prompts 20000 --max-concurrency 64 --output-len 10 --num-warmups 64
stop
serve --replay-ttft-ms 5 --replay-tpot-ms 5
load '20,000 tokens/s, each an event: 160 streams of up to 200 tokens/s' --num-prompts 640 --max-concurrency 160 --output-len 200
stop
serve
load 'as fast as it goes, 64 streams' --num-prompts 4000 --max-concurrency 64 --output-len 200
stop
