#!/usr/bin/env python3
"""What the documents name exists: files behind links, metrics in docs/metrics.md, settings in docs/config.md, make targets.

Usage: docs_test.py          (run by CTest)
"""

import glob
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SECTIONS = "model|http|router|worker|engine|trace|log|up|cluster"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


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
        # A prefix with a trailing underscore stands for several; what the build makes is no metric.
        known = lambda path, name: name in metrics or name.endswith("_") or re.search(rf"\b{name}\b", build)
        self.assertGreater(self.check(r"`(aisp_[a-z_]+)", known), 100)

    def test_settings_are_those_of_the_settings_page(self):
        settings = set(re.findall(r"^\| `([a-z0-9_.]+)`", self.documents["docs/config.md"], re.M))
        self.assertGreater(len(settings), 80)
        self.assertGreater(self.check(rf"`((?:{SECTIONS})\.[a-z_0-9]+)`", lambda path, name: name in settings or name.endswith((".proto", ".h"))), 100)

    def test_make_targets_are_in_the_makefile(self):
        targets = set(re.findall(r"^([a-z0-9-]+):", read("Makefile"), re.M))
        self.assertGreater(self.check(r"`make ([a-z0-9-]+)", lambda path, name: name in targets), 10)


if __name__ == "__main__":
    unittest.main()
