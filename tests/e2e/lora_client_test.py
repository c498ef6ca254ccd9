#!/usr/bin/env python3
"""LoRA adapters served by name: by OpenAI's own client against one process and against router, prefill and decode workers as
processes of their own.

Usage: lora_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import array
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import openai

from served import House, Served

BINARY = None
BASE = "story-7m"
LAYERS, HIDDEN, Q, KV, INNER = 8, 256, 256, 128, 768
SHAPES = {"self_attn.q_proj": (Q, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN),
          "self_attn.o_proj": (HIDDEN, Q), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
          "mlp.down_proj": (HIDDEN, INNER)}
PROMPT = "Once upon a time there was a little duck who lived by the river. " * 4


def write_adapter(folder, seed, rank=4, width=0.15, shapes=SHAPES, **config):
    """A random adapter in PEFT's layout."""
    draw = random.Random(seed)
    header, data = {}, b""
    for layer in range(LAYERS):
        for module, (outs, ins) in shapes.items():
            for half, shape in (("A", (rank, ins)), ("B", (outs, rank))):
                values = array.array("f", (draw.uniform(-width, width) for _ in range(shape[0] * shape[1]))).tobytes()
                header[f"base_model.model.model.layers.{layer}.{module}.lora_{half}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
                data += values
    text = json.dumps(header).encode()
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/adapter_model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
    with open(f"{folder}/adapter_config.json", "w") as out:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": sorted(shapes), **config}, out)
    return folder


FOLDER = tempfile.TemporaryDirectory()
ONE = write_adapter(f"{FOLDER.name}/one", 1)
TWO = write_adapter(f"{FOLDER.name}/two", 2, rank=8, use_rslora=True)
ADAPTERS = f"--lora=one={ONE},two={TWO}"


class Answers:
    """What holds of every deployment; `server` is set by the classes below."""

    server = None
    remote = {}

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        self.client = openai.OpenAI(base_url=f"http://{self.server.http}/v1", api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def ask(self, model, prompt=PROMPT, salt="", **options):
        return self.client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0,
                                              extra_body={"cache_salt": salt} if salt else None,
                                              extra_headers=self.remote, **options)

    def test_models_are_listed_with_their_parent(self):
        models = {each.id: each for each in self.client.models.list().data}
        self.assertEqual(set(models), {BASE, "one", "two"})
        self.assertEqual([getattr(models[name], "parent", None) for name in (BASE, "one", "two")], [None, BASE, BASE])
        self.assertEqual(self.client.models.retrieve("two").parent, BASE)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.models.retrieve("three")
        self.assertIn("'one', 'two'", str(caught.exception))

    def test_a_request_names_its_adapter(self):
        texts = {}
        for model in (BASE, "one", "two"):
            answer = self.ask(model, salt="names")
            self.assertEqual(answer.model, model)
            texts[model] = answer.choices[0].text
            chat = self.client.chat.completions.create(model=model, max_tokens=4, messages=[{"role": "user", "content": "hi"}])
            self.assertEqual(chat.model, model)
            streamed = list(self.client.completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0, stream=True))
            self.assertEqual({each.model for each in streamed}, {model})
            self.assertEqual("".join(each.choices[0].text for each in streamed if each.choices), texts[model])
            response = self.client.responses.create(model=model, input="hi", max_output_tokens=4)
            self.assertEqual(response.model, model)
        self.assertEqual(len(set(texts.values())), 3)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.ask("three")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_kv_of_one_adapter_never_serves_another(self):
        for model in (BASE, "one", "two"):
            first = self.ask(model, salt="kv")
            details = first.usage.prompt_tokens_details
            self.assertEqual(details.cached_tokens if details else 0, 0, model)
        for model in (BASE, "one", "two"):
            self.assertGreater(self.ask(model, salt="kv").usage.prompt_tokens_details.cached_tokens, 16, model)

    def test_mixed_in_one_batch_they_answer_as_alone(self):
        prompts = [f"{PROMPT} Number {i}" for i in range(6)]
        expected = {model: [self.ask(model, each).choices[0].text for each in prompts] for model in (BASE, "one", "two")}
        streams = [(model, i, self.client.completions.create(model=model, prompt=each, max_tokens=24, temperature=0, stream=True,
                                                             extra_headers=self.remote))
                   for i, each in enumerate(prompts) for model in expected]
        for model, i, stream in streams:
            text = "".join(each.choices[0].text for each in stream if each.choices)
            self.assertEqual(text, expected[model][i], (model, i))

    def test_embeddings_of_an_adapter_are_its_own(self):
        vectors = {}
        for model in (BASE, "one"):
            answer = self.client.embeddings.create(model=model, input="A duck.", encoding_format="float")
            self.assertEqual(answer.model, model)
            vectors[model] = answer.data[0].embedding
        self.assertNotEqual(*vectors.values())


def loras(http):
    """(running, waiting) adapters by the one series of the gateway's metric."""
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        series = [line for line in answer.read().decode().splitlines() if line.startswith("aisp_lora_requests_info{")]
    assert len(series) == 1, series
    assert 'max_lora="16"' in series[0]
    return tuple(re.search(f'{which}_lora_adapters="([^"]*)"', series[0])[1] for which in ("running", "waiting"))


class OneProcess(Answers, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served(BINARY, ADAPTERS)

    def test_gateways_are_told_whose_adapters_are_at_work(self):
        streams = [self.client.completions.create(model=model, prompt=PROMPT, max_tokens=1800, stream=True,
                                                  extra_body={"ignore_eos": True}) for model in ("two", "one")]
        for stream in streams:
            next(iter(stream))
        self.assertEqual(loras(self.server.http), ("one,two", ""))
        for stream in streams:
            stream.close()
        deadline = time.monotonic() + 20
        while loras(self.server.http) != ("", ""):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)


class SplitWorkers(Answers, unittest.TestCase):
    remote = {"x-aisp-prefill": "remote"}

    @classmethod
    def setUpClass(cls):
        cls.server = House(BINARY, ADAPTERS)

    def test_the_same_as_of_one_process(self):
        one = Served(BINARY, ADAPTERS)
        self.addCleanup(one.stop)
        with openai.OpenAI(base_url=f"http://{one.http}/v1", api_key="none") as alone:
            for model in (BASE, "one", "two"):
                expected = alone.completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0)
                raw = self.client.completions.with_raw_response.create(
                    model=model, prompt=PROMPT, max_tokens=24, temperature=0, extra_body={"cache_salt": f"same {model}"},
                    extra_headers=self.remote)
                self.assertIn("reason=forced-remote", raw.headers["x-aisp-route"])
                self.assertEqual(raw.parse().choices[0].text, expected.choices[0].text)


class Refused(unittest.TestCase):
    def start(self, *flags):
        """What is said of a start that fails."""
        ran = subprocess.run([BINARY, "serve", "--role=all", "--port=0", "--device=cpu", *flags], capture_output=True, text=True,
                             timeout=60)
        self.assertNotEqual(ran.returncode, 0)
        return ran.stdout + ran.stderr

    def test_what_cannot_be_served_is_named_at_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            shapes = {"self_attn.q_proj": (Q, HIDDEN + 1)}
            for flags, named in (
                    ([f"--lora=one={folder}/none"], "adapter_config.json"),
                    (["--lora=one"], "NAME=FOLDER"),
                    ([f"--lora={BASE}={ONE}"], "is taken already"),
                    ([ADAPTERS, "--max-loras=1"], "--max-loras"),
                    ([ADAPTERS, "--max-lora-rank=4"], "--max-lora-rank"),
                    (["--lora=x=" + write_adapter(f"{folder}/dora", 3, use_dora=True)], "use_dora"),
                    (["--lora=x=" + write_adapter(f"{folder}/wide", 3, shapes=shapes)], "made for another model"),
                    (["--lora=x=" + write_adapter(f"{folder}/head", 3, shapes={"lm.x": (4, 4)})], "lm.x")):
                self.assertIn(named, self.start(*flags), flags)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main(verbosity=2)
