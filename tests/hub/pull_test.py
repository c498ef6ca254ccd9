#!/usr/bin/env python3
"""`aisp pull` against a stub of the hub on loopback: what lies in the cache, names, access, and what is refused.

Usage: pull_test.py BINARY [unittest's arguments]
"""

import json
import os
import subprocess
import tempfile
import unittest

from hub_case import BINARY, ROOT, WEIGHTS, HubTest
from stub_hub import Fault, Repo, safetensors, tiny_llama

SECRET = "hf_topsecret0123456789"


class Cache(HubTest):
    """What lies on disk afterwards is what Hugging Face's own tools would have put there."""

    def test_layout_and_content(self):
        folder = self.assert_pulled(self.pull())
        self.assertEqual(folder, os.path.join(self.model_folder(), "snapshots", self.repo.commit))
        with open(os.path.join(self.model_folder(), "refs", "main"), encoding="ascii") as file:
            self.assertEqual(file.read(), self.repo.commit)
        wanted = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                  WEIGHTS}
        self.assertEqual(set(os.listdir(folder)), wanted)
        for name in wanted:
            path = os.path.join(folder, name)
            self.assertEqual(os.readlink(path), f"../../blobs/{self.repo.hash(name)}")
            with open(path, "rb") as file:
                self.assertEqual(file.read(), self.repo.files[name], name)
        self.assertEqual(set(self.blobs()), {self.repo.hash(name) for name in wanted})

    def test_only_what_is_needed_comes(self):
        self.repo.files = tiny_llama(shards=3)
        self.repo.files["model-00009-of-00009.safetensors"] = b"not in the index"
        self.repo.files[WEIGHTS] = b"the same weights once more"
        folder = self.assert_pulled(self.pull())
        self.assertIn("model-00003-of-00003.safetensors", os.listdir(folder))
        for name in ("README.md", "pytorch_model.bin", "consolidated.safetensors", "model-00009-of-00009.safetensors", WEIGHTS):
            self.assertEqual(self.hub.seen("GET", name=name), [], name)

    def test_again_nothing_comes(self):
        self.assert_pulled(self.pull())
        before = len(self.hub.seen("GET"))
        self.assert_pulled(self.pull())
        self.assertEqual(len(self.hub.seen("GET")), before)

    def test_where_the_cache_lies(self):
        for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            with tempfile.TemporaryDirectory() as other:
                folder = self.assert_pulled(self.pull(**{variable: other}))
                self.assertTrue(folder.startswith(other + "/models--org--tiny/"), folder)
        with tempfile.TemporaryDirectory() as home:
            env = self.environment(HOME=home)
            del env["HF_HOME"]
            env.pop("XDG_CACHE_HOME", None)
            ran = subprocess.run([BINARY, "pull", "org/tiny"], capture_output=True, text=True, env=env, check=False)
            self.assertTrue(self.assert_pulled(ran).startswith(home + "/.cache/huggingface/hub/"), ran.stdout)

    def test_revisions(self):
        self.repo.revisions |= {"v1.0", "refs/pr/3"}
        for revision in ("v1.0", "refs/pr/3"):
            self.assert_pulled(self.pull("org/tiny@" + revision))
            self.assertTrue(os.path.exists(os.path.join(self.model_folder(), "refs", *revision.split("/"))))
        self.assert_pulled(self.pull("org/tiny@" + self.repo.commit))
        self.assert_refused(self.pull("org/tiny@nope"), "org/tiny@nope", "404", "no such branch, tag or commit")

    def test_a_branch_that_moved_is_followed_by_pull_and_not_by_serving(self):
        self.assert_pulled(self.pull())
        moved = Repo({**self.repo.files, "generation_config.json": b'{"temperature": 0.25}'}, commit="b" * 40)
        self.hub.repos["org/tiny"] = moved
        before = len(self.hub.requests)
        ran = self.run_aisp("info", "org/tiny")
        self.assertEqual(len(self.hub.requests), before, "what is on disk is taken as it is")
        self.assertIn(self.repo.commit, ran.stdout + ran.stderr)
        self.assertIn("b" * 40, self.assert_pulled(self.pull()))
        self.assertEqual(len(self.hub.seen("GET", "cdn", WEIGHTS)), 2, "the weights are the same blob (header and rest)")

    def test_a_new_commit_that_cannot_be_pulled_leaves_the_old_one(self):
        self.assert_pulled(self.pull())
        self.hub.repos["org/tiny"] = Repo({**self.repo.files, WEIGHTS: tiny_llama(500_000)[WEIGHTS]}, commit="b" * 40)
        self.fault(fault=Fault(status=403), where="cdn")
        self.assertEqual(self.pull().returncode, 1)
        self.assertIn(self.repo.commit, self.assert_pulled(self.pull(HF_HUB_OFFLINE="1")))


class Names(HubTest):
    def test_wrong_names(self):
        for name in ("tiny", "a/b/c", "../x/y", "org/", "org/a..b", "org/ti ny", "org/tiny@", "org/tiny@../x", "-o/x",
                     "org/" + "x" * 97):
            ran = self.pull(name)
            self.assertEqual(ran.returncode, 2, f"{name}: {ran.stderr}")
            self.assertIn(name[:60], ran.stderr)
        self.assertEqual(self.hub.requests, [])

    def test_a_folder_wins_over_the_hub(self):
        with tempfile.TemporaryDirectory() as work:
            os.makedirs(os.path.join(work, "org", "tiny"))
            ran = self.run_aisp("info", "org/tiny", cwd=work)
            self.assert_refused(ran, "org/tiny/config.json")
            self.assertEqual(self.hub.requests, [])

    def test_what_was_tried_is_said(self):
        self.assert_refused(self.run_aisp("info", "org/tiny"), "'org/tiny' is not a folder", self.cache, "aisp pull org/tiny")
        self.assert_refused(self.run_aisp("generate", "x", "--model=nothing"), "is not a folder", "org/name", "llama-3.1-8b")
        self.assert_refused(self.run_aisp("generate", "x", "--model=llama-3.1-8b"), "is a shape", "--weights random")
        self.assert_refused(self.run_aisp("generate", "x", "--model=./org/tiny"), "is not a folder")
        self.assertEqual(self.hub.requests, [])

    def test_a_shape_and_the_built_in_model_need_no_hub(self):
        for args in ((), ("--model=llama-3.1-8b", "--weights=random:1"), (f"--model={ROOT}/models/story-7m",)):
            self.assertTrue(os.path.exists(self.assert_pulled(self.run_aisp("pull", *args))))
        self.assertEqual(self.hub.requests, [])


class Access(HubTest):
    def test_the_token_goes_to_the_hub_alone_and_nowhere_into_what_is_printed(self):
        self.hub.token = SECRET
        ran = self.pull(HF_TOKEN=SECRET)
        self.assert_pulled(ran)
        self.assertTrue(all(r.headers.get("authorization") == f"Bearer {SECRET}" for r in self.hub.seen(where="hub")))
        self.assertTrue(self.hub.seen(where="cdn"))
        self.assertTrue(all("authorization" not in r.headers for r in self.hub.seen(where="cdn")))
        self.hub.token = "another"
        refused = self.pull(HF_TOKEN=SECRET)
        self.assertNotIn(SECRET, ran.stdout + ran.stderr + refused.stdout + refused.stderr)
        self.assertNotIn("signature", ran.stdout + ran.stderr)

    def test_the_token_of_a_file(self):
        self.hub.token = SECRET
        with open(os.path.join(self.home, "token"), "w", encoding="ascii") as file:
            file.write(SECRET + "\n")
        self.assert_pulled(self.pull())

    def test_401_without_and_with_a_token(self):
        self.hub.token = SECRET
        self.assert_refused(self.pull(), "org/tiny", "401", "set HF_TOKEN")
        self.assert_refused(self.pull(HF_TOKEN="wrong"), "401", "does not allow it, or has expired")
        self.assertEqual(len(self.hub.requests), 2, "neither is tried again")

    def test_a_token_that_would_break_the_header(self):
        self.assert_refused(self.pull(HF_TOKEN="a b"), "HF_TOKEN")

    def test_403_and_404(self):
        self.fault(fault=Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), name="config.json", times=1)
        self.assert_refused(self.pull(HF_TOKEN="x"), "403", "GatedRepo", "terms")
        self.assert_refused(self.pull("org/none"), "org/none", "404", "no such model")
        del self.repo.files[WEIGHTS]
        self.assert_refused(self.pull(), "neither model.safetensors nor model.safetensors.index.json")
        self.repo.files.update(tiny_llama(shards=2))
        del self.repo.files["model-00002-of-00002.safetensors"]
        self.assert_refused(self.pull(), "model-00002-of-00002.safetensors", "its index names")
        self.assertEqual(self.hub.seen("GET", "cdn"), [])

    def test_a_renamed_model_is_found_through_a_relative_redirect(self):
        self.hub.repos["new/name"] = self.repo
        self.hub.token = SECRET

        def renamed(request):
            if request.where == "hub" and request.path.startswith("/org/tiny/"):
                return Fault(status=307, headers={"Location": request.path.replace("/org/tiny/", "/new/name/")})
            return None

        self.hub.faults.append(renamed)
        self.assert_pulled(self.pull(HF_TOKEN=SECRET))

    def test_redirects_without_end(self):
        self.hub.faults.append(lambda r: Fault(status=302, headers={"Location": r.path}))
        self.assert_refused(self.pull(), "redirects")

    def test_an_endpoint_that_is_none(self):
        self.assert_refused(self.pull(HF_ENDPOINT="ftp://x"), "HF_ENDPOINT", "ftp://x")
        self.assert_refused(self.pull(HF_HUB_DOWNLOAD_TIMEOUT="soon"), "HF_HUB_DOWNLOAD_TIMEOUT")

    def test_offline(self):
        self.assert_refused(self.pull(HF_HUB_OFFLINE="1"), "org/tiny", "HF_HUB_OFFLINE")
        self.assert_refused(self.run_aisp("generate", "x", "--model=org/tiny", HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE", self.cache)
        self.assertEqual(self.hub.requests, [])
        folder = self.assert_pulled(self.pull())
        before = len(self.hub.requests)
        self.assertEqual(self.assert_pulled(self.pull(HF_HUB_OFFLINE="1")), folder)
        os.unlink(os.path.join(folder, WEIGHTS))
        self.assert_refused(self.pull(HF_HUB_OFFLINE="1"), "in part", WEIGHTS)
        self.assertEqual(len(self.hub.requests), before)


class Refused(HubTest):
    """What cannot be served is refused before its weights come."""

    def assert_no_weights(self, ran, *words, at_most=0):
        self.assert_refused(ran, "weights were not downloaded", *words)
        sent = sum(r.sent for r in self.hub.seen("GET", "cdn"))
        self.assertLessEqual(sent, at_most)

    def test_by_its_architecture(self):
        self.repo.files = tiny_llama(architecture="FooForCausalLM")
        self.assert_no_weights(self.pull(), "FooForCausalLM")

    def test_by_its_index(self):
        self.repo.files = tiny_llama(shards=2)
        index = json.loads(self.repo.files["model.safetensors.index.json"])
        del index["weight_map"]["model.layers.1.input_layernorm.weight"]
        self.repo.files["model.safetensors.index.json"] = json.dumps(index).encode()
        self.assert_no_weights(self.pull(), "model.layers.1.input_layernorm.weight")

    def test_by_an_index_that_leads_out_of_the_folder(self):
        self.repo.files = tiny_llama(shards=2)
        self.repo.files["model.safetensors.index.json"] = json.dumps(
            {"weight_map": {"model.embed_tokens.weight": "../../../x.safetensors"}}).encode()
        self.assert_refused(self.pull(), "../../../x.safetensors", "no name of a .safetensors file")
        self.assertEqual(self.hub.seen("GET", "cdn"), [])

    def test_by_the_header_of_its_weights(self):
        self.repo.files = tiny_llama(4_000_000, dtype="I16")
        self.assert_no_weights(self.pull(), "I16", at_most=200_000)

    def test_by_a_shape_that_is_not_the_configs(self):
        config = json.loads(self.repo.files["config.json"])
        config["vocab_size"] += 1
        self.repo.files["config.json"] = json.dumps(config).encode()
        self.assert_no_weights(self.pull(), "model.embed_tokens.weight", at_most=200_000)

    def test_by_a_file_that_is_no_safetensors(self):
        self.repo.files[WEIGHTS] = b"\xff" * 200_000
        self.assert_refused(self.pull(), WEIGHTS, "not a safetensors file")
        self.repo.files[WEIGHTS] = safetensors({"model.norm.weight": ("BF16", [64], b"\0" * 128)})[:-1]
        self.assert_refused(self.pull(), WEIGHTS)


if __name__ == "__main__":
    unittest.main()
