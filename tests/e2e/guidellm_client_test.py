#!/usr/bin/env python3
"""GuideLLM's load client, unmodified, against a real server: every request of `guidellm run` succeeds.

Usage: guidellm_client_test.py BINARY          (run by `make clients` through tests/e2e/python_test.py)
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from served import Served

SERVER = None
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "story-7m")
REQUESTS = 20
TOKENS = 16


class GuideLlm(unittest.TestCase):
    def test_every_request_of_a_run_succeeds(self):
        for path in ("/v1/chat/completions", "/v1/completions"):
            with self.subTest(path), tempfile.TemporaryDirectory() as folder:
                report = os.path.join(folder, "report.json")
                subprocess.run(
                    [os.path.join(os.path.dirname(sys.executable), "guidellm"), "run",
                     "--backend", f"kind=openai_http,target=http://{SERVER.http},model=story-7m,request_format={path}",
                     "--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}",
                     "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={TOKENS}",
                     "--tokenizer", f"kind=hf_auto,model={MODEL}", "--output", f"kind=json,path={report}",
                     "--disable-console"],
                    env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": folder}, check=True, timeout=300)
                with open(report, encoding="utf-8") as file:
                    metrics = json.load(file)["benchmarks"][0]["metrics"]
                totals = metrics["request_totals"]
                self.assertEqual((totals["successful"], totals["errored"]), (REQUESTS, 0))
                self.assertEqual(metrics["output_token_count"]["successful"]["mean"], TOKENS)


if __name__ == "__main__":
    SERVER = Served(sys.argv.pop())
    try:
        unittest.main()
    finally:
        SERVER.stop()
