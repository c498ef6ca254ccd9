#!/usr/bin/env python3
"""`aisp pull` and `--model org/name` against a stub of the hub: what goes wrong on the way, several processes, progress, small
disks, and serving.

Usage: pull_faults_test.py BINARY [unittest's arguments]
"""

import json
import os
import pty
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

from hub_case import BINARY, ROOT, WEIGHTS, HubTest, run_together
from stub_hub import Fault, Repo, tiny_llama


class Faults(HubTest):
    def setUp(self):
        super().setUp()
        self.repo.files = tiny_llama(2_000_000)
        self.size = len(self.repo.files[WEIGHTS])

    def test_cut_connections_are_taken_up_where_they_ended(self):
        self.fault(fault=Fault(cut_after=300_000), where="cdn")
        self.assert_pulled(self.pull())
        begins = [r.begin for r in self.hub.seen("GET", "cdn")]
        self.assertGreater(len(begins), 5)
        self.assertEqual(begins, sorted(begins))
        # Bytes in transit at the cut may be lost, but no file is downloaded twice as a whole.
        self.assertLess(self.hub.bytes_of(WEIGHTS), 1.5 * self.size)

    def test_a_connection_that_always_ends_at_once_is_given_up(self):
        self.fault(fault=Fault(cut_after=0), where="cdn")
        begin = time.monotonic()
        self.assert_refused(self.pull(), WEIGHTS, "tried 5 times")
        self.assertLess(time.monotonic() - begin, 30)

    def test_a_wrong_hash_once_and_always(self):
        # After the header, which is read first.
        self.fault(fault=Fault(corrupt=True), where="cdn", times=2)
        self.hub.faults.insert(0, lambda r: Fault(no_ranges=False) if r.where == "cdn" and r.begin == 0 and
                               r.headers.get("range", "").endswith("65535") else None)
        self.assert_refused(self.pull(), "hash", self.repo.hash(WEIGHTS), "nothing of it is kept")
        self.assertNotIn(self.repo.hash(WEIGHTS), self.blobs())
        self.assert_pulled(self.pull())
        with open(os.path.join(self.model_folder(), "blobs", self.repo.hash(WEIGHTS)), "rb") as file:
            self.assertEqual(file.read(), self.repo.files[WEIGHTS])

    def test_a_wrong_small_file_is_fetched_once_more(self):
        self.fault(fault=Fault(corrupt=True), name="tokenizer.json", method="GET", times=1)
        self.assert_pulled(self.pull())
        self.assertEqual(len(self.hub.seen("GET", name="tokenizer.json")), 2)

    def test_what_lies_there_and_is_wrong_is_replaced(self):
        os.makedirs(os.path.join(self.model_folder(), "blobs"))
        for extra in (-10, 10):
            path = os.path.join(self.model_folder(), "blobs", self.repo.hash(WEIGHTS) + ".incomplete")
            with open(path, "wb") as file:
                file.write(self.repo.files[WEIGHTS][:8192] + b"x" * (self.size + extra - 8192))
            self.assert_pulled(self.pull())
            os.unlink(os.path.join(self.model_folder(), "blobs", self.repo.hash(WEIGHTS)))

    def test_a_killed_pull_is_taken_up(self):
        self.fault(fault=Fault(bytes_per_s=1_000_000), where="cdn")
        child = subprocess.Popen([BINARY, "pull", "org/tiny"], env=self.environment(), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        incomplete = os.path.join(self.model_folder(), "blobs", self.repo.hash(WEIGHTS) + ".incomplete")
        while not os.path.exists(incomplete) or os.path.getsize(incomplete) < 500_000:
            self.assertIsNone(child.poll())
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        there = os.path.getsize(incomplete)
        self.hub.faults.clear()
        before = len(self.hub.seen("GET", "cdn"))
        self.assert_pulled(self.pull())
        self.assertEqual([r.begin for r in self.hub.seen("GET", "cdn")[before:]], [there])

    def test_ctrl_c_stops_it_and_keeps_what_came(self):
        self.fault(fault=Fault(bytes_per_s=500_000), where="cdn")
        child = subprocess.Popen([BINARY, "pull", "org/tiny"], env=self.environment(), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True)
        while self.hub.bytes_of(WEIGHTS) < 300_000:
            self.assertIsNone(child.poll())
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=5)
        self.assertEqual(child.returncode, 1)
        self.assertIn("goes on from what has come", err)
        self.assertIn(self.repo.hash(WEIGHTS) + ".incomplete", self.blobs())

    def test_a_server_that_stalls(self):
        self.fault(fault=Fault(stall_after=700_000), where="cdn", times=2)
        self.assert_pulled(self.pull(HF_HUB_DOWNLOAD_TIMEOUT="1"))
        self.assertLess(self.hub.bytes_of(WEIGHTS), 1.5 * self.size)

    def test_a_server_that_stalls_for_ever_is_given_up(self):
        self.fault(fault=Fault(stall_after=0), where="cdn")
        begin = time.monotonic()
        self.assert_refused(self.pull(HF_HUB_DOWNLOAD_TIMEOUT="1"), "HF_HUB_DOWNLOAD_TIMEOUT", "tried 5 times")
        self.assertLess(time.monotonic() - begin, 40)

    def test_a_server_without_ranges(self):
        self.fault(fault=Fault(no_ranges=True), where="cdn")
        self.assert_pulled(self.pull())

    def test_503_is_tried_again_and_429_waits_as_long_as_it_says(self):
        self.fault(fault=Fault(status=503), name="config.json", times=2)
        self.fault(fault=Fault(status=429, headers={"Retry-After": "2"}), where="cdn", times=1)
        begin = time.monotonic()
        self.assert_pulled(self.pull())
        self.assertGreater(time.monotonic() - begin, 2)

    def test_503_for_ever(self):
        self.hub.faults.append(lambda r: Fault(status=503))
        self.assert_refused(self.pull(), "503", "tried 5 times")
        self.assertEqual(len(self.hub.requests), 5)

    def test_nobody_listens(self):
        self.assert_refused(self.pull(HF_ENDPOINT="http://127.0.0.1:9"), "127.0.0.1:9", "tried 5 times")

    def test_an_etag_that_is_no_hash(self):
        def nameless(request):
            return Fault(status=200, headers={"ETag": '"abc"', "X-Repo-Commit": "a" * 40})

        self.hub.faults.append(nameless)
        self.assert_refused(self.pull(), "abc", "could not be checked")


class Together(HubTest):
    def test_two_processes_pull_the_same_once(self):
        self.repo.files = tiny_llama(2_000_000)
        self.fault(fault=Fault(bytes_per_s=2_000_000), where="cdn")
        children = [subprocess.Popen([BINARY, "pull", "org/tiny"], env=self.environment(), stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True) for _ in range(3)]
        for child in children:
            out, err = child.communicate(timeout=60)
            self.assertEqual(child.returncode, 0, err)
            self.assertIn(self.repo.commit, out)
        self.assertEqual(self.hub.bytes_of(WEIGHTS), len(self.repo.files[WEIGHTS]))

    def test_shards_come_at_the_same_time_and_not_too_many(self):
        self.repo.files = tiny_llama(3_000_000, shards=12)
        now, most, lock = [0], [0], threading.Lock()

        def count(request):
            if request.where != "cdn":
                return None
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])

            def end():
                with lock:
                    now[0] -= 1

            return Fault(bytes_per_s=1_000_000, at_end=end)

        self.hub.faults.append(count)
        self.assert_pulled(self.pull())
        self.assertGreaterEqual(most[0], 4)
        self.assertLessEqual(most[0], 8)


class Progress(HubTest):
    def setUp(self):
        super().setUp()
        self.repo.files = tiny_llama(2_000_000)

    def test_a_bar_with_rate_and_time_left_on_a_terminal(self):
        self.fault(fault=Fault(bytes_per_s=800_000), where="cdn")
        child, terminal = pty.fork()
        if child == 0:
            os.execve(BINARY, [BINARY, "pull", "org/tiny"], self.environment())
        shown = b""
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        self.assertEqual(os.waitpid(child, 0)[1], 0, shown)
        os.close(terminal)
        text = shown.decode()
        bars = re.findall(r"tiny \d+ files +(\d+) % \[=*>? *\] [\d.]+ \w+ of 1\.9 MiB, [\d.]+ KiB/s, \d+ s left", text)
        self.assertGreater(len(bars), 3, text)
        self.assertEqual([int(b) for b in bars], sorted(int(b) for b in bars))

    def test_lines_without_one(self):
        self.fault(fault=Fault(bytes_per_s=300_000), where="cdn")
        ran = self.pull()
        self.assert_pulled(ran)
        self.assertNotIn("\r", ran.stderr)
        lines = [line for line in ran.stderr.splitlines() if "downloading" in line]
        self.assertGreaterEqual(len(lines), 1, ran.stderr)
        self.assertLessEqual(len(lines), 4, ran.stderr)
        self.assertRegex(lines[0], r"total_bytes=\d+")
        self.assertRegex(lines[0], r"left_s=\d+")


class Disk(HubTest):
    """On a small file system of its own."""

    def setUp(self):
        super().setUp()
        self.disk = os.path.join(self.home, "disk")
        os.mkdir(self.disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", self.disk], capture_output=True, text=True,
                                 check=False)
        if mounted.returncode != 0:
            self.skipTest(f"no file system can be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk], check=True)

    def test_too_little_room_is_said_before_the_weights_come(self):
        self.repo.files = tiny_llama(8_000_000)
        ran = self.pull(HF_HOME=self.disk)
        self.assert_refused(ran, "bytes", "are needed", "are free", "HF_HOME")
        needed, free = re.search(r": (\d+) bytes \([^)]*\) are needed, (\d+) ", ran.stderr).groups()
        self.assertAlmostEqual(int(needed), len(self.repo.files[WEIGHTS]), delta=10_000)
        self.assertLess(int(free), 4 << 20)
        self.assertEqual(self.hub.seen("GET", "cdn"), [])

    def test_a_disk_that_fills_up_meanwhile_and_the_pull_after_it(self):
        self.repo.files = tiny_llama(3_000_000)
        filler = os.path.join(self.disk, "filler")

        def fill(request):
            if request.where == "cdn" and request.begin > 0 and not os.path.exists(filler):
                with open(filler, "wb") as file:
                    file.write(bytes(2 << 20))
            return None

        self.hub.faults.append(fill)
        ran = self.pull(HF_HOME=self.disk)
        self.assert_refused(ran, "is full", WEIGHTS, "bytes more", "are free", "is kept")
        os.unlink(filler)
        self.hub.faults.clear()
        before = len(self.hub.seen("GET", "cdn"))
        self.assert_pulled(self.pull(HF_HOME=self.disk))
        (rest,) = self.hub.seen("GET", "cdn")[before:]
        self.assertGreater(rest.begin, 1_000_000)


class Serving(HubTest):
    """A model of the hub, downloaded by who serves it."""

    def setUp(self):
        super().setUp()
        files = {}
        for name in os.listdir(os.path.join(ROOT, "models", "story-7m")):
            with open(os.path.join(ROOT, "models", "story-7m", name), "rb") as file:
                files[name] = file.read()
        self.hub.repos["tales/story"] = Repo(files, commit="c" * 40)

    def serve(self, command, *args):
        read, write = os.pipe()
        child = subprocess.Popen([BINARY, command, "--port=0", "--model=tales/story", "--grpc=false", f"--announce-fd={write}",
                                  *args], env=self.environment(), pass_fds=[write], stderr=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, text=True)
        os.close(write)
        self.addCleanup(child.stderr.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.terminate)
        with os.fdopen(read) as said:
            for line in said:
                if line.startswith("http="):
                    return child, "http://" + line.strip().partition("=")[2]
        self.fail(f"it ended: {child.communicate()[1]}")
        return None

    def ask(self, url, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def complete(self, url):
        until = time.monotonic() + 60
        while True:
            try:
                return self.ask(url, "/v1/completions", {"model": "tales/story", "prompt": "Once upon", "max_tokens": 4})
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def test_it_is_downloaded_and_goes_by_its_name(self):
        _, url = self.serve("serve")
        self.assertEqual([m["id"] for m in self.ask(url, "/v1/models")["data"]], ["tales/story"])
        self.assertEqual(self.complete(url)["usage"]["completion_tokens"], 4)
        self.assertEqual(self.hub.bytes_of(WEIGHTS), len(self.hub.repos["tales/story"].files[WEIGHTS]))

    def test_the_processes_of_up_share_one_download(self):
        _, url = self.serve("up", "--prefill=1", "--decode=1")
        self.assertEqual(self.complete(url)["model"], "tales/story")
        self.assertEqual(self.hub.bytes_of(WEIGHTS), len(self.hub.repos["tales/story"].files[WEIGHTS]))

    def test_generate_downloads_once_and_then_needs_no_hub(self):
        args = ("generate", "Once upon a time", "--model=tales/story", "--max-tokens=8", "--temperature=0")
        first = self.run_aisp(*args)
        self.assertEqual(first.returncode, 0, first.stderr)
        again = self.run_aisp(*args, HF_HUB_OFFLINE="1")
        built_in = self.run_aisp("generate", "Once upon a time", "--max-tokens=8", "--temperature=0")
        self.assertEqual(first.stdout, again.stdout)
        self.assertEqual(first.stdout, built_in.stdout)

    def test_a_shape_of_the_hub_needs_no_weights(self):
        ran = self.run_aisp("generate", "x", "--model=tales/story", "--weights=random:1", "--max-tokens=2")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.hub.seen(name=WEIGHTS), [])

    def test_sigterm_while_it_downloads(self):
        self.fault(fault=Fault(bytes_per_s=200_000), where="cdn")
        child = subprocess.Popen([BINARY, "serve", "--port=0", "--model=tales/story"], env=self.environment(),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.hub.bytes_of(WEIGHTS) < 100_000:
            self.assertIsNone(child.poll())
            time.sleep(0.01)
        child.terminate()
        self.assertEqual(child.wait(timeout=5), 0)


if __name__ == "__main__":
    run_together()
