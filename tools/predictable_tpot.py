#!/usr/bin/env python3
"""How well TPOT can be predicted without knowing future arrivals.

Simulates workers that both prefill and decode under Poisson arrivals. A regression learns TPOT from
every worker's queue and batch at the time of placement and is evaluated on another seed. Its error
is an estimate, not a bound, of what future arrivals add to any prediction. Needs numpy and
scikit-learn (PyPI).
"""
import argparse
import random

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor


class Worker:
    """Runs one step after the other: a chunk of the first prompt and a token of each running
    answer."""

    def __init__(self, args):
        self.args, self.now, self.prompts, self.running = args, 0.0, [], []

    def state(self):
        """What a router sees: prompts left, running answers, and answers' worth of tokens left."""
        left = sum(request["left"] for request in self.prompts) / self.args.isl
        tokens = sum(self.args.osl - request["tokens"] for request in self.running)
        return [left, len(self.running), tokens / self.args.osl]

    def advance(self, until, ended):
        while self.now < until and (self.prompts or self.running):
            self.now += (self.args.step_ms + self.args.row_ms * len(self.running)) / 1e3
            if self.prompts:
                chunk = min(self.args.chunk, self.prompts[0]["left"])
                self.now += chunk * self.args.prompt_ms / self.args.isl / 1e3
                self.prompts[0]["left"] -= chunk
            for request in self.running:
                request["tokens"] += 1
            done = [request for request in self.running if request["tokens"] == self.args.osl]
            for request in done:
                ended.append((request["state"], (self.now - request["first"]) / (self.args.osl - 1)))
            self.running = [request for request in self.running if request["tokens"] < self.args.osl]
            if self.prompts and self.prompts[0]["left"] <= 0:
                self.running.append(self.prompts.pop(0) | {"first": self.now, "tokens": 1})


def simulate(args, rate, seed):
    """States at placement (requests x features) and TPOT in seconds (requests)."""
    rng, now, ended = random.Random(seed), 0.0, []
    workers = [Worker(args) for _ in range(args.workers)]
    for _ in range(args.requests):
        now += rng.expovariate(rate)
        for worker in workers:
            worker.advance(now, ended)
        workers.sort(key=lambda worker: worker.state())
        chosen = workers[0]
        chosen.now = max(chosen.now, now)
        state = [value for worker in workers for value in worker.state()]
        chosen.prompts.append({"left": args.isl, "state": state})
    for worker in workers:
        worker.advance(float("inf"), ended)
    return np.array([state for state, _ in ended]), np.array([tpot for _, tpot in ended])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isl", type=int, default=6000, help="prompt tokens")
    parser.add_argument("--osl", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rates", default="6,8,10", help="requests a second")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--chunk", type=int, default=2048, help="prompt tokens a step")
    parser.add_argument("--prompt-ms", type=float, default=98, help="what a whole prompt takes")
    parser.add_argument("--step-ms", type=float, default=3.0, help="a decode step without rows")
    parser.add_argument("--row-ms", type=float, default=0.03, help="what each running answer adds")
    args = parser.parse_args()
    for rate in map(float, args.rates.split(",")):
        states, tpot = simulate(args, rate, 1)
        model = HistGradientBoostingRegressor(loss="absolute_error").fit(states, tpot)
        states, tpot = simulate(args, rate, 2)
        error = abs(model.predict(states) - tpot) / tpot
        print(f"{rate:g}/s: mean TPOT {1e3 * tpot.mean():.1f} ms, error p50 {np.median(error):.1%}, "
              f"p90 {np.quantile(error, 0.9):.1%}")


if __name__ == "__main__":
    main()
