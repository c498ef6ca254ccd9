#!/usr/bin/env python3
"""What the documents name exists: files behind links, metrics in docs/metrics.md, settings in docs/config.md, make targets.

Usage: docs_test.py          (run by CTest)
"""

import glob
import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SECTIONS = "model|http|router|worker|engine|trace|log|up|cluster"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


# Settings that limit something.
BOUNDS = r"[.](max|min)_|_limit$|timeout|_patience$|_per_key$|\.(host_memory|disk_bytes|buffer|lease)$"
UNITS = {"ms": 0.001, "s": 1, "min": 60, "m": 60, "h": 3600, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "": 1}


def quantities(text):
    """All numbers in it, in seconds or bytes where they have a unit."""
    return {float(number.replace(",", "")) * UNITS[unit]
            for number, unit in re.findall(r"\b(\d[\d,]*) ?(ms|s|min|m|h|KiB|MiB|GiB|)(?![A-Za-z])", text)}


def documents():
    found = glob.glob("*.md", root_dir=ROOT) + [path for folder in ("docs", "deploy", "models") for path in
                                                glob.glob(f"{folder}/**/*.md", root_dir=ROOT, recursive=True)]
    return {path: read(path) for path in found}


class Docs(unittest.TestCase):
    def setUp(self):
        self.documents = documents()
        self.assertGreater(len(self.documents), 20)

    def check(self, pattern, known):
        """Every match of `pattern` is known; how many there were."""
        seen = 0
        for path, text in self.documents.items():
            for name in sorted(set(re.findall(pattern, text))):
                with self.subTest(f"{path}: {name}"):
                    self.assertTrue(known(path, name), f"{path} names {name}, which does not exist")
                seen += 1
        return seen

    def test_links_lead_somewhere(self):
        there = lambda path, link: os.path.exists(os.path.join(ROOT, os.path.dirname(path), link))
        self.assertGreater(self.check(r"\]\((?![a-z]+:)([^)#\s]+)(?:#[^)]*)?\)", there), 40)

    def test_metrics_are_those_of_the_metrics_page(self):
        metrics = set(re.findall(r"\baisp_[a-z_]+", self.documents["docs/metrics.md"]))
        build = "".join(read(path) for path in glob.glob("**/CMakeLists.txt", root_dir=ROOT, recursive=True))
        # A prefix with a trailing underscore stands for several metrics; names from the build are
        # no metrics.
        known = lambda path, name: name in metrics or name.endswith("_") or re.search(rf"\b{name}\b", build)
        self.assertGreater(self.check(r"`(aisp_[a-z_]+)", known), 100)

    def test_metrics_that_the_e2e_tests_read_are_those_of_the_metrics_page(self):
        """There, a metric that does not exist reads as 0."""
        metrics = set(re.findall(r"\baisp_[a-z_]+", self.documents["docs/metrics.md"]))
        self.documents = {path: read(path) for path in glob.glob("tests/e2e/*.*", root_dir=ROOT)}
        known = lambda path, name: name in metrics or re.sub("_(bucket|sum|count)$", "", name) in metrics
        self.assertGreater(self.check(r"[\"'](aisp_[a-z_]+)", known), 50)

    def test_settings_are_those_of_the_settings_page(self):
        settings = set(re.findall(r"^\| `([a-z0-9_.]+)`", self.documents["docs/config.md"], re.M))
        self.assertGreater(len(settings), 80)
        self.assertGreater(self.check(rf"`((?:{SECTIONS})\.[a-z_0-9]+)`", lambda path, name: name in settings or name.endswith((".proto", ".h"))), 100)

    def test_limits_table_has_every_bound_with_its_default(self):
        rows = re.findall(r"^\|.*\|$", self.documents["docs/security.md"].split("\n## Limits")[1], re.M)
        bounds = 0
        for name, default in re.findall(r"^\| `([a-z0-9_.]+)` \|[^|]*\| `([^`]*)` \|", self.documents["docs/config.md"], re.M):
            if not re.search(BOUNDS, name):
                continue
            bounds += 1
            with self.subTest(name):
                named = [row for row in rows if f"`{name}`" in row]
                self.assertTrue(named, f"docs/security.md has no line for {name} in its limits")
                wanted = quantities(default)
                # For 0 and "" the page describes the effect in words.
                if wanted and wanted != {0}:
                    self.assertTrue(any(wanted <= quantities(row) for row in named), f"the default of {name} is {default}: {named}")
        self.assertGreater(bounds, 30)

    def test_make_targets_are_in_the_makefile(self):
        targets = re.findall(r"^([a-z0-9%-]+):", read("Makefile"), re.M)
        there = lambda path, name: any(re.fullmatch(target.replace("%", "[0-9]+"), name) for target in targets)
        self.assertGreater(self.check(r"`make ([a-z0-9-]+)", there), 10)

    def test_make_help_runs_and_names_targets(self):
        told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.documents = {"make help": "\n".join(f"`{line}" for line in told.stdout.splitlines())}
        self.test_make_targets_are_in_the_makefile()


if __name__ == "__main__":
    unittest.main()
