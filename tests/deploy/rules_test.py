#!/usr/bin/env python3
"""What is shipped for Prometheus and Grafana, by itself: rules and alerts through promtool, dashboards by their JSON.

Usage: rules_test.py BINARY          (run by CTest through tests/e2e/python_test.py; the binary is not needed)
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMETHEUS = os.path.join(ROOT, "deploy", "prometheus")
DASHBOARDS = sorted(glob.glob(os.path.join(ROOT, "deploy", "grafana", "dashboards", "*.json")))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@unittest.skipUnless(shutil.which("promtool"), "no promtool here; tools/install_deps.sh --monitoring installs it")
class Rules(unittest.TestCase):
    def test_unit_tests_of_rules_and_alerts(self):
        for command in (["check", "rules", *glob.glob(f"{PROMETHEUS}/rules/*.yaml")], ["check", "config", f"{PROMETHEUS}/prometheus.yml"],
                        ["test", "rules", *glob.glob(f"{PROMETHEUS}/tests/*.yaml")]):
            ran = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_every_alert_is_seen_firing_and_silent(self):
        alerts = {rule["alert"]: rule for group in yaml.safe_load(read(f"{PROMETHEUS}/rules/alerts.yaml"))["groups"]
                  for rule in group["rules"]}
        seen = {name: set() for name in alerts}
        for case in yaml.safe_load(read(f"{PROMETHEUS}/tests/alerts.yaml"))["tests"]:
            for check in case["alert_rule_test"]:
                seen[check["alertname"]].add("firing" if check["exp_alerts"] else "silent")
        self.assertEqual({name for name, states in seen.items() if states != {"firing", "silent"}}, set())
        for name, rule in alerts.items():
            self.assertIn(rule["labels"]["severity"], ("warning", "critical"), name)
            self.assertGreater(len(rule["annotations"]["summary"]), 20, name)
            self.assertGreater(len(rule["annotations"]["runbook"]), 80, name)

    def test_every_recording_rule_is_tested(self):
        names = {rule["record"] for group in yaml.safe_load(read(f"{PROMETHEUS}/rules/recording.yaml"))["groups"] for rule in group["rules"]}
        tested = read(f"{PROMETHEUS}/tests/recording.yaml")
        self.assertEqual({name for name in names if name not in tested}, set())


class Dashboards(unittest.TestCase):
    """Their JSON, since nothing renders it here."""

    UNITS = {"s", "short", "percentunit", "reqps", "ops", "bytes", "Bps", "hertz", "watt", "celsius", "suffix: tok/s"}

    def boards(self):
        for path in DASHBOARDS:
            yield os.path.basename(path), json.loads(read(path))

    def test_they_are_up_to_date(self):
        ran = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "dashboards.py"), "--check"], capture_output=True,
                             text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_frame(self):
        uids = [board["uid"] for _, board in self.boards()]
        self.assertEqual(len(uids), 4)
        self.assertEqual(len(set(uids)), 4)
        for name, board in self.boards():
            self.assertGreaterEqual(board["schemaVersion"], 36, name)
            self.assertLessEqual(len(board["uid"]), 40)
            kinds = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
            self.assertEqual(kinds.pop("datasource"), "datasource")
            for variable in re.findall(r"\$([a-z]+)\b", "".join(t["expr"] for p in board["panels"] for t in p.get("targets", []))):
                self.assertIn(variable, kinds, name)

    def test_panels_have_units_legends_thresholds_and_places_of_their_own(self):
        for name, board in self.boards():
            ids, taken, limits = set(), set(), 0
            for panel in board["panels"]:
                with self.subTest(f"{name}: {panel['title']}"):
                    self.assertNotIn(panel["id"], ids)
                    ids.add(panel["id"])
                    at = panel["gridPos"]
                    self.assertLessEqual(at["x"] + at["w"], 24)
                    cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
                    self.assertFalse(cells & taken, "panels overlap")
                    taken |= cells
                    if panel["type"] == "row":
                        continue
                    self.assertIn(panel["type"], ("timeseries", "stat"))
                    defaults = panel["fieldConfig"]["defaults"]
                    self.assertIn(defaults["unit"], self.UNITS)
                    steps = defaults["thresholds"]["steps"]
                    self.assertIsNone(steps[0]["value"])
                    values = [step["value"] for step in steps[1:]]
                    self.assertEqual(values, sorted(values))
                    limits += len(steps) > 1
                    self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                    self.assertTrue(panel["targets"])
                    for target in panel["targets"]:
                        self.assertTrue(target["legendFormat"])
                    self.assertEqual(len({t["refId"] for t in panel["targets"]}), len(panel["targets"]))
            self.assertGreaterEqual(limits, 3, name)

    def test_provisioning_points_at_what_is_shipped(self):
        folder = os.path.join(ROOT, "deploy", "grafana")
        source = yaml.safe_load(read(os.path.join(folder, "provisioning", "datasources", "prometheus.yaml")))
        self.assertEqual(source["datasources"][0]["type"], "prometheus")
        interval = yaml.safe_load(read(os.path.join(PROMETHEUS, "prometheus.yml")))["global"]["scrape_interval"]
        self.assertEqual(source["datasources"][0]["jsonData"]["timeInterval"], interval)
        provider = yaml.safe_load(read(os.path.join(folder, "provisioning", "dashboards", "aisp.yaml")))
        self.assertEqual(provider["providers"][0]["type"], "file")
        kustomization = yaml.safe_load(read(os.path.join(folder, "kustomization.yaml")))
        self.assertEqual(sorted(os.path.basename(f) for f in kustomization["configMapGenerator"][0]["files"]),
                         [os.path.basename(path) for path in DASHBOARDS])


if __name__ == "__main__":
    sys.argv.pop()
    unittest.main()
