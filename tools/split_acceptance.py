#!/usr/bin/env python3
"""Measures draft acceptance in one process and with separate prefill and decode workers.

Each prompt is sent twice: the second time its KV is found in the prefix cache.

Usage: tools/split_acceptance.py BIN [--models models] [--method eagle3] [--device cuda:0] [--dtype f32]
                                 [--requests 16] [--tokens 40]

Prints one line per run: accepted of drafted tokens, the first time and the second. Texts that
differ between the two runs are counted. Exit code 1 when a request failed, or when a text differed
in f32.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.request

ARGS = argparse.ArgumentParser(description=__doc__.splitlines()[0])
ARGS.add_argument("binary")
ARGS.add_argument("--models", default="models")
ARGS.add_argument("--method", default="eagle3")
ARGS.add_argument("--device", default="cpu")
ARGS.add_argument("--dtype", default="f32")
ARGS.add_argument("--requests", type=int, default=16)
ARGS.add_argument("--tokens", type=int, default=40)


def bodies(args):
    """Request bodies: the beginning of a story after zero to three others, so that prompts begin
    differently."""
    with open(os.path.join(args.models, "eval.jsonl"), encoding="utf-8") as lines:
        stories = [json.loads(line)["story"] for line in lines]
    for i in range(args.requests):
        before = [stories[(i + 16 + each * 7) % len(stories)] for each in range(i % 4)]
        story = stories[i % len(stories)]
        yield {"prompt": "".join(text + "\n\n" for text in before) + story[: len(story) // 3], "max_tokens": args.tokens,
               "temperature": 0.8 * (i % 2), "seed": i, "ignore_eos": True}


def ask(url, body, remote):
    headers = {"content-type": "application/json", **({"x-aisp-prefill": "remote"} if remote else {})}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        said = json.load(answer)
    drafts = said["usage"]["aisp"].get("speculation") or {}
    return said["choices"][0]["text"], drafts.get("drafted", 0), drafts.get("accepted", 0)


def run(args, remote):
    """The texts, and (drafted, accepted) of the first time and the second."""
    config = {"method": args.method, "adaptive": False, "num_speculative_tokens": 4}
    if args.method in ("eagle3", "medusa", "mtp"):
        config["model"] = "story-7m-" + args.method
    command = ["up", "--prefill=1", "--decode=1"] if remote else ["serve", "--role=all"]
    read, write = os.pipe()
    server = subprocess.Popen(
        [args.binary, *command, f"--model={args.models}/story-7m", f"--device={args.device}", f"--dtype={args.dtype}", "--port=0",
         "--log-level=error", f"--speculative-config={json.dumps(config)}", f"--announce-fd={write}"], pass_fds=[write], stdout=subprocess.DEVNULL)
    os.close(write)
    try:
        said = {}
        with os.fdopen(read) as lines:
            for line in lines:
                key, _, value = line.strip().partition("=")
                said[key] = value
                if "http" in said and (remote or "ready" in said):
                    break
        texts, counts = [], []
        for _ in range(2):
            answers = [ask("http://" + said["http"], body, remote) for body in bodies(args)]
            texts += [text for text, _, _ in answers]
            counts.append((sum(d for _, d, _ in answers), sum(a for _, _, a in answers)))
        return texts, counts
    finally:
        server.terminate()
        server.wait()


def main():
    args = ARGS.parse_args()
    runs = {}
    for name, remote in (("one process", False), ("split", True)):
        runs[name] = texts, counts = run(args, remote)
        shares = ", ".join(f"{when} {a} of {d} ({a / max(1, d):.4f})" for when, (d, a) in zip(("first", "again"), counts))
        print(f"{args.method} {args.dtype} {args.device}, {name}: {shares}", flush=True)
    different = sum(a != b for a, b in zip(runs["one process"][0], runs["split"][0]))
    print(f"texts that differ: {different} of {len(runs['split'][0])}")
    return 1 if different and args.dtype == "f32" else 0


if __name__ == "__main__":
    sys.exit(main())
