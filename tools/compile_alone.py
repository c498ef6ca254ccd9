#!/usr/bin/env python3
"""Compiles files by themselves, without generating code: in CI's unity builds a source may compile
only thanks to another one's #include.

Reads the names of changed files (.cc and .h) from standard input. Each is parsed with its own
compile command; a header is parsed as a source, with the command of a source of its folder. Then
follow the sources that include a changed header directly: a header that lost an #include breaks
those. Of these at most --includers are parsed, different ones at each commit.

Usage: tools/compile_alone.py BUILD [--jobs N] [--includers N] < files
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import zlib

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def commands(build):
    """{source, relative to the root: (folder to run in, arguments for parsing only)}."""
    known = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
            words = shlex.split(entry["command"])
            if os.path.basename(words[0]) == "ccache":
                words = words[1:]
            at = words.index("-o")
            words = [word for word in words[:at] + words[at + 2:] if word not in ("-c", entry["file"])]
            known.setdefault(path, (entry["directory"], words))
    return known


def stand_in(header, known):
    """The command of a source in the header's folder, or else of its tests. None for a part of a
    source, which has no include guard."""
    with open(os.path.join(ROOT, header), encoding="utf-8") as file:
        if "#pragma once" not in file.read():
            return None
    folder = os.path.dirname(header)
    for beside in (folder, os.path.join("tests", folder)):
        for path in sorted(known):
            if os.path.dirname(path) == beside and path.endswith(".cc"):
                return known[path]
    return None


def needs_cuda(header, seen=None):
    """Whether the header uses CUDA, directly or not: this build has no path to CUDA's headers. The
    CUDA build compiles its sources one by one."""
    seen = set() if seen is None else seen
    seen.add(header)
    try:
        with open(os.path.join(ROOT, header), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return False  # generated
    if header.endswith(".cuh") or re.search(r"^\s*#\s*include\s+<(cuda|cublas|mma)|\b__(device|global|host)__\b", text, re.M):
        return True
    return any(needs_cuda(other, seen) for other in INCLUDE.findall(text) if other not in seen)


def check(path, command):
    """The compiler's errors for the file; empty if there are none."""
    directory, words = command
    as_source = ["-x", "c++", "-Wno-pragma-once-outside-header"] if path.endswith(".h") else []
    if as_source and "clang" not in os.path.basename(words[0]):
        as_source = as_source[:2] + ["-w"]  # g++ has no name for the warning of a #pragma once in a main file
    done = subprocess.run(words + ["-fsyntax-only", *as_source, os.path.join(ROOT, path)], cwd=directory,
                          capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr or f"{path}: the compiler ended with {done.returncode}"


def includers(headers, known, skip, most):
    """Sources that include one of the headers directly and are not in `skip`."""
    found = []
    for path in known:
        if path in skip or not path.endswith(".cc") or path.startswith(".."):
            continue
        try:
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                if headers & set(INCLUDE.findall(file.read())):
                    found.append(path)
        except OSError:
            pass  # generated later
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found.sort(key=lambda path: zlib.crc32((path + head).encode()))
    return found[:most], len(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--includers", type=int, default=0)
    args = parser.parse_args()
    known = commands(args.build)
    changed = [line.strip() for line in sys.stdin if line.strip().endswith((".cc", ".h"))]
    headers = {path for path in changed if path.endswith(".h")}
    work = {path: known[path] for path in changed if path in known}
    work.update((path, command) for path in headers
                if not needs_cuda(path) and (command := stand_in(path, known)))
    picked, of = includers(headers, known, set(changed), args.includers)
    work.update((path, known[path]) for path in picked)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for path, text in zip(work, pool.map(lambda item: check(*item), work.items())):
            if text:
                failed += 1
                print(f"{path} does not compile by itself:\n{text}")
    print(f"{len(work) - failed} of {len(work)} files compile by themselves; of {of} sources that include a changed header, {len(picked)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
