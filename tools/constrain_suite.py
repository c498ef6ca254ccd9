#!/usr/bin/env python3
"""Runs `aisp constrain` on folders of JSON Schemas with instances; reports what is enforced, and how correctly.

Two kinds of files: {schema, tests: [{valid, data}]} (one schema per file) and the lists of such
objects of the JSON-Schema-Test-Suite. Every instance is written by json.dumps and judged token by
token. A schema passes when it is enforced and every instance is judged as its file says; a schema
that is refused for a keyword counts as refused, never as passed.

Exit code 1 when an invalid instance was accepted, a valid one refused, or --min-enforced was
missed.
"""

import argparse
import collections
import json
import os
import subprocess
import sys

KEYWORDS = set("""$ref $dynamicRef $recursiveRef $anchor $id $defs definitions type enum const properties required
additionalProperties patternProperties propertyNames minProperties maxProperties dependencies dependentRequired
dependentSchemas unevaluatedProperties items prefixItems additionalItems contains minContains maxContains minItems maxItems
uniqueItems unevaluatedItems minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format
anyOf oneOf allOf not if""".split())


def find_files(paths):
    for path in paths:
        if os.path.isfile(path):
            yield path
            continue
        for folder, _, names in sorted(os.walk(path)):
            if "remotes" in folder.split(os.sep):
                continue
            for name in sorted(names):
                if name.endswith(".json"):
                    yield os.path.join(folder, name)


def load_cases(path):
    """(name, schema, [(description, text, valid)], annotate) of every schema in the file."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    draft = "draft7" if f"{os.sep}draft7{os.sep}" in path else None
    # In the required tests `format` is an annotation; in those under optional/format it is
    # asserted.
    annotate = os.path.basename(path) == "format.json" and "optional" not in path.split(os.sep)
    for number, group in enumerate(content if isinstance(content, list) else [content]):
        schema = group["schema"]
        if draft == "draft7" and isinstance(schema, dict) and "$schema" not in schema:
            schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        tests = [(t.get("description", ""), json.dumps(t["data"]), t["valid"]) for t in group["tests"]]
        yield f"{path}#{number}" if isinstance(content, list) else path, schema, tests, annotate


def run(aisp, cases, model, extra):
    """The verdicts of `aisp constrain --cases`, in order."""
    command = [aisp, "constrain", "--cases", "-", *extra]
    if model:
        command += ["--model", model]
    lines = "".join(json.dumps({"schema": schema, "instances": [t[1] for t in tests]}) + "\n"
                    for _, schema, tests, _ in cases)
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=False)
    out = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode != 0 or len(out) != len(cases):
        at = cases[len(out)][0] if len(out) < len(cases) else "the end"
        sys.exit(f"aisp constrain ended with {done.returncode} at {at}")
    return out


def keywords_of(schema, found):
    if isinstance(schema, dict):
        found.update(KEYWORDS & schema.keys())
        for value in schema.values():
            keywords_of(value, found)
    elif isinstance(schema, list):
        for value in schema:
            keywords_of(value, found)
    return found


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


class Tally:
    def __init__(self):
        self.schemas = self.enforced = self.passed = 0
        self.tests = self.right = self.accepted = self.refused = self.disagreed = 0
        self.reasons = collections.Counter()
        self.by_keyword = collections.defaultdict(lambda: [0, 0])
        self.wrong, self.mask_us, self.compile_us, self.compile_cpu = [], [], [], []

    def add(self, case, verdict):
        name, schema, tests, _ = case
        self.schemas += 1
        enforced = verdict["status"] == "enforced"
        for keyword in keywords_of(schema, set()):
            self.by_keyword[keyword][0] += 1
            self.by_keyword[keyword][1] += enforced
        self.compile_us.append(verdict["compile_us"])
        self.compile_cpu.append((verdict["compile_cpu_us"], name))
        if not enforced:
            for refusal in verdict["refused"] or [{"keyword": "", "reason": verdict.get("error", "")}]:
                self.reasons[f"{refusal['keyword']}: {refusal['reason']}"[:110]] += 1
            return
        self.enforced += 1
        good = True
        for (description, text, valid), instance in zip(tests, verdict["instances"]):
            self.tests += 1
            self.mask_us += instance["mask_us"]
            self.disagreed += instance.get("disagreed", False)
            allowed = instance["status"] == "allowed"
            if instance.get("disagreed"):
                self.wrong.append(f"{name}: mask and matcher disagree at byte {instance['byte']}: {text[:160]}")
            if allowed == valid:
                self.right += 1
                continue
            good = False
            self.accepted += allowed
            self.refused += not allowed
            what = "invalid accepted" if allowed else f"valid refused at byte {instance['byte']}"
            self.wrong.append(f"{name}: {what}: {description}: {text[:160]}")
        self.passed += good

    def report(self, arguments):
        share = 100.0 * self.enforced / max(1, self.schemas)
        print(f"schemas {self.schemas}, enforced {self.enforced} ({share:.1f} %), passed {self.passed} "
              f"({100.0 * self.passed / max(1, self.schemas):.1f} %)")
        print(f"instances of enforced schemas {self.tests}: right {self.right}, invalid accepted {self.accepted}, "
              f"valid refused {self.refused}, mask and matcher disagreed {self.disagreed}")
        print(f"compile us p50 {percentile(self.compile_us, .5):.0f} p99 {percentile(self.compile_us, .99):.0f} "
              f"max {max(self.compile_us, default=0):.0f}; mask us p50 {percentile(self.mask_us, .5):.1f} "
              f"p99 {percentile(self.mask_us, .99):.1f} max {max(self.mask_us, default=0):.0f} "
              f"({len(self.mask_us)} masks)")
        cpu = [us for us, _ in self.compile_cpu]
        print(f"compile CPU us p50 {percentile(cpu, .5):.0f} p99 {percentile(cpu, .99):.0f} max {max(cpu, default=0):.0f}")
        for us, name in sorted(self.compile_cpu, reverse=True)[:arguments.slowest]:
            print(f"slow {us:8.0f} us  {name}")
        for line in self.wrong[:arguments.show]:
            print("WRONG", line)
        if arguments.keywords:
            print("keyword: enforced / schemas that have it")
            for keyword, (total, enforced) in sorted(self.by_keyword.items()):
                print(f"  {keyword:24} {enforced:5} / {total}")
        for reason, count in self.reasons.most_common(arguments.show):
            print(f"refused {count:4}  {reason}")
        return self.accepted + self.refused + self.disagreed == 0 and share >= arguments.min_enforced


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--aisp", default=os.path.join(os.path.dirname(__file__), "..", "build", "bin", "aisp"))
    parser.add_argument("--model", help="folder of the tokenizer; without it every byte is a token")
    parser.add_argument("--min-enforced", type=float, default=0.0, help="percent of schemas")
    parser.add_argument("--show", type=int, default=40, help="lines of errors and of refusals")
    parser.add_argument("--slowest", type=int, default=0, help="lines of the schemas that compiled longest, by CPU time")
    parser.add_argument("--no-keywords", dest="keywords", action="store_false")
    arguments = parser.parse_args()
    tally = Tally()
    cases = [case for path in find_files(arguments.paths) for case in load_cases(path)]
    if not cases:
        sys.exit("no schemas found")
    for annotate in (False, True):
        chosen = [case for case in cases if case[3] == annotate]
        if chosen:
            extra = ["--format", "annotate"] if annotate else []
            for case, verdict in zip(chosen, run(arguments.aisp, chosen, arguments.model, extra)):
                tally.add(case, verdict)
    sys.exit(0 if tally.report(arguments) else 1)


if __name__ == "__main__":
    main()
