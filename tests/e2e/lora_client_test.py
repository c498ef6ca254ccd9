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
import threading
import unittest
import urllib.error
import urllib.request

import openai

from served import LOG, House, Router, Served, Worker

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


def loras(http, most=16):
    """(running, waiting) adapters by the one series of the gateway's metric."""
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        series = [line for line in answer.read().decode().splitlines() if line.startswith("aisp_lora_requests_info{")]
    assert len(series) == 1, series
    assert f'max_lora="{most}"' in series[0]
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
        self.assertTrue(LOG.await_(lambda: loras(self.server.http) == ("", ""), answers=True))


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


def call(address, path, headers=None, **body):
    """Status and JSON of a POST."""
    request = urllib.request.Request(f"http://{address}/v1/{path}", json.dumps(body).encode(), headers or {})
    try:
        with urllib.request.urlopen(request, timeout=150) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def load(address, name, path, **more):
    return call(address, "load_lora_adapter", lora_name=name, lora_path=path, **more)


def unload(address, name):
    return call(address, "unload_lora_adapter", lora_name=name)


def why(answer):
    return answer[1]["error"]["message"]


class Asking:
    def client_of(self, http):
        client = openai.OpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0)
        self.addCleanup(client.close)
        return client

    def names(self, http):
        return [each.id for each in self.client_of(http).models.list().data]

    def text(self, http, model, headers=None, **options):
        answer = self.client_of(http).completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0,
                                                         extra_headers=headers, **options)
        return answer.choices[0].text

    def eventually(self, done, answers=False):
        self.assertTrue(LOG.await_(done, answers))


def expected_texts():
    """By name, of a process that has had both from its start."""
    server = Served(BINARY, ADAPTERS)
    try:
        with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none") as client:
            return {model: client.completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0).choices[0].text
                    for model in (BASE, "one", "two")}
    finally:
        server.stop()


class LoadedWhileItRuns(Asking, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = expected_texts()
        cls.server = Served(BINARY, f"--lora=one={ONE}", "--runtime-lora", "--max-loras=2")
        cls.addClassCleanup(cls.server.stop)

    def test_loaded_used_replaced_and_unloaded(self):
        http, admin = self.server.http, self.server.admin
        self.assertEqual(self.names(http), [BASE, "one"])
        status, said = load(admin, "new", TWO)
        self.assertEqual((status, said["name"]), (200, "new"))
        self.assertIn("Success", said["message"])
        self.assertEqual(self.names(http), [BASE, "one", "new"])
        self.assertEqual(self.client_of(http).models.retrieve("new").parent, BASE)
        for model, text in ((BASE, BASE), ("one", "one"), ("new", "two")):
            self.assertEqual(self.text(http, model), self.expected[text])
        # Mixed in one batch.
        streams = [(text, self.client_of(http).completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0, stream=True))
                   for _ in range(4) for model, text in ((BASE, BASE), ("one", "one"), ("new", "two"))]
        for text, stream in streams:
            self.assertEqual("".join(each.choices[0].text for each in stream if each.choices), self.expected[text])
        # Requests that must be refused.
        self.assertEqual(load(admin, "new", ONE)[0], 400)
        self.assertEqual(load(admin, BASE, ONE)[0], 400)
        full = load(admin, "third", TWO)
        self.assertEqual(full[0], 400)
        self.assertIn("--max-loras", why(full))
        self.assertEqual(unload(admin, "third")[0], 404)
        self.assertEqual(call(admin, "load_lora_adapter", lora_name="x")[0], 400)
        self.assertEqual(call(admin, "load_lora_adapter", lora_name="x", lora_path=ONE, rank=3)[0], 400)
        # A different adapter under the same name while every slot is taken: the new files are used.
        self.assertEqual(load(admin, "new", ONE, load_inplace=True)[0], 200)
        self.assertEqual(self.text(http, "new"), self.expected["one"])
        self.assertEqual(unload(admin, "new")[0], 200)
        self.assertEqual(self.names(http), [BASE, "one"])
        with self.assertRaises(openai.NotFoundError) as caught:
            self.text(http, "new")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_an_unloaded_one_finishes_what_runs(self):
        http, admin = self.server.http, self.server.admin
        self.assertEqual(load(admin, "leaving", TWO)[0], 200)
        ask = dict(model="leaving", prompt=PROMPT, max_tokens=1500, temperature=0, extra_body={"ignore_eos": True})
        whole = self.client_of(http).completions.create(**ask).choices[0].text
        stream = self.client_of(http).completions.create(**ask, stream=True)
        text = next(iter(stream)).choices[0].text
        self.assertEqual(loras(http, 2)[0], "leaving")
        self.assertEqual(unload(admin, "leaving")[0], 200)
        with self.assertRaises(openai.NotFoundError):
            self.text(http, "leaving")
        text += "".join(each.choices[0].text for each in stream if each.choices)
        self.assertEqual(text, whole)
        # Its slot is free again.
        self.eventually(lambda: load(admin, "next", TWO)[0] == 200)
        self.assertEqual(loras(http, 2), ("", ""))
        self.assertEqual(self.text(http, "next"), self.expected["two"])
        self.assertEqual(unload(admin, "next")[0], 200)

    def test_files_that_cannot_be_served_are_refused_by_name(self):
        admin = self.server.admin
        with tempfile.TemporaryDirectory() as folder:
            shapes = {"self_attn.q_proj": (Q, HIDDEN + 1)}
            for path, named in ((f"{folder}/none", "adapter_config.json"),
                                (write_adapter(f"{folder}/dora", 3, use_dora=True), "use_dora"),
                                (write_adapter(f"{folder}/wide", 3, shapes=shapes), "made for another model"),
                                (write_adapter(f"{folder}/rank", 3, rank=200), "--max-lora-rank"),
                                (write_adapter(f"{folder}/head", 3, shapes={"lm.x": (4, 4)}), "lm.x")):
                refused = load(admin, "bad", path)
                self.assertEqual(refused[0], 400, refused)
                self.assertIn(named, why(refused))
        self.assertNotIn("bad", self.names(self.server.http))

    def test_answers_are_of_one_adapter_while_names_change_hands(self):
        http, admin = self.server.http, self.server.admin
        allowed, wrong, served, over = {self.expected["one"], self.expected["two"]}, [], [], threading.Event()

        def ask(number):
            while not over.is_set():
                try:
                    text = self.text(http, "swapped", extra_body={"cache_salt": f"swap {number}"})
                    served.append(text)
                    if text not in allowed:
                        wrong.append(text)
                except openai.NotFoundError:
                    pass
        askers = [threading.Thread(target=ask, args=(i % 2,)) for i in range(6)]
        for asker in askers:
            asker.start()
        try:
            for i in range(40):
                path = (ONE, TWO)[i % 2]
                self.eventually(lambda p=path: load(admin, "swapped", p, load_inplace=True)[0] == 200, answers=True)
                if i % 4 == 3:
                    self.assertEqual(unload(admin, "swapped")[0], 200)
        finally:
            over.set()
            for asker in askers:
                asker.join()
        self.assertEqual(wrong, [])
        self.assertEqual(set(served), allowed)
        unload(admin, "swapped")

    def test_the_port_of_clients_does_not_know_it(self):
        for path in ("load_lora_adapter", "unload_lora_adapter"):
            refused = call(self.server.http, path, lora_name="x", lora_path=ONE)
            self.assertEqual(refused[0], 404)
            self.assertIn("admin port", why(refused))
        led_here = call(self.server.admin, "load_lora_adapter", {"origin": "http://elsewhere.example"}, lora_name="x", lora_path=ONE)
        self.assertEqual(led_here[0], 403)


class WhoMayLoad(Asking, unittest.TestCase):
    def test_nobody_unless_the_settings_allow_it(self):
        server = Served(BINARY, f"--lora=one={ONE}")
        self.addCleanup(server.stop)
        for refused in (load(server.admin, "two", TWO), unload(server.admin, "one")):
            self.assertEqual(refused[0], 403)
            self.assertIn("--runtime-lora", why(refused))
        self.assertEqual(self.names(server.http), [BASE, "one"])

    def test_the_admin_key_where_there_is_one(self):
        with tempfile.NamedTemporaryFile("w") as key:
            key.write("sesame")
            key.flush()
            server = Served(BINARY, "--runtime-lora", "--router.admin=key", f"--router.admin_key_file={key.name}")
            self.addCleanup(server.stop)
            wish = {"lora_name": "one", "lora_path": ONE}
            self.assertEqual(call(server.admin, "load_lora_adapter", **wish)[0], 401)
            self.assertEqual(call(server.admin, "load_lora_adapter", {"authorization": "Bearer other"}, **wish)[0], 401)
            self.assertEqual(call(server.admin, "load_lora_adapter", {"authorization": "Bearer sesame"}, **wish)[0], 200)
            self.assertEqual(self.names(server.http), [BASE, "one"])


class SeveralProcesses(Asking, unittest.TestCase):
    """Two routers, a prefill and two decode workers."""

    FLAGS = ("--runtime-lora", f"--lora=one={ONE}")

    def router(self, listen="127.0.0.1:0"):
        router = Router(BINARY, f"--router-listen={listen}", *self.FLAGS)
        self.addCleanup(router.stop)
        return router

    def worker(self, role, name, *flags):
        worker = Worker(BINARY, role, name, ",".join(each.workers for each in self.routers), "--device=cpu", *self.FLAGS, *flags)
        self.addCleanup(worker.stop)
        return worker

    def setUp(self):
        self.routers = [self.router(), self.router()]

    def workers_of(self, router):
        with urllib.request.urlopen(f"http://{router.admin}/admin/workers") as answer:
            return {each["id"]: each for each in json.loads(answer.read())["workers"]}

    def await_workers(self, *names):
        for router in self.routers:
            self.eventually(lambda r=router: all(self.workers_of(r).get(name, {}).get("state") == "ready" for name in names))

    def test_every_router_and_every_worker_has_it(self):
        expected = expected_texts()
        self.worker("prefill", "p0")
        first = self.worker("decode", "d0")
        self.await_workers("p0", "d0")
        near, far = self.routers
        self.assertEqual(load(near.admin, "two", TWO)[0], 200)
        self.assertIn("two", self.names(near.http))
        self.eventually(lambda: "two" in self.names(far.http))
        for i, router in enumerate(self.routers):
            for model in (BASE, "one", "two"):
                remote = {"x-aisp-prefill": "remote"}
                raw = self.client_of(router.http).completions.with_raw_response.create(
                    model=model, prompt=PROMPT, max_tokens=24, temperature=0, extra_headers=remote,
                    extra_body={"cache_salt": f"{i} {model}"})
                self.assertIn("reason=forced-remote", raw.headers["x-aisp-route"])
                self.assertEqual(raw.parse().choices[0].text, expected[model])
        # A worker that starts later, and one that restarts.
        self.worker("decode", "d1")
        self.await_workers("d1")
        first.kill()
        self.eventually(lambda: "d0" not in self.workers_of(near) and "d0" not in self.workers_of(far))
        for router in self.routers:
            self.eventually(lambda r=router: self.served(r, "two") == expected["two"])
        self.worker("decode", "d0")
        self.await_workers("d0")
        # A restarted router learns of the adapter from the workers.
        far.process.kill()
        far.process.wait()
        self.routers[1] = far = self.router(far.workers)
        self.await_workers("p0", "d0", "d1")
        self.assertEqual(self.names(far.http), [BASE, "one", "two"])
        self.assertEqual(self.served(far, "two"), expected["two"])
        # And unloaded, through the other router.
        self.assertEqual(unload(far.admin, "two")[0], 200)
        self.assertEqual(unload(far.admin, "one")[0], 200)
        self.eventually(lambda: self.names(near.http) == [BASE])
        with self.assertRaises(openai.NotFoundError):
            self.text(near.http, "two")
        self.assertEqual(self.served(near, BASE), expected[BASE])

    def served(self, router, model):
        """None: there is no worker for it at the moment."""
        try:
            return self.text(router.http, model)
        except openai.APIStatusError as error:
            self.assertIn(error.status_code, (503,), error)
            return None

    def test_all_of_them_or_none(self):
        near, far = self.routers
        refused = load(near.admin, "two", TWO)
        self.assertEqual(refused[0], 503)
        self.assertIn("no worker", why(refused))
        self.worker("decode", "d0")
        narrow = self.worker("decode", "d1", "--max-lora-rank=4")
        self.await_workers("d0", "d1")
        refused = load(near.admin, "two", TWO)
        self.assertEqual(refused[0], 400)
        self.assertIn("worker d1: ", why(refused))
        self.assertIn("--max-lora-rank", why(refused))
        self.assertEqual(self.names(near.http), [BASE, "one"])
        # Without that worker; and when it returns it gets no requests for an adapter that it cannot
        # load.
        narrow.kill()
        self.eventually(lambda: "d1" not in self.workers_of(near) and "d1" not in self.workers_of(far))
        self.assertEqual(load(far.admin, "two", TWO)[0], 200)
        self.worker("decode", "d1", "--max-lora-rank=4")
        self.await_workers("d1")
        for router in self.routers:
            self.eventually(lambda r=router: "two" in self.names(r.http))
            for i in range(4):
                raw = self.client_of(router.http).completions.with_raw_response.create(
                    model="two", prompt=f"{PROMPT} {i}", max_tokens=2)
                self.assertIn("decode=d0", raw.headers["x-aisp-route"])


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main(verbosity=2)
