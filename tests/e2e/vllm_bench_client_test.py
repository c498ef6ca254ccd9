#!/usr/bin/env python3
"""`vllm bench serve`, the load client that people use most, unmodified, against a real server, completions and chat.

Usage: vllm_bench_client_test.py BINARY PEER_FOLDER

PEER_FOLDER holds a packed vLLM (peer.tar.xz.*). Exits 77 (CTest: skipped) where that or torch is not there.
"""

import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

from served import Served

SERVER = None
SITE = None
HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.normpath(os.path.join(HERE, "..", "..", "models", "story-7m"))
REQUESTS = 24
TOKENS = 16


def skip(reason):
    print("SKIPPED:", reason)
    sys.exit(77)


def unpack(archive, folder):
    parts = sorted(glob.glob(os.path.join(archive, "peer.tar.xz.*")))
    if not parts:
        skip(f"no packed vLLM in {archive}")
    with subprocess.Popen(["tar", "xJf", "-", "-C", folder], stdin=subprocess.PIPE) as tar:
        for part in parts:
            with open(part, "rb") as file:
                tar.stdin.write(file.read())
        tar.stdin.close()
    return os.path.join(folder, "site")


def bench(backend, endpoint, folder):
    subprocess.run(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", backend, "--endpoint", endpoint,
         "--base-url", f"http://{SERVER.http}", "--model", "story-7m", "--tokenizer", MODEL, "--dataset-name", "random",
         "--random-input-len", "32", "--random-output-len", str(TOKENS), "--ignore-eos", "--num-prompts", str(REQUESTS),
         "--max-concurrency", "8", "--save-result", "--result-dir", folder, "--result-filename", "result.json"],
        env={**os.environ, "PYTHONPATH": SITE, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HOME": folder,
             "VLLM_NO_USAGE_STATS": "1"}, check=True, timeout=500)
    with open(os.path.join(folder, "result.json"), encoding="utf-8") as file:
        return json.load(file)


class VllmBench(unittest.TestCase):
    def test_every_request_succeeds(self):
        for backend, endpoint in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
            with self.subTest(backend), tempfile.TemporaryDirectory() as folder:
                result = bench(backend, endpoint, folder)
                self.assertEqual(result["completed"], REQUESTS)
                self.assertEqual(result["total_output_tokens"], REQUESTS * TOKENS)
                self.assertGreater(result["mean_ttft_ms"], 0)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        skip("this Python has no torch")
    with tempfile.TemporaryDirectory() as room:
        SITE = unpack(sys.argv.pop(), room)
        SERVER = Served(sys.argv.pop())
        try:
            unittest.main()
        finally:
            SERVER.stop()
