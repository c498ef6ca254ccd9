#!/usr/bin/env python3
"""Constraints survive what befalls a request: a constrained answer under preemption, prefill elsewhere and the death of its worker is
the answer of an undisturbed server, and valid before PyPI's jsonschema.

Usage: constrained_faults_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import concurrent.futures
import json
import os
import signal
import sys
import unittest
import urllib.request

import jsonschema

from served import House, Served, metric

BINARY = None
# Long enough for a fault to hit it; strings are limited in length, because the small model ends few
# of them itself.
SCHEMA = {"type": "array", "minItems": 6, "maxItems": 7, "items": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
                                     "kind": {"enum": ["duck", "fox", None]}},
    "required": ["name", "age", "kind"], "additionalProperties": False}}

PROMPT = "Tell me a story about a duck, a fox and a lantern. " * 16  # long enough to be prefilled
                                                                     # remotely


def body(seed, **more):
    if seed % 2 == 0:  # cut short, but still complete
        more = {"max_tokens": 220, "force_finish": True, **more}
    return json.dumps({
        "model": "story-7m", "messages": [{"role": "user", "content": PROMPT}], "temperature": 1, "seed": seed,
        "max_tokens": 500, "structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}, **more}).encode()


def ask(http, seed, headers=None, **more):
    request = urllib.request.Request(f"http://{http}/v1/chat/completions", body(seed, **more), {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request) as answer:
        return answer.headers, json.loads(answer.read())["choices"][0]


class ConstrainedFaults(unittest.TestCase):
    SEEDS = range(1, 5)

    @classmethod
    def setUpClass(cls):
        server = Served(BINARY)
        cls.addClassCleanup(server.stop)
        cls.undisturbed = {}
        for seed in cls.SEEDS:
            choice = ask(server.http, seed)[1]
            cls.undisturbed[seed] = choice["message"]["content"]
            assert choice["finish_reason"] == "stop", choice
        # The even ones would have been longer.
        assert cls.undisturbed[2] != ask(server.http, 2, max_tokens=500)[1]["message"]["content"]

    def check(self, seed, text):
        self.assertEqual(text, self.undisturbed[seed])
        jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(text))

    def test_under_preemption(self):
        server = Served(BINARY, "--kv-blocks=48", "--block-size=16")
        self.addCleanup(server.stop)
        with concurrent.futures.ThreadPoolExecutor(len(self.SEEDS)) as pool:
            answers = list(pool.map(lambda seed: ask(server.http, seed)[1], self.SEEDS))
        self.assertGreater(metric(server.http, "aisp_num_preemptions_total"), 0)
        for seed, choice in zip(self.SEEDS, answers, strict=True):
            self.check(seed, choice["message"]["content"])

    def test_prefilled_elsewhere(self):
        house = House(BINARY, "--prefill=1", "--decode=1")
        self.addCleanup(house.stop)
        # The first request with its prompt: later ones find it cached on their decode worker.
        headers, choice = ask(house.http, 1, headers={"x-aisp-prefill": "remote"})
        self.assertIn("prefill=prefill-0", headers["x-aisp-route"])
        self.check(1, choice["message"]["content"])

    def test_taken_over_when_its_worker_dies(self):
        for seed in (1, 2):
            with self.subTest(seed=seed):
                self.take_over(seed)

    def take_over(self, seed):
        house = House(BINARY, "--prefill=0", "--decode=2")
        self.addCleanup(house.stop)
        # Asked before, so that the kill follows the event at once.
        with urllib.request.urlopen(f"http://{house.admin}/admin/workers") as answer:
            pids = {worker["id"]: worker["pid"] for worker in json.loads(answer.read())["workers"]}
        request = urllib.request.Request(f"http://{house.http}/v1/chat/completions", body(seed, stream=True), {"content-type": "application/json"})
        text, events = "", 0
        with urllib.request.urlopen(request) as answer:
            worker = answer.headers["x-aisp-route"].split("decode=")[1].split()[0]
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                events += 1
                if events == 5:
                    os.kill(pids[worker], signal.SIGKILL)
        self.check(seed, text)
        self.assertGreater(metric(house.http, "aisp_takeovers_total"), 0)

    def test_with_proposed_tokens(self):
        server = Served(BINARY, "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
        self.addCleanup(server.stop)
        for seed in self.SEEDS:
            self.check(seed, ask(server.http, seed)[1]["message"]["content"])


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
