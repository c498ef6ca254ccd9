#!/usr/bin/env python3
"""A worker profile for `aisp simulate` from what workers wrote of their steps (worker.step_log).

  tools/fit_steps.py --profile config/workers/h200-llama-3.1-8b-fp8.json steps/*.csv > mine.json

What a step costs is fitted by least squares of the relative error, terms never negative; all else
is taken from --profile. --from and --to (they may be repeated) keep the steps that ended between
two times, in ms as in the files. To stderr: how far off the fit is, by what the steps held.
"""
import argparse
import csv
import json
import sys
from statistics import median

DECODE = ("base", "per_row", "per_context_token")
PROMPT = ("base", "per_token", "per_position_read", "per_row", "per_context_token")


def read(paths, spans):
    steps = []
    for path in paths:
        with open(path) as lines:
            for row in csv.DictReader(lines):
                at = float(row["end_ms"])
                if not spans or any(begin <= at <= end for begin, end in spans):
                    steps.append({k: float(v) for k, v in row.items()})
    return steps


def solve(rows, target):
    """Least squares by the normal equations, each column scaled to 1."""
    n = len(rows[0])
    scale = [max(1e-30, max(abs(r[i]) for r in rows)) for i in range(n)]
    a = [[0.0] * (n + 1) for _ in range(n)]
    for r, t in zip(rows, target):
        x = [v / s for v, s in zip(r, scale)]
        for i in range(n):
            for j in range(n):
                a[i][j] += x[i] * x[j]
            a[i][n] += x[i] * t
    for i in range(n):
        a[i][i] += 1e-9 * len(rows)  # a column that is nearly another's multiple
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(a[k][i]))
        a[i], a[pivot] = a[pivot], a[i]
        for k in range(n):
            if k != i:
                f = a[k][i] / a[i][i]
                a[k] = [u - f * v for u, v in zip(a[k], a[i])]
    return [a[i][n] / a[i][i] / scale[i] for i in range(n)]


def dot(cost, terms):
    return sum(c * t for c, t in zip(cost, terms))


def quantile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def fit(terms, ms):
    """Non-negative, of the relative error. The worst hundredth does not count: pauses."""
    kept = range(len(ms))
    cost = []
    for _ in range(3):
        active = list(range(len(terms[0])))
        while True:
            x = solve([[terms[k][i] / ms[k] for i in active] for k in kept], [1.0] * len(kept))
            worst = min(range(len(x)), key=lambda i: x[i])
            if x[worst] >= 0 or len(active) == 1:
                break
            del active[worst]
        cost = [0.0] * len(terms[0])
        for i, value in zip(active, x):
            cost[i] = max(0.0, value)
        off = [abs(dot(cost, t) / m - 1) for t, m in zip(terms, ms)]
        limit = quantile(off, 0.99)
        kept = [k for k in range(len(ms)) if off[k] <= limit]
    return cost


def say(name, ms, predicted):
    off = [100 * (m / p - 1) for m, p in zip(ms, predicted)]
    print(f"{name:<34} {len(ms):>6} steps, median {median(ms):8.3f} ms, off by {median(off):+5.1f} % "
          f"(10th {quantile(off, 0.1):+5.1f}, 90th {quantile(off, 0.9):+5.1f})", file=sys.stderr)


def say_prompts(steps, predicted):
    for low, high in ((1, 256), (257, 700), (701, 1100), (1101, 1700), (1701, 65536)):
        for few, many in ((0, 0), (1, 8), (9, 24), (25, 4096)):
            of = [(s["device_ms"], p) for s, p in zip(steps, predicted)
                  if low <= s["prompt_tokens"] <= high and few <= s["rows"] <= many]
            if len(of) > 3:
                say(f"{low} to {high} tokens, {few} to {many} rows", *zip(*of))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--profile", required=True)
    parser.add_argument("--from", dest="begin", type=float, action="append", default=[])
    parser.add_argument("--to", dest="end", type=float, action="append", default=[])
    parser.add_argument("--against", action="store_true", help="how far off --profile is, and no fit")
    options = parser.parse_args()
    steps = read(options.files, list(zip(options.begin, options.end)))
    decodes = [s for s in steps if s["prompt_tokens"] == 0 and s["rows"] > 0]
    prompts = [s for s in steps if s["prompt_tokens"] > 0]
    if min(len(decodes), len(prompts)) < 50:
        sys.exit("fewer than 50 steps of a kind: let the workers serve more")
    profile = json.load(open(options.profile))
    decode_terms = [[1.0, s["rows"], s["row_positions"]] for s in decodes]
    prompt_terms = [[1.0, s["prompt_tokens"], s["prompt_positions"], s["rows"], s["row_positions"]]
                    for s in prompts]
    decode_ms = [s["device_ms"] for s in decodes]
    prompt_ms = [s["device_ms"] for s in prompts]
    if options.against:
        decode = [profile["decode_step_ms"][k] for k in DECODE]
        prompt = [profile["prompt_step_ms"][k] for k in PROMPT]
    else:
        decode, prompt = fit(decode_terms, decode_ms), fit(prompt_terms, prompt_ms)
    decode_predicted = [dot(decode, t) for t in decode_terms]
    prompt_predicted = [dot(prompt, t) for t in prompt_terms]
    say("no prompt", decode_ms, decode_predicted)
    say_prompts(prompts, prompt_predicted)
    if options.against:
        return
    off = [m / p for m, p in zip(decode_ms + prompt_ms, decode_predicted + prompt_predicted)]
    profile["about"] = f"fitted to {len(off)} steps; the rest as in {options.profile}"
    profile["decode_step_ms"] = {k: float(f"{v:.4g}") for k, v in zip(DECODE, decode)}
    profile["prompt_step_ms"] = {k: float(f"{v:.4g}") for k, v in zip(PROMPT, prompt)}
    profile["step_jitter"] = round((quantile(off, 0.84) - quantile(off, 0.16)) / 2, 4)
    print(json.dumps(profile, indent=2))


if __name__ == "__main__":
    main()
