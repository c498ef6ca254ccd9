#!/usr/bin/env python3
"""What live processes measure: held against a load whose truth is known, against docs/metrics.md, and, through a real
Prometheus, against every dashboard, recording rule and alert of deploy/.

Usage: observability_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import concurrent.futures
import glob
import http.server
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

import yaml

import live

BINARY = None
CLUSTER = None
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.dirname(os.path.abspath(__file__))
GPU_EXPOSITION = os.path.join(HERE, "gpu_exposition.txt")
PROMETHEUS = os.path.join(ROOT, "deploy", "prometheus")
DASHBOARDS = sorted(glob.glob(os.path.join(ROOT, "deploy", "grafana", "dashboards", "*.json")))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def tokens(count, seed):
    """A prompt of token ids that shares no block with that of another seed."""
    return [300 + (seed * 7919 + i * 31) % 3000 for i in range(count)]


def complete(prompt, prefill="local", max_tokens=4, cluster=None):
    status, text = (cluster or CLUSTER).post("/v1/completions", {
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}, {"x-aisp-prefill": prefill})
    assert status == 200, text
    return json.loads(text)


def loadgen(*flags, result=None):
    command = [os.path.join(os.path.dirname(BINARY), "aisp-loadgen"), "--base-url", f"http://{CLUSTER.http}", *flags]
    if result:
        command += ["--save-result", "--result-filename", result]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=live.end_with_us)


class Truth(unittest.TestCase):
    """Counters after requests of which everything is known. The numbers are what came on top."""

    def difference(self, component, run):
        """What `run` adds to each series of a component; waits until nothing moves any more (gauges follow by telemetry)."""
        before = live.families(CLUSTER.scrape(component))
        run()
        live.eventually(lambda: live.total(CLUSTER.scrape("decode"), "aisp_num_requests_running") == 0)
        last = None
        def settled():
            nonlocal last
            text = CLUSTER.scrape("decode") + CLUSTER.scrape("prefill")
            now = [live.total(text, name) for name in ("aisp_prefix_cache_queries_total", "aisp_decode_requests_finished_total")]
            last, same = now, now == last
            return same
        live.eventually(settled)
        after = live.families(CLUSTER.scrape(component))
        return lambda name, **labels: sum(
            value - (before[name].series.get(series, 0) if name in before else 0)
            for series, value in after[name].series.items()
            if labels.items() <= dict(live.LABEL.findall(series)).items())

    def test_each_prompt_is_looked_up_once_and_what_is_found_is_counted(self):
        shared = tokens(160, 1)  # ten blocks of 16
        prompts = [shared + tokens(17, 100 + i) for i in range(5)]
        added = self.difference("decode", lambda: [complete(prompt) for prompt in prompts])
        # The last token of a prompt is always computed: 176 of 177 can be a prefix hit.
        self.assertEqual(added("aisp_prefix_cache_queries_total"), 5 * 176)
        self.assertEqual(added("aisp_prefix_cache_hits_total"), 4 * 160)
        self.assertEqual(added("aisp_prefill_tokens_total"), 5 * 177 - 4 * 160)
        self.assertEqual(added("aisp_decode_rows_total"), 5 * 3, "the first token of four comes with the prompt's last chunk")
        self.assertEqual(added("aisp_tokens_generated_total"), 5 * 4)
        self.assertEqual(added("aisp_decode_requests_finished_total"), 5)

    def test_the_router_counts_what_clients_asked_and_got(self):
        def run():
            for i in range(3):
                complete(tokens(50, 200 + i), max_tokens=8)
            for i in range(2):
                complete(tokens(64, 300 + i), prefill="remote", max_tokens=8)
            self.assertEqual(CLUSTER.post("/v1/completions", {"prompt": "x", "temperature": -1})[0], 400)
            self.assertEqual(CLUSTER.post("/v1/completions", {"prompt": "x", "model": "gpt-9"})[0], 404)
            self.assertEqual(CLUSTER.post("/no/such/path", {})[0], 404)
        added = self.difference("router", run)
        self.assertEqual(added("aisp_requests_total", status="ok"), 5)
        self.assertEqual(added("aisp_requests_total"), 5)
        self.assertEqual(added("aisp_prompt_tokens_total"), 3 * 50 + 2 * 64)
        self.assertEqual(added("aisp_generation_tokens_total"), 5 * 8)
        self.assertEqual(added("aisp_route_decisions_total", reason="forced-local"), 3)
        self.assertEqual(added("aisp_route_decisions_total", reason="forced-remote"), 2)
        self.assertEqual(added("aisp_requests_rejected_total", reason="bad_request"), 2)
        self.assertEqual(added("aisp_requests_rejected_total"), 2)
        self.assertEqual(added("aisp_http_requests_total", path="/v1/completions", code="200"), 5)
        self.assertEqual(added("aisp_http_requests_total", path="other", code="404"), 1)

    def test_parts_of_ttft_add_up(self):
        for i in range(4):
            complete(tokens(100, 400 + i), prefill="remote" if i % 2 else "local")
        text = CLUSTER.scrape("router")
        whole = live.total(text, "aisp_time_to_first_token_seconds_sum")
        self.assertGreater(whole, 0)
        self.assertAlmostEqual(live.total(text, "aisp_ttft_part_seconds_sum"), whole, delta=1e-6 + whole * 1e-6)
        self.assertGreater(live.total(text, "aisp_ttft_part_seconds_sum", part="prefill"), 0)
        self.assertGreater(live.total(text, "aisp_ttft_part_seconds_sum", part="transfer"), 0)

    def test_bytes_of_a_lane_are_those_of_the_blocks_that_moved(self):
        block = live.total(CLUSTER.scrape("prefill"), "aisp_kv_block_bytes")
        # 90 tokens: whole blocks, and the last partial block sent as a whole one. The first token
        # comes with them.
        added = self.difference("prefill", lambda: [complete(tokens(90, 500 + i), prefill="remote") for i in range(3)])
        self.assertEqual(added("aisp_kv_transfer_bytes_total", lane="tcp"), 3 * 6 * block)
        self.assertEqual(added("aisp_prefill_first_tokens_total"), 3)
        self.assertEqual(added("aisp_prefill_transfers_done_total"), 3)
        self.assertEqual(added("aisp_prefill_tokens_total"), 3 * 90)
        self.assertGreater(added("aisp_kv_transfer_busy_seconds_total"), 0)

    def test_time_is_either_busy_or_idle(self):
        def seconds(text):
            return live.total(text, "aisp_engine_seconds_total")
        first = CLUSTER.scrape("decode")
        complete(tokens(200, 600), max_tokens=64)
        second = CLUSTER.scrape("decode")
        self.assertGreater(live.total(second, "aisp_engine_seconds_total", state="busy"),
                           live.total(first, "aisp_engine_seconds_total", state="busy"))
        started = live.total(second, "process_start_time_seconds")
        self.assertGreater(seconds(second), seconds(first))
        self.assertLess(seconds(second), time.time() - started + 1)

    def test_blocks_of_all_states_are_all_blocks(self):
        for component in ("prefill", "decode"):
            text = CLUSTER.scrape(component)
            blocks = live.families(text)["aisp_cache_config_info"].values["num_gpu_blocks"].pop()
            self.assertEqual(live.total(text, "aisp_kv_blocks", tier="device"), int(blocks))
            self.assertEqual(live.total(text, "aisp_kv_blocks", tier="host") * live.total(text, "aisp_kv_block_bytes"), 64 << 20)

    def test_no_client_makes_a_series(self):
        complete("warm")
        def series():
            return {name for family in live.families(CLUSTER.scrape("router")).values() for name in family.series}
        CLUSTER.post("/nowhere", {})
        before = series()
        for i in range(30):
            CLUSTER.post(f"/path/{i}", {}, {"x-request-id": f"id-{i}"})
            CLUSTER.post("/v1/completions", {"prompt": "x", "model": f"m{i}", "user": f"u{i}"}, {"x-request-id": f"r-{i}"})
        self.assertEqual(series() - before - {'aisp_http_requests_total{code="404",path="/v1/completions"}'}, set())


class Pressure(unittest.TestCase):
    """A pool so small that grants are refused and asked for again."""

    def test_a_prompt_that_waits_for_blocks_is_still_looked_up_once(self):
        cluster = live.Cluster(BINARY, ["--kv-blocks=40"])
        try:
            prompts = [tokens(257, 700 + i) for i in range(12)]  # 17 blocks each; two fit
            with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                list(pool.map(lambda prompt: complete(prompt, "remote", 8, cluster), prompts))
            refused = live.total(cluster.scrape("decode"), "aisp_kv_grants_refused_total")
            self.assertGreater(refused, 0, "there was no pressure; the test shows nothing")
            wanted = len(prompts) * 256
            told = lambda: live.total(cluster.scrape("decode"), "aisp_prefix_cache_queries_total")
            live.eventually(lambda: told() >= wanted, 5)
            self.assertEqual(told(), wanted, f"{refused:.0f} grants were refused meanwhile")
        finally:
            cluster.stop()


def documented():
    """Rows of the tables of docs/metrics.md: name -> (type, unit, labels), and the values of labels."""
    metrics, values, current = {}, {}, None
    for line in read(os.path.join(ROOT, "docs", "metrics.md")).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            name = cells[0].strip("`")
            assert name not in metrics, f"{name} stands twice"
            metrics[name] = (cells[1], cells[2], {label.strip() for label in cells[3].split(",") if label.strip()}, cells[4])
        elif len(cells) == 4 and cells[2].startswith("`"):
            current = (cells[0].strip("`"), cells[1]) if cells[0] else current
            values.setdefault(current, set()).add(cells[2].strip("`"))
    return metrics, values


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Metric families that appear with the first request to an endpoint.
        complete("hello")
        assert loadgen("--backend", "aisp-grpc", "--grpc-address", CLUSTER.router.said["grpc"], "--num-prompts", "2",
                       "--max-concurrency", "1", "--input-len", "20", "--output-len", "4").wait(timeout=60) == 0
        text = "\n".join(CLUSTER.scrape(component) for component in CLUSTER.targets)
        cls.found = live.families(text)
        cls.gpu = live.families(read(GPU_EXPOSITION))
        cls.metrics, cls.values = documented()

    @staticmethod
    def sources():
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.cc"], capture_output=True, text=True, check=True).stdout.split()
        return "".join(read(os.path.join(ROOT, path)) for path in listed if not path.startswith("tests/"))

    def test_the_page_and_the_program_name_the_same_metrics(self):
        # Metrics that the page documents as absent until something happens need not be here, but
        # the sources must name them.
        absent = {name for name, row in self.metrics.items() if "Absent until" in row[3]}
        for name in absent - set(self.found):
            self.assertIn(f'"{name}"', self.sources(), "documented, but not in the sources")
        self.assertEqual(set(self.metrics) - set(self.found) - set(self.gpu) - absent, set(), "documented, but not there")
        self.assertEqual((set(self.found) | set(self.gpu)) - set(self.metrics), set(), "there, but not documented")
        source = set(re.findall(r'"(aisp_gpu_\w+)"', read(os.path.join(ROOT, "server", "gpu_metrics.cc"))))
        self.assertEqual(set(self.gpu), source, "the recorded exposition is another program's")

    def test_types_and_labels_are_those_of_the_page(self):
        for name, family in {**self.found, **self.gpu}.items():
            kind, unit, labels, question = self.metrics[name]
            with self.subTest(name):
                self.assertEqual(kind, family.kind)
                self.assertEqual(labels, family.labels)
                self.assertGreater(len(question), 10)
                for suffix, of in (("_seconds", "seconds"), ("_seconds_total", "seconds"), ("_bytes", "bytes"), ("_bytes_total", "bytes"),
                                   ("_ratio", "ratio"), ("_perc", "ratio"), ("_info", "info"), ("_hertz", "hertz")):
                    if name.endswith(suffix):
                        self.assertEqual(unit, of)
                if kind == "counter":
                    self.assertTrue(name.endswith("_total"))

    def test_every_value_of_a_label_is_explained(self):
        for (name, label), values in self.values.items():
            # A metric that is documented as absent until something is configured.
            if name not in self.found and "Absent until" in self.metrics[name][3]:
                continue
            with self.subTest(f"{name} {label}"):
                self.assertEqual(self.found[name].values[label] - values, set(), "not explained")
                if name != "aisp_requests_total":
                    self.assertEqual(values - self.found[name].values[label], set(), "explained, but not there")

    def test_buckets_fit(self):
        def bounds(name):
            return sorted({float(dict(live.LABEL.findall(series))["le"]) for series in self.found[name].series if "_bucket" in series})
        for name, least, most in (("aisp_time_to_first_token_seconds", 0.001, 60), ("aisp_inter_token_latency_seconds", 0.0001, 2),
                                  ("aisp_ttft_part_seconds", 0.001, 60), ("aisp_step_seconds", 0.0001, 2)):
            found = bounds(name)
            self.assertEqual(found[0], least)
            self.assertEqual(found[-2], most)
            self.assertTrue(all(b / a <= 3 for a, b in zip(found, found[1:-1])), name)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves the recorded exposition of a GPU worker as if it were one."""

    def do_GET(self):
        body = read(GPU_EXPOSITION).encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """The real one, with the shipped configuration but for targets and intervals, which a test cannot wait for."""

    def __init__(self, targets, gpu):
        self.folder = tempfile.mkdtemp(prefix="aisp_prometheus_")
        config = yaml.safe_load(read(os.path.join(PROMETHEUS, "prometheus.yml")))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (job,) = config["scrape_configs"]
        for entry in job["static_configs"]:
            entry["targets"] = [targets[entry["labels"]["component"]]]
        job["static_configs"].append({"targets": [gpu], "labels": {"component": "decode"}})
        # The cluster's configuration. This Prometheus may be built without pod discovery, so the
        # labels that discovery would give a pod are passed to the relabelling directly.
        kubernetes = yaml.safe_load(read(os.path.join(PROMETHEUS, "prometheus-kubernetes.yml")))["scrape_configs"][0]
        assert kubernetes.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["aisp"]}}]
        kubernetes["job_name"] = "aisp-kubernetes"
        host, _, port = targets["decode"].rpartition(":")
        about = {"annotation_prometheus_io_scrape": "true", "annotation_prometheus_io_path": "/metrics",
                 "annotation_prometheus_io_port": port, "label_app_kubernetes_io_component": "decode", "name": "pod-1",
                 "node_name": "node-1"}
        labels = {"__meta_kubernetes_pod_" + key: value for key, value in about.items()}
        kubernetes["static_configs"] = [
            {"targets": [f"{host}:8093", f"{host}:8092"], "labels": labels},  # the ports of one pod
            {"targets": [f"{host}:1"], "labels": {**labels, "__meta_kubernetes_pod_annotation_prometheus_io_scrape": ""}}]
        config["scrape_configs"].append(kubernetes)
        config["rule_files"] = [os.path.join(PROMETHEUS, "rules", "*.yaml")]
        path = os.path.join(self.folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as file:
            yaml.safe_dump(config, file)
        self.log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        for _ in range(5):  # the free port may be taken by another process before Prometheus has it
            self.address = f"127.0.0.1:{free_port()}"
            self.process = subprocess.Popen(["prometheus", f"--config.file={path}", f"--storage.tsdb.path={self.folder}/data",
                                             f"--web.listen-address={self.address}", "--log.level=warn"],
                                            stdout=self.log, stderr=self.log, preexec_fn=live.end_with_us)
            live.eventually(lambda: self.process.poll() is not None or self.ready())
            if self.process.poll() is None:
                break

    def api(self, path, **query):
        answer = json.loads(live.get(self.address, f"/api/v1/{path}?{urllib.parse.urlencode(query)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        return self.api("query", query=expression)["result"]

    def ready(self):
        try:
            live.get(self.address, "/-/ready")
            return True
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder)


@unittest.skipUnless(shutil.which("prometheus"), "no prometheus here; tools/install_deps.sh --monitoring installs it")
class Scraped(unittest.TestCase):
    """Dashboards, rules and alerts on what the real Prometheus scraped of the live processes under load."""

    @classmethod
    def setUpClass(cls):
        cls.gpu = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        threading.Thread(target=cls.gpu.serve_forever, daemon=True).start()
        cls.prometheus = Prometheus(CLUSTER.targets, f"127.0.0.1:{cls.gpu.server_address[1]}")
        assert live.eventually(cls.prometheus.ready), read(os.path.join(cls.prometheus.folder, "log"))
        # Load until every panel was read: prompts with common prefixes, and some whose client
        # disconnects.
        cls.load = loadgen("--num-prompts", "100000", "--request-rate", "12", "--max-concurrency", "16", "--dataset-name",
                           "prefix_repetition", "--num-prefixes", "3", "--prefix-repetition-prefix-len", "96", "--input-len", "150",
                           "--prefix-repetition-suffix-len", "40", "--prefix-repetition-output-len", "24", "--output-len", "24",
                           "--cancel-rate", "0.1")
        # And some prompts with a hand-off, even if the router finds local prefill cheaper on this
        # machine.
        cls.stop_moving = threading.Event()

        def move():
            number = 1000
            while not cls.stop_moving.wait(0.3):
                complete(tokens(120, number), prefill="remote")
                number += 1

        cls.moving = threading.Thread(target=move)
        cls.moving.start()
        enough = "min(count_over_time(aisp_steps_total{job='aisp'}[1m])) >= 8 and on() sum(aisp_prefix_cache_hits_total) > 0 and on() sum(aisp_kv_transfer_bytes_total) > 0"
        assert live.eventually(lambda: cls.prometheus.query(enough), 60), "the load never came"

    @classmethod
    def tearDownClass(cls):
        cls.stop_moving.set()
        cls.moving.join()
        cls.load.terminate()
        cls.load.wait()
        cls.prometheus.stop()
        cls.gpu.shutdown()
        cls.gpu.server_close()

    def test_every_target_is_up(self):
        targets = self.prometheus.api("targets", state="active")["activeTargets"]
        self.assertEqual([t["scrapeUrl"] + t["lastError"] for t in targets if t["health"] != "up"], [])
        cluster = [t for t in targets if t["scrapePool"] == "aisp-kubernetes"]
        self.assertEqual(len(cluster), 1, "one target a pod, and none without the annotation")
        self.assertEqual({key: cluster[0]["labels"][key] for key in ("component", "pod", "node")},
                         {"component": "decode", "pod": "pod-1", "node": "node-1"})

    def test_every_panel_has_data(self):
        looked_at = 0
        patience = time.monotonic() + 40  # for all of them together
        for path in DASHBOARDS:
            for panel in json.loads(read(path))["panels"]:
                for target in panel.get("targets", []):
                    expression = target["expr"].replace("$__rate_interval", "10s").replace('"$model"', '".*"').replace('"$worker"', '".*"')
                    self.assertNotIn("$", expression)
                    with self.subTest(f"{os.path.basename(path)}: {panel['title']}", expression=expression):
                        found = live.eventually(lambda: [r for r in self.prometheus.query(expression)
                                                         if math.isfinite(float(r["value"][1]))],
                                                max(0, patience - time.monotonic()))
                        self.assertTrue(found, "no data")
                        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                            self.assertIn(label, found[0]["metric"], "the legend names a label that is not there")
                        if panel["fieldConfig"]["defaults"]["unit"] == "percentunit":
                            self.assertTrue(all(-0.001 <= float(r["value"][1]) <= 1.05 for r in found), found)
                        looked_at += 1
        self.assertGreater(looked_at, 80)

    def test_every_rule_is_evaluated_and_nothing_is_alarming(self):
        groups = live.eventually(lambda: [g for g in self.prometheus.api("rules")["groups"]
                                          if all(r["health"] != "unknown" for r in g["rules"])])
        rules = [rule for group in groups for rule in group["rules"]]
        self.assertEqual([(r["name"], r.get("lastError")) for r in rules if r["health"] != "ok"], [])
        for rule in rules:
            if rule["type"] == "recording":
                with self.subTest(rule["name"]):
                    self.assertTrue(live.eventually(lambda: self.prometheus.query(rule["name"]), 10), "no data")
        self.assertEqual([r["name"] for r in rules if r["type"] == "alerting" and r["state"] == "firing"], [])

    def test_metrics_that_autoscalers_and_gateways_are_told_of_are_there(self):
        text = "".join(read(path) for path in glob.glob(os.path.join(ROOT, "deploy", "optional", "*.yaml"))
                       if "prometheus-rules" not in path)
        for expression in re.findall(r"^\s*query: (.*)$", text, re.M):
            short = expression.replace("[2m]", "[10s]")
            self.assertTrue(live.eventually(lambda s=short: self.prometheus.query(s), 10), expression)
        names = set(re.findall(r"\baisp_[a-z_]+\b", text))
        self.assertGreaterEqual(len(names), 6)
        for name in names:
            self.assertTrue(self.prometheus.query(name), name)


if __name__ == "__main__":
    BINARY = os.path.abspath(sys.argv.pop())
    # With every tier that needs no disk, so that the whole page is there.
    CLUSTER = live.Cluster(BINARY, ["--kv.host_memory=64MiB"])
    try:
        unittest.main()
    finally:
        CLUSTER.stop()
