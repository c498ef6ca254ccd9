#!/usr/bin/env python3
"""Runs of real workers, played again in `aisp simulate`: the same arrivals and lengths.

  tools/replay_runs.py --aisp build/bin/aisp --goodput ttft:300 tpot:12 \\
    h100-llama-3.1-8b-fp8:2D=warm.csv,agg-35.csv,agg-45.csv h100-llama-3.1-8b-fp8:1P1D=pd-35.csv

Each argument is what --workers takes, '=' and what `aisp-loadgen --csv` wrote: runs of one cluster in
their order, which are played one after another, so that the router knows what it had learnt. A line
for each: in time, TTFT and time per token at the median and the 90th percentile, measured and
simulated (the mean of --seeds), and by how much the simulated ones differ.
"""
import argparse
import csv
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta

# Between two runs, for the last answers to end.
PAUSE_S = 2


def percentile(values, part):
    ordered = sorted(values)
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def figures(rows, limits):
    done = [r for r in rows if r["status"] == "completed"]
    ttft = [float(r["ttft_ms"]) for r in done]
    tpot = [float(r["tpot_ms"]) for r in done if int(r["output_tokens"]) > 1]
    good = sum(float(r["ttft_ms"]) <= limits["ttft"] and float(r["tpot_ms"]) <= limits["tpot"] for r in done)
    return [100 * good / len(rows)] + [percentile(v, p) for v in (ttft, tpot) for p in (0.5, 0.9)]


def read(path):
    with open(path) as lines:
        return list(csv.DictReader(lines))


def trace_of(runs, path):
    at = datetime(2026, 1, 1)
    with open(path, "w") as out:
        out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for rows in runs:
            for r in sorted(rows, key=lambda r: float(r["intended_s"])):
                sent = at + timedelta(seconds=float(r["intended_s"]))
                out.write(f"{sent:%Y-%m-%d %H:%M:%S.%f},{r['asked_input_tokens']},{r['asked_output_tokens']}\n")
            at += timedelta(seconds=PAUSE_S + max(float(r["end_s"]) for r in rows if r["end_s"]))


def simulated(options, workers, runs, seed):
    """The figures of each run."""
    with tempfile.NamedTemporaryFile(suffix=".csv") as trace, tempfile.NamedTemporaryFile(suffix=".csv") as told:
        trace_of(runs, trace.name)
        command = [options.aisp, "simulate", "--workers", workers, "--trace", trace.name, "--seed", str(seed),
                   "--csv", told.name, "--goodput", *options.goodput, *options.more.split()]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        rows = read(told.name)
    out, begin = [], 0
    for run in runs:
        out.append(figures(rows[begin:begin + len(run)], options.limits))
        begin += len(run)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clusters", nargs="+")
    parser.add_argument("--aisp", default="build/bin/aisp")
    parser.add_argument("--goodput", nargs=2, default=["ttft:300", "tpot:12"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--more", default="", help="further flags of aisp simulate")
    options = parser.parse_args()
    options.limits = {k: float(v) for k, v in (g.split(":") for g in options.goodput)}
    print("| run | in time, measured / simulated | TTFT p50 | TTFT p90 | TPOT p50 | TPOT p90 |")
    print("|---|---|---|---|---|---|")
    for cluster in options.clusters:
        workers, files = cluster.split("=", 1)
        runs = [read(file) for file in files.split(",")]
        seeds = [simulated(options, workers, runs, s + 1) for s in range(options.seeds)]
        for i, file in enumerate(files.split(",")):
            real = figures(runs[i], options.limits)
            mean = [sum(v) / len(v) for v in zip(*(s[i] for s in seeds))]
            cells = [f"{real[0]:.1f} / {mean[0]:.1f} %"]
            cells += [f"{r:.1f} / {m:.1f} ({100 * (m / r - 1):+.0f} %)" for r, m in zip(real[1:], mean[1:])]
            print(f"| {workers.rsplit(':', 1)[-1]} {file.rsplit('/', 1)[-1]} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
