#!/usr/bin/env python3
"""Constrained answers of a real server, before PyPI's jsonschema.

Usage: structured_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
AISP_GENERATIONS: how many answers are drawn (30 in CI; 1000 for the long run).
AISP_GENERATIONS_AT_ONCE, AISP_GENERATION_TOKENS: of them at the same time (16), and each one's max_tokens (300).
AISP_GENERATIONS_FORCED: 1: every second answer shall end within its tokens (force_finish), so that few tokens are enough.
AISP_REAL_SCHEMAS: a folder of real schemas ({schema} a file), of which every third answer takes one (the long run).
"""

import collections
import concurrent.futures
import itertools
import json
import os
import random
import re
import sys
import unittest
import urllib.error
import urllib.request

import jsonschema

from served import Served, metric

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "constrain", "differential"))
from oracle import Oracle
from schemas import SchemaMaker

SERVER = None
REAL = os.environ.get("AISP_REAL_SCHEMAS", "")


def post(body, path="/v1/chat/completions", server=None):
    request = urllib.request.Request(f"http://{(server or SERVER).http}{path}", json.dumps(
        {"model": "story-7m", "messages": [{"role": "user", "content": "A story."}], **body}).encode(),
        {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def random_schema(draw, depth=0):
    """A schema of a few members; every one has a finite instance."""
    kind = draw.choice(["integer", "boolean", "enum", "string", "number"] + ["object", "array"] * (depth < 2))
    if kind == "integer":
        low = draw.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 500)}
    if kind == "number":
        return {"type": "number", "minimum": 0, "exclusiveMaximum": draw.randint(1, 99)}
    if kind == "enum":
        return {"enum": draw.sample(["duck", "fox", None, 3, True, "a \"word\"", 2.5], draw.randint(1, 4))}
    if kind == "string":
        return draw.choice([{"type": "string", "maxLength": draw.randint(1, 12)},
                            {"type": "string", "pattern": "^[a-z]{2,6}( [a-z]{1,5})?$"}])
    if kind == "array":
        return {"type": "array", "items": random_schema(draw, depth + 1), "minItems": draw.randint(0, 2), "maxItems": 3}
    if kind == "object":
        names = draw.sample(["name", "age", "home", "é", "x-y"], draw.randint(1, 4))
        return {"type": "object", "properties": {n: random_schema(draw, depth + 1) for n in names},
                "required": draw.sample(names, draw.randint(0, len(names))), "additionalProperties": False}
    return {"type": "boolean"}


def schemas(draw):
    """Schemas that end soon, any of the differential test's, and real ones, in turn."""
    real = sorted(os.path.join(REAL, n) for n in os.listdir(REAL)) if os.path.isdir(REAL) else []
    while True:
        yield "short", random_schema(draw)
        yield "any", SchemaMaker(draw.randrange(1_000_000)).make()
        if real:
            with open(draw.choice(real), encoding="utf-8") as file:
                yield "real", json.load(file)["schema"]


class Structured(unittest.TestCase):
    def generations(self, server, what):
        """Draws answers under random schemas; every finished one must be valid, and most short ones must finish."""
        draw = random.Random(7)
        drawn, whole, refused = collections.Counter(), collections.Counter(), 0
        count = int(os.environ.get("AISP_GENERATIONS", "30"))
        tokens, at_once = (int(os.environ.get(f"AISP_GENERATION{name}", n)) for name, n in (("_TOKENS", "300"), ("S_AT_ONCE", "16")))

        forced = os.environ.get("AISP_GENERATIONS_FORCED", "0") != "0"

        def ask(seed, kind, schema):
            body = {"temperature": 1.5, "seed": seed, "max_tokens": tokens, "response_format": {
                "type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}
            status, answer = post({**body, "force_finish": forced and seed % 2 == 0}, server=server)
            if status == 400 and answer["error"]["param"] in ("force_finish", "max_tokens"):
                status, answer = post(body, server=server)  # no ending is known, or none that is
                                                            # short enough
            return kind, schema, (status, answer)

        # Sends as many as are still wanted, at most so many at once; refused ones are replaced.
        def answers():
            asked, wanted = itertools.count(1), schemas(draw)
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                while missing := count - sum(drawn.values()):
                    wave = [pool.submit(ask, next(asked), *next(wanted)) for _ in range(min(missing, 4 * at_once))]
                    yield from (answer.result() for answer in wave)

        for kind, schema, (status, answer) in answers():
            if sum(drawn.values()) % 100 == 99:
                print(f"{what}: {dict(drawn)} drawn, {dict(whole)} whole", file=sys.stderr, flush=True)
            if status == 400:  # refused by name; schemas of random_schema never are
                refused += 1
                self.assertRegex(answer["error"]["message"], " at '|compile")
                continue
            self.assertEqual(status, 200, (schema, answer))
            drawn[kind] += 1
            choice = answer["choices"][0]
            if choice["finish_reason"] == "length":
                continue
            whole[kind] += 1
            self.assertTrue(Oracle(schema).valid(choice["message"]["content"]), (schema, choice["message"]["content"]))
        print(f"{what}: of {dict(drawn)} answers {dict(whole)} were whole, all of them valid; {refused} schemas were refused",
              file=sys.stderr)
        self.assertGreater(whole["short"], drawn["short"] // 2)
        self.assertGreater(whole["any"], drawn["any"] // 10)
        self.assertLess(refused, count)

    def test_random_generations_validate(self):
        self.generations(SERVER, "story-7m")

    def test_random_generations_of_random_weights_validate(self):
        """Weights that know no language: nothing but the constraint makes a text end, or be JSON."""
        server = Served(BINARY, "--weights=random:1")
        self.addCleanup(server.stop)
        free = post({"temperature": 1.5, "seed": 1, "max_tokens": 20}, server=server)[1]["choices"][0]["message"]["content"]
        told = post({"temperature": 1.5, "seed": 1, "max_tokens": 20})[1]["choices"][0]["message"]["content"]
        self.assertNotEqual(free, told)
        self.generations(server, "random weights")

    def test_answers_that_shall_end_whole_do_so_within_their_tokens(self):
        draw = random.Random(9)
        bounded = 0
        for i in range(25):
            schema = random_schema(draw)
            body = {"temperature": 1.5, "seed": i + 1, "max_tokens": draw.randint(1, 60), "force_finish": True, "response_format": {
                "type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}
            status, answer = post(body)
            if status == 400:  # no room for the shortest instance: ask for as many tokens as are
                               # needed
                self.assertEqual(answer["error"]["param"], "max_tokens")
                body["max_tokens"] = int(re.search(r"max_tokens of (\d+)", answer["error"]["message"])[1])
                self.assertGreater(body["max_tokens"], 1)
                bounded += 1
                status, answer = post(body)
            self.assertEqual(status, 200, (schema, answer))
            choice = answer["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop", (schema, choice))
            self.assertLessEqual(answer["usage"]["completion_tokens"], body["max_tokens"])
            self.assertTrue(jsonschema.Draft202012Validator(schema).is_valid(json.loads(choice["message"]["content"])), (schema, choice))
        self.assertGreater(bounded, 0)
        for seed in range(1, 6):
            options = {"temperature": 1.5, "seed": seed, "max_tokens": 14}
            text = post({"structured_outputs": {"regex": "[a-z]+(=[0-9]{4})?;", "force_finish": True}, **options})[1]["choices"][0]
            self.assertRegex(text["message"]["content"], re.compile("^[a-z]+(=[0-9]{4})?;$"))
        # The same answer, streamed or not, when there is room enough.
        schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"], "additionalProperties": False}
        body = {"seed": 3, "max_tokens": 200, "guided_json": schema}
        self.assertEqual(post(body)[1]["choices"], post({**body, "force_finish": True})[1]["choices"])
        for refused, param in [({"force_finish": True}, "force_finish"),
                               ({"force_finish": True, "guided_grammar": 'root ::= "a" root | "b"'}, "force_finish")]:
            status, answer = post(refused)
            self.assertEqual((status, answer["error"]["param"]), (400, param))

    def test_pattern_choice_and_object(self):
        text = post({"guided_regex": "\\d{3}-[a-f]{2}", "temperature": 1})[1]["choices"][0]["message"]["content"]
        self.assertRegex(text, re.compile("^\\d{3}-[a-f]{2}$"))
        text = post({"guided_choice": ["yes", "no"]})[1]["choices"][0]
        self.assertIn(text["message"]["content"], ("yes", "no"))
        self.assertEqual(text["finish_reason"], "stop")
        two = post({"structured_outputs": {"choice": ["a b", "c"]}, "n": 2, "logprobs": True, "top_logprobs": 3})[1]
        for choice in two["choices"]:
            self.assertIn(choice["message"]["content"], ("a b", "c"))

    def test_grammars_in_both_notations(self):
        for seed in range(1, 6):
            options = {"temperature": 1.5, "seed": seed, "max_tokens": 60}
            text = post({"guided_grammar": 'root ::= pair ("," pair){1,2}\npair ::= [a-z]{2,4} "=" [0-9]{1,3}', **options})[1]
            self.assertRegex(text["choices"][0]["message"]["content"], "^[a-z]{2,4}=[0-9]{1,3}(,[a-z]{2,4}=[0-9]{1,3}){1,2}$")
            lark = 'start: "(" start ")" | INT "+" INT\n%import common.INT'
            choice = post({"structured_outputs": {"grammar": lark}, **options})[1]["choices"][0]
            if choice["finish_reason"] == "stop":
                self.assertRegex(choice["message"]["content"], "^\\(*[0-9]+\\+[0-9]+\\)*$")
        status, answer = post({"guided_grammar": "root ::= other"})
        self.assertEqual(status, 400)
        self.assertIn("rule 'other'", answer["error"]["message"])

    def test_refusals_name_keyword_and_path(self):
        status, answer = post({"guided_json": {"type": "object", "properties": {"a": {"pattern": "(x)\\1"}}}})
        self.assertEqual(status, 400)
        self.assertIn("pattern at '/properties/a'", answer["error"]["message"])
        status, answer = post({"guided_regex": "("})
        self.assertEqual(status, 400)


REPORT = {"type": "object", "additionalProperties": False, "required": ["temperature_in_celsius", "station_is_reliable", "observed_weather"],
          "properties": {"temperature_in_celsius": {"type": "integer", "minimum": -40, "maximum": 50}, "station_is_reliable": {"type": "boolean"},
                         "observed_weather": {"enum": ["mostly sunny with clouds", "heavy rain and thunder"]}}}
TOOLS = [{"type": "function", "function": {"name": "record_observation", "strict": True, "parameters": REPORT}},
         {"type": "function", "function": {"name": "record_nothing", "strict": True, "parameters": {"type": "object", "additionalProperties": False}}}]


def random_request(draw):
    """A constrained request of any kind, with whatever a draw may depend on."""
    body = {"seed": draw.randint(1, 10**6), "max_tokens": draw.randint(20, 250), "temperature": draw.choice([0, 0.7, 1, 1.5])}
    for name, value in (("top_k", 20), ("top_p", 0.9), ("min_p", 0.05), ("presence_penalty", 0.4), ("frequency_penalty", 0.3),
                        ("repetition_penalty", 1.1), ("n", 2), ("stop", ["rain"]), ("speculation", "off"),
                        ("logit_bias", {"17": 4, "40": -30})):
        if draw.random() < 0.2:
            body[name] = value
    if draw.random() < 0.3:
        body.update(logprobs=True, top_logprobs=2)
    body.update(draw.choice([
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": REPORT}}},
        {"structured_outputs": {"json": REPORT, "disable_any_whitespace": True}},
        {"guided_json": random_schema(draw)},
        {"guided_json": {"type": "array", "items": REPORT, "minItems": 2, "maxItems": 3}, "force_finish": True, "max_tokens": 250},
        {"guided_regex": "(temperature|temporarily closed): [0-9]{1,3} degrees celsius"},
        {"guided_choice": ["the weather is fine", "the weather is bad"]},
        {"guided_grammar": 'root ::= "SELECT " [a-z]{1,3} " FROM measurements WHERE " [a-z]+ " IS NOT NULL"'},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False}},
    ]))
    return body


def said(answer):
    """All of it but what is made up for every answer."""
    for choice in answer.get("choices", []):
        for call in choice["message"].get("tool_calls") or []:
            call["id"] = ""
    return answer.get("choices", answer)


class ForcedRuns(unittest.TestCase):
    def test_no_answer_changes_with_a_proposer_and_without(self):
        template = f"--chat-template={os.path.dirname(os.path.abspath(__file__))}/templates/hermes.jinja"
        suffix = '--speculative-config={"method": "suffix", "num_speculative_tokens": 6}'
        on, off, both = (Served(BINARY, template, *flags) for flags in ((), ("--forced-runs=off",), (suffix,)))
        for server in (on, off, both):
            self.addCleanup(server.stop)
        draw = random.Random(11)
        for _ in range(40):
            body = random_request(draw)
            status, plain = post(body, server=off)
            self.assertEqual(status, 200, (body, plain))
            for server in (on, both):
                status, answer = post(body, server=server)
                self.assertEqual((status, said(answer)), (200, said(plain)), body)
        steps, plain_steps = (metric(server.http, "aisp_steps_total") for server in (on, off))
        print(f"forced runs: {steps:.0f} steps instead of {plain_steps:.0f}", file=sys.stderr)
        self.assertLess(steps, plain_steps)
        self.assertEqual(metric(off.http, "aisp_forced_tokens_total"), 0)
        # Forced tokens are not a proposer's: without one, speculation is not reported; with one,
        # they are counted separately.
        self.assertEqual(metric(on.http, "aisp_spec_decode_num_drafts_total"), 0)
        self.assertGreater(metric(both.http, "aisp_forced_tokens_total"), 0)
        self.assertGreater(metric(both.http, "aisp_spec_decode_num_draft_tokens_total"), 0)

    def test_long_names_cost_few_steps(self):
        body = {"structured_outputs": {"json": REPORT, "disable_any_whitespace": True}, "temperature": 0.7, "max_tokens": 250}
        before = {name: metric(SERVER.http, name) for name in ("aisp_steps_total", "aisp_forced_tokens_total", "aisp_forced_tokens_proposed_total")}
        tokens = 0
        for seed in range(1, 13):
            status, answer = post({**body, "seed": seed})
            self.assertEqual((status, answer["choices"][0]["finish_reason"]), (200, "stop"))
            tokens += answer["usage"]["completion_tokens"]
        steps, forced, proposed = (metric(SERVER.http, name) - value for name, value in before.items())
        print(f"long names: {steps:.0f} steps for {tokens} tokens, {forced:.0f} of {proposed:.0f} forced tokens stood", file=sys.stderr)
        self.assertLess(steps, 0.7 * tokens)
        self.assertGreater(forced, 0.4 * proposed)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    SERVER = Served(BINARY)
    try:
        unittest.main()
    finally:
        SERVER.stop()
