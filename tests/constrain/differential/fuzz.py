#!/usr/bin/env python3
"""Random schemas and instances through `aisp constrain`, judged by an independent validator.

With --corpus, the schemas are a folder's ({schema, tests: [{data}]} a file), the instances its own with places changed, and formats
are annotations.

Usage: fuzz.py AISP [--corpus FOLDER] [--schemas N] [--seed N] [--samples N] [--show N] [--whitespace W] [--model FOLDER]. Every instance is written in several
spellings. An invalid one must be refused in each; a valid one must be allowed wherever its numbers are written as json.dumps does.
Texts that are drawn from the masks must be valid. Exit code 1: something disagreed; 77: the package jsonschema is not installed.
"""

import argparse
import collections
import json
import os
import random
import re
import subprocess
import sys

from schemas import InstanceMaker, SchemaMaker
from spelling import Spelling

try:
    from oracle import Oracle
except ImportError:
    print("skipped: the Python package jsonschema is not installed")
    sys.exit(77)


def instances(schema, seed, oracle, known=()):
    """(text, valid, must): `must` be allowed if valid."""
    maker, r = InstanceMaker(schema, seed), random.Random(seed + 1)
    found = {True: [], False: []}
    for _ in range(24):
        value = r.choice(known) if known else maker.make(schema)
        for candidate in (value, maker.mutated(value)):
            text = json.dumps(candidate)
            valid = oracle.valid(text)
            if len(found[valid]) < 4 and text not in found[valid]:
                found[valid].append(text)
    out = []
    for valid, texts in found.items():
        for text in texts:
            # Whole numbers with an exponent have one digit before it, which json.dumps does not
            # write. Numbers of more than 37 digits have no spelling under a bound.
            usual = re.search("[0-9]\\.[0-9]+e\\+|[0-9]{38}", text) is None
            out.append((text, valid, usual))
            value = json.loads(text)
            for plain in (True, False):
                other = Spelling(r, plain).write(value)
                out.append((other, oracle.valid(other), plain and usual))
    return out


def goes_around(schema, follow, inside=()):
    """Whether some reference leads back to itself without a value between: the library would follow it for ever."""
    if not isinstance(schema, dict):
        return False
    if id(schema) in inside:
        return True
    inside = (*inside, id(schema))
    below = [schema[k] for k in ("not", "if", "then", "else") if k in schema]
    for keyword in ("allOf", "anyOf", "oneOf"):
        below += schema.get(keyword, [])
    for keyword in ("dependentSchemas", "dependencies"):
        below += schema.get(keyword, {}).values()
    if "$ref" in schema:
        below.append(follow(schema["$ref"]))
    return any(goes_around(s, follow, inside) for s in below)


def cases_of(seeds):
    for seed in seeds:
        schema = SchemaMaker(seed).make()
        follow = InstanceMaker(schema, 0).follow
        definitions = {**schema.get("$defs", {}), **schema.get("definitions", {})}.values()
        if any(goes_around(s, follow) for s in (schema, *definitions)):
            continue
        try:
            oracle = Oracle(schema)
            yield seed, schema, oracle, instances(schema, seed, oracle)
        except TypeError:  # errors inside the library
            continue


# Seeds beyond the number of files start again with the first file.
def cases_of_corpus(folder, seeds):
    names = sorted(n for n in os.listdir(folder) if n.endswith(".json"))
    for seed in seeds:
        with open(os.path.join(folder, names[seed % len(names)]), encoding="utf-8") as file:
            content = json.load(file)
        schema, known = content["schema"], [t["data"] for t in content["tests"]]
        try:
            oracle = Oracle(schema, formats=False)
            yield f"{seed} ({names[seed % len(names)]})", schema, oracle, instances(schema, seed, oracle, known)
        except Exception as error:  # errors of any kind inside the library
            print(f"skipped {names[seed % len(names)]}: {type(error).__name__}: {str(error)[:100]}")


def nesting(value):
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(nesting, below), default=0)


class Tally:
    def __init__(self):
        self.counts = collections.Counter()
        self.reasons = collections.Counter()
        self.slow = []

    def add(self, case, verdict, show):
        seed, schema, oracle, texts = case
        self.counts["schemas"] += 1
        self.slow.append((verdict["compile_cpu_us"], seed))
        if verdict["status"] != "enforced":
            self.counts["refused"] += 1
            for refusal in verdict["refused"] or [{"keyword": "", "reason": verdict["error"]}]:
                self.reasons[f"{refusal['keyword']}: {refusal['reason']}"[:100]] += 1
            none_fits = any("no value fits" in r["reason"] for r in verdict["refused"])
            if none_fits and any(v for _, v, _ in texts):
                self.wrong(seed, schema, "said to have no values", next(t for t, v, _ in texts if v), show)
            return
        for (text, valid, must), judged in zip(texts, verdict["instances"], strict=True):
            allowed = judged["status"] == "allowed"
            self.counts["valid" if valid else "invalid"] += 1
            if judged.get("disagreed"):
                self.wrong(seed, schema, "mask and matcher disagree", text, show)
            if allowed and not valid:
                self.wrong(seed, schema, "invalid accepted", text, show)
            if valid and must and not allowed:
                self.wrong(seed, schema, f"valid refused at byte {judged['byte']}", text, show)
        for sample in verdict.get("samples", []):
            if "dead_end" in sample:
                self.wrong(seed, schema, "dead end", sample["text"], show)
            # The library's time doubles with each level where schemas refer to themselves.
            if sample["whole"] and nesting(json.loads(sample["text"])) <= 8:
                self.counts["drawn"] += 1
                if not oracle.valid(sample["text"]):
                    self.wrong(seed, schema, "invalid drawn", sample["text"], show)

    def wrong(self, seed, schema, what, text, show):
        self.counts["wrong"] += 1
        if self.counts["wrong"] <= show:
            print(f"WRONG seed {seed}: {what}: {text}\n    {json.dumps(schema)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("aisp")
    parser.add_argument("--corpus")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--whitespace", default="flexible")
    parser.add_argument("--model", help="folder of a tokenizer; without it every byte is a token")
    arguments = parser.parse_args()
    tally = Tally()
    for begin in range(arguments.seed, arguments.seed + arguments.schemas, 100):
        seeds = range(begin, min(begin + 100, arguments.seed + arguments.schemas))
        batch = list(cases_of_corpus(arguments.corpus, seeds) if arguments.corpus else cases_of(seeds))
        lines = "".join(json.dumps({"schema": c[1], "instances": [t for t, _, _ in c[3]]}) + "\n" for c in batch)
        command = [arguments.aisp, "constrain", "--cases", "-", "--sample", str(arguments.samples), "--seed", str(begin),
                   "--whitespace", arguments.whitespace, "--format", "annotate" if arguments.corpus else "assert"] + (["--model", arguments.model] if arguments.model else [])
        done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=False)
        out = done.stdout.split("\n")[:-1]
        if done.returncode != 0 or len(out) != len(batch):
            print(f"aisp constrain ended with {done.returncode} at seed {batch[min(len(out), len(batch) - 1)][0]}")
            return 1
        for case, line in zip(batch, out):
            tally.add(case, json.loads(line), arguments.show)
        print(f"to seed {batch[-1][0]}: {dict(tally.counts)}", flush=True)
    print(dict(tally.counts))
    for reason, count in tally.reasons.most_common(20):
        print(f"refused {count:5}  {reason}")
    print("slowest compiles, CPU us and seed:", [(round(us), seed) for us, seed in sorted(tally.slow, reverse=True)[:5]])
    return 1 if tally.counts["wrong"] or tally.counts["valid"] < arguments.schemas or tally.counts["drawn"] < arguments.schemas else 0


if __name__ == "__main__":
    sys.exit(main())
