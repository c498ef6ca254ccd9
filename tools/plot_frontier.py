#!/usr/bin/env python3
"""Plots goodput against request rate for several runs of `aisp-loadgen --sweep-rates`.

Usage: plot_frontier.py OUT.svg "NAME=FILE" ...    (needs matplotlib)
"""

import pathlib
import re
import sys

ROW = re.compile(r"^ +(\d+\.\d\d) +\d+ +\d+ +(\d+\.\d)% +(\d+\.\d+)")  # rate, done, failed, good, good/s


def points(path):
    """(rate, good requests a second) of each row in the table at the end of a sweep."""
    found = {}
    for line in pathlib.Path(path).read_text().splitlines():
        if row := ROW.match(line):
            found[float(row[1])] = float(row[3])
    if not found:
        sys.exit(f"{path}: no table of a sweep")
    return sorted(found.items())


def main():
    if len(sys.argv) < 3 or not all("=" in arm for arm in sys.argv[2:]):
        sys.exit(__doc__)
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "frontier"  # the same figures give the same file
    import matplotlib.pyplot as plt

    plt.figure(figsize=(6.4, 3.6))
    for arm in sys.argv[2:]:
        name, path = arm.split("=", 1)
        plt.plot(*zip(*points(path)), marker="o", label=name)
    plt.xlabel("requests a second that come")
    plt.ylabel("of them in time")
    plt.ylim(bottom=0)
    plt.grid(alpha=0.3)
    plt.legend()
    plt.tight_layout()
    plt.savefig(sys.argv[1], metadata={"Date": None})


if __name__ == "__main__":
    main()
