#!/usr/bin/env python3
"""Prints the C++ and CUDA files whose code differs from that of a commit, one a line.

A file that differs in its comments alone compiles as before and has the same findings, so nobody has
to compile or lint it again. Comments that steer a tool (NOLINT, clang-format off) count as code.

Usage: tools/changed_code.py BASE PATTERN... [--jobs N]     PATTERN as of git, such as '*.cc'
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
STEERING = re.compile(rb"NOLINT[A-Z]*(?:\([^)]*\))?|clang-format (?:on|off)")


def code(text):
    """The source without comments and layout, and the comments that steer tools."""
    stripped = subprocess.run(["g++", "-fpreprocessed", "-dD", "-E", "-P", "-x", "c++", "-"], input=text,
                              capture_output=True, check=True).stdout
    return stripped, STEERING.findall(text)


def changed(base, path):
    """Whether the code at `path`, relative to the root, differs from that of the commit."""
    before = subprocess.run(["git", "show", f"{base}:{path}"], cwd=ROOT, capture_output=True, check=False)
    if before.returncode != 0:
        return True  # a new file
    with open(os.path.join(ROOT, path), "rb") as file:
        after = file.read()
    try:
        return code(before.stdout) != code(after)
    except (OSError, subprocess.CalledProcessError):
        return True  # no compiler, or what it cannot read


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("patterns", nargs="+")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    listed = subprocess.run(["git", "diff", "--name-only", "--diff-filter=d", options.base, "--", *options.patterns],
                            cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [path for path in listed if path]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for path, differs in zip(paths, pool.map(lambda path: changed(options.base, path), paths)):
            if differs:
                print(path)


if __name__ == "__main__":
    sys.exit(main())
