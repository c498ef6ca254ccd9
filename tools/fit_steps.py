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
import math
import sys
from statistics import median

DECODE = ("base", "per_row", "per_context_token")
PROMPT = ("base", "per_token", "per_position_read", "per_row", "per_context_token", "beside_rows")


# Candidates for how long what a device did counts.
RESTS_MS = (15, 30, 60, 120, 240)


def read(paths, spans):
    steps = []
    for path in paths:
        warm, last = {rest: 0.0 for rest in RESTS_MS}, None
        with open(path) as lines:
            for row in csv.DictReader(lines):
                step = {k: float(v) for k, v in row.items()}
                ms, end = step["device_ms"], step["end_ms"]
                # Of the moments before it, the part with prompts (simulate/worker_steps.cc).
                rested = 0 if last is None else max(0.0, end - ms - last)
                last = end
                for rest in RESTS_MS:
                    step[rest] = warm[rest] * math.exp(-rested / rest)
                    kept = math.exp(-ms / rest)
                    warm[rest] = step[rest] * kept + (1 - kept if step["prompt_tokens"] > 0 else 0)
                if not spans or any(begin <= end <= to for begin, to in spans):
                    steps.append(step)
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


def weights_of(steps):
    """A load has most steps of a few kinds: what they hold, by powers of two, counts once a kind."""
    def kind(s):
        per_row = s["row_positions"] / s["rows"] if s["rows"] > 0 else 1
        per_token = s["prompt_positions"] / s["prompt_tokens"] if s["prompt_tokens"] > 0 else 1
        return tuple(round(math.log2(1 + v)) for v in (s["prompt_tokens"], per_token, s["rows"], per_row))
    counts = {}
    for s in steps:
        counts[kind(s)] = counts.get(kind(s), 0) + 1
    # Of a kind that is hardly there chance is what one sees.
    return [1 / math.sqrt(max(20, counts[kind(s)])) for s in steps]


def fit(terms, ms, weights):
    """Non-negative, of the relative error. The worst hundredth does not count: pauses."""
    kept = range(len(ms))
    cost = []
    for _ in range(3):
        active = list(range(len(terms[0])))
        while True:
            x = solve([[weights[k] * terms[k][i] / ms[k] for i in active] for k in kept],
                      [weights[k] for k in kept])
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


def factors(steps, rest, back_to_back):
    return [1 + back_to_back * s[rest] for s in steps]


def fit_prompts(steps, terms, ms):
    """The terms, and how much longer steps behind others take, by the least absolute error."""
    best = None
    weights = weights_of(steps)
    for rest in RESTS_MS:
        for hundredths in range(0, 41, 2):
            more = factors(steps, rest, hundredths / 100)
            scaled = [[t * f for t in term] for term, f in zip(terms, more)]
            cost = fit(scaled, ms, weights)
            off = sum(w * abs(dot(cost, t) / m - 1) for w, t, m in zip(weights, scaled, ms))
            if best is None or off < best[0]:
                best = (off, cost, rest, hundredths / 100)
    return best[1:]


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
    parser.add_argument("--tiles", default="5,17,33,129",
                        help="rows from which a step of decodes may take longer at once: kernels work in tiles")
    parser.add_argument("--against", action="store_true", help="how far off --profile is, and no fit")
    options = parser.parse_args()
    steps = read(options.files, list(zip(options.begin, options.end)))
    decodes = [s for s in steps if s["prompt_tokens"] == 0 and s["rows"] > 0]
    prompts = [s for s in steps if s["prompt_tokens"] > 0]
    if min(len(decodes), len(prompts)) < 50:
        sys.exit("fewer than 50 steps of a kind: let the workers serve more")
    profile = json.load(open(options.profile))
    tiles = [int(t) for t in options.tiles.split(",") if any(s["rows"] >= int(t) for s in decodes)]
    decode_terms = [[1.0, s["rows"], s["row_positions"]] + [float(s["rows"] >= t) for t in tiles] for s in decodes]
    prompt_terms = [[1.0, s["prompt_tokens"], s["prompt_positions"], s["rows"], s["row_positions"],
                     1.0 if s["rows"] > 0 else 0.0] for s in prompts]
    decode_ms = [s["device_ms"] for s in decodes]
    prompt_ms = [s["device_ms"] for s in prompts]
    if options.against:
        more_from = profile["decode_step_ms"].get("more_from_rows", {})
        decode = [profile["decode_step_ms"][k] for k in DECODE] + [more_from.get(str(t), 0) for t in tiles]
        prompt = [profile["prompt_step_ms"].get(k, 0) for k in PROMPT]
        more = profile["prompt_step_ms"].get("back_to_back", 0)
        rest = min(RESTS_MS, key=lambda r: abs(r - profile["prompt_step_ms"].get("rest", 60)))
    else:
        decode = fit(decode_terms, decode_ms, weights_of(decodes))
        prompt, rest, more = fit_prompts(prompts, prompt_terms, prompt_ms)
    decode_predicted = [dot(decode, t) for t in decode_terms]
    prompt_predicted = [f * dot(prompt, t) for t, f in zip(prompt_terms, factors(prompts, rest, more))]
    for few, many in ((1, 7), (8, 31), (32, 63), (64, 127), (128, 4096)):
        of = [(m, p) for s, m, p in zip(decodes, decode_ms, decode_predicted) if few <= s["rows"] <= many]
        if len(of) > 3:
            say(f"no prompt, {few} to {many} rows", *zip(*of))
    say_prompts(prompts, prompt_predicted)
    if options.against:
        return
    off = [m / p for m, p in zip(decode_ms + prompt_ms, decode_predicted + prompt_predicted)]
    profile["about"] = f"fitted to {len(off)} steps; the rest as in {options.profile}"
    profile["decode_step_ms"] = {k: float(f"{v:.4g}") for k, v in zip(DECODE, decode)}
    profile["decode_step_ms"]["more_from_rows"] = {str(t): float(f"{v:.4g}") for t, v in zip(tiles, decode[3:]) if v > 0}
    profile["prompt_step_ms"] = {k: float(f"{v:.4g}") for k, v in zip(PROMPT, prompt)}
    profile["prompt_step_ms"].update(back_to_back=more, rest=rest)
    profile["step_jitter"] = round((quantile(off, 0.84) - quantile(off, 0.16)) / 2, 4)
    print(json.dumps(profile, indent=2))


if __name__ == "__main__":
    main()
