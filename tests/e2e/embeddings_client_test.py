#!/usr/bin/env python3
"""Embeddings, scores, ranks, logprobs of prompts and suffixes, by OpenAI's own client against real servers: one process, and
router, prefill and decode workers as processes of their own.

Usage: embeddings_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import json
import math
import random
import sys
import unittest
import urllib.error
import urllib.request

import openai

from served import House, Served, metric

BINARY = None
MODEL = "story-7m"
WORDS = "the a fox duck bridge lantern river went to said and with little red happy old friend".split()


def words(count, seed):
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(count))


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


class Answers:
    """What holds of every server; `server` is set by the classes below."""

    server = None

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        self.client = openai.OpenAI(base_url=f"http://{self.server.http}/v1", api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def post(self, path, body):
        request = urllib.request.Request(f"http://{self.server.http}{path}", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def embed(self, inputs, **options):
        return self.client.embeddings.create(model=MODEL, input=inputs, **options)

    def tokens(self, text):
        return self.post("/tokenize", {"prompt": text})[1]["tokens"]

    def refused(self, path, body, param, status=400):
        code, answer = self.post(path, body)
        self.assertEqual(code, status, answer)
        self.assertEqual(answer["error"]["param"], param, answer)
        return answer["error"]["message"]

    # ---- embeddings ----

    def test_all_forms_of_input_give_the_same_vectors(self):
        texts = [words(5, 1), words(40, 2), words(200, 3)]
        ids = [self.tokens(text) for text in texts]
        whole = self.embed(texts, encoding_format="float")
        self.assertEqual(whole.object, "list")
        self.assertEqual([each.index for each in whole.data], [0, 1, 2])
        self.assertEqual(whole.usage.prompt_tokens, sum(len(each) for each in ids))
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens)
        vectors = [each.embedding for each in whole.data]
        for vector in vectors:
            self.assertAlmostEqual(dot(vector, vector), 1, places=5)
        self.assertEqual([each.embedding for each in self.embed(ids, encoding_format="float").data], vectors)
        self.assertEqual(self.embed(texts[1], encoding_format="float").data[0].embedding, vectors[1])
        self.assertEqual(self.embed(ids[2], encoding_format="float").data[0].embedding, vectors[2])
        for each, vector in zip(self.embed(texts).data, vectors):  # the client asks for base64 by itself
            self.assertEqual(len(each.embedding), len(vector))
            for a, b in zip(each.embedding, vector):
                self.assertAlmostEqual(a, b, places=7)
        self.assertIsInstance(self.post("/v1/embeddings", {"input": "a", "encoding_format": "base64"})[1]
                              ["data"][0]["embedding"], str)

    def test_dimensions(self):
        whole = self.embed(words(9, 1), encoding_format="float").data[0].embedding
        cut = self.embed(words(9, 1), encoding_format="float", dimensions=16).data[0].embedding
        norm = math.sqrt(dot(whole[:16], whole[:16]))
        for a, b in zip(cut, whole[:16], strict=True):
            self.assertAlmostEqual(a, b / norm, places=5)
        self.assertIn(str(len(whole)), self.refused("/v1/embeddings", {"input": "a", "dimensions": len(whole) + 1}, "dimensions"))

    def test_a_batch_larger_than_what_runs_at_once(self):
        texts = [words(1 + i % 30, i) for i in range(300)]
        before = metric(self.server.http, "aisp_embedded_inputs_total")
        vectors = [each.embedding for each in self.embed(texts, encoding_format="float").data]
        self.assertEqual(metric(self.server.http, "aisp_embedded_inputs_total") - before, 300)
        for i in (0, 64, 299):
            self.assertEqual(self.embed(texts[i], encoding_format="float").data[0].embedding, vectors[i])

    def test_what_is_wrong_is_refused_by_name(self):
        path = "/v1/embeddings"
        self.refused(path, {}, "input")
        self.refused(path, {"input": []}, "input")
        self.refused(path, {"input": 3}, "input")
        self.refused(path, {"input": ["a", 3]}, "input[1]")
        self.refused(path, {"input": [[1, 10**9]]}, "input[0][1]")
        self.refused(path, {"input": "a", "encoding_format": "hex"}, "encoding_format")
        self.refused(path, {"input": "a", "dimensions": 0}, "dimensions")
        self.refused(path, {"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens")
        self.refused(path, {"input": "a", "model": "gpt-9"}, "model", 404)
        self.assertIn("2048", self.refused(path, {"input": ["a"] * 2049}, "input"))
        self.refused(path, {"input": "word " * 9000}, "input")
        self.refused("/v1/score", {"text_1": "a"}, "text_2")
        self.refused("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2")
        self.refused("/v1/rerank", {"documents": ["a"]}, "query")
        self.refused("/v1/rerank", {"query": "a", "documents": []}, "documents")
        self.refused("/v1/rerank", {"query": "a", "documents": [{"image": "x"}]}, "documents[0]")

    def test_scores_and_ranks_are_the_cosines_of_the_embeddings(self):
        query, texts = words(6, 1), [words(4 + i, i) for i in range(12)]
        vectors = [each.embedding for each in self.embed([query, *texts], encoding_format="float").data]
        expected = [dot(vectors[0], vector) for vector in vectors[1:]]
        code, scored = self.post("/v1/score", {"model": MODEL, "text_1": query, "text_2": texts})
        self.assertEqual(code, 200, scored)
        for each, score in zip(scored["data"], expected, strict=True):
            self.assertEqual(each["object"], "score")
            self.assertAlmostEqual(each["score"], score, places=5)
        pairs = self.post("/v1/score", {"text_1": texts[:3], "text_2": texts[:3]})[1]["data"]
        for each in pairs:
            self.assertAlmostEqual(each["score"], 1, places=5)
        code, ranked = self.post("/v1/rerank", {"model": MODEL, "query": query, "documents": texts, "top_n": 5})
        self.assertEqual(code, 200, ranked)
        results = ranked["results"]
        self.assertEqual([each["index"] for each in results],
                         sorted(range(12), key=lambda i: -expected[i])[:5])
        for each in results:
            self.assertEqual(each["document"]["text"], texts[each["index"]])
            self.assertAlmostEqual(each["relevance_score"], expected[each["index"]], places=5)
        bare = self.post("/v1/rerank", {"query": query, "documents": [{"text": texts[0]}], "return_documents": False})[1]
        self.assertNotIn("document", bare["results"][0])

    # ---- logprobs of prompts ----

    def logprob_after(self, ids, token):
        """Of `token` behind `ids`, by making the model draw it."""
        answer = self.client.completions.create(model=MODEL, prompt=ids, max_tokens=1, temperature=0, logprobs=3,
                                                logit_bias={str(token): 100}, extra_body={"ignore_eos": True})
        return answer.choices[0].logprobs.token_logprobs[0], answer.choices[0].logprobs.top_logprobs[0]

    def test_echo_with_logprobs(self):
        text = words(60, 11)
        ids = self.tokens(text)
        for again in range(2):  # the second time its KV is cached
            choice = self.client.completions.create(model=MODEL, prompt=ids, max_tokens=3, temperature=0, logprobs=3,
                                                    echo=True).choices[0]
            logprobs = choice.logprobs
            self.assertEqual(len(logprobs.tokens), len(ids) + 3)
            self.assertIsNone(logprobs.token_logprobs[0])
            self.assertIsNone(logprobs.top_logprobs[0])
            for i in (1, 2, len(ids) // 2, len(ids) - 1):
                alone, top = self.logprob_after(ids[:i], ids[i])
                self.assertAlmostEqual(logprobs.token_logprobs[i], alone, places=5)
                self.assertEqual(logprobs.top_logprobs[i].keys(), top.keys())
            self.assertEqual(logprobs.text_offset, sorted(logprobs.text_offset))
            for i, token in enumerate(logprobs.tokens[len(ids):], start=len(ids)):
                at = logprobs.text_offset[i]
                self.assertEqual(choice.text[at:at + len(token)], token)
        bare = self.client.completions.create(model=MODEL, prompt=ids, max_tokens=0, logprobs=3, echo=True).choices[0]
        self.assertEqual(bare.logprobs.token_logprobs, logprobs.token_logprobs[:len(ids)])
        self.assertEqual(bare.finish_reason, "length")
        self.assertEqual(bare.text, choice.text[:len(bare.text)])
        streamed = list(self.client.completions.create(model=MODEL, prompt=ids, max_tokens=3, temperature=0, logprobs=3,
                                                       echo=True, stream=True))
        parts = [each.choices[0] for each in streamed if each.choices and each.choices[0].logprobs]
        self.assertEqual("".join(each.text for each in parts), choice.text)
        self.assertEqual([value for each in parts for value in each.logprobs.token_logprobs], logprobs.token_logprobs)
        self.assertEqual([value for each in parts for value in each.logprobs.text_offset], logprobs.text_offset)

    def test_several_choices_share_the_logprobs_of_their_prompt(self):
        prompts = [words(30, 21), words(8, 22)]
        answer = self.client.completions.create(model=MODEL, prompt=prompts, max_tokens=2, n=2, seed=3,
                                                extra_body={"prompt_logprobs": 2})
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        for i, choice in enumerate(answer.choices):
            ids = self.tokens(prompts[i // 2])
            values = choice.prompt_logprobs
            self.assertEqual(len(values), len(ids))
            self.assertIsNone(values[0])
            for token, value in zip(ids[1:], values[1:]):
                own = value[str(token)]
                self.assertIn(len(value), (2, 3))
                self.assertEqual(own["rank"] <= 2, len(value) == 2)
                self.assertEqual(sorted(each["rank"] for each in value.values())[:2], [1, 2])
        self.assertEqual(answer.choices[0].prompt_logprobs, answer.choices[1].prompt_logprobs)

    def test_prompt_logprobs_of_a_chat(self):
        answer = self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Tell me a story about a duck."}], max_tokens=3,
            extra_body={"prompt_logprobs": 0})
        self.assertEqual(len(answer.prompt_logprobs), answer.usage.prompt_tokens)
        self.assertIsNone(answer.prompt_logprobs[0])
        self.assertTrue(all(len(each) == 1 for each in answer.prompt_logprobs[1:]))

    def test_echo_alone_may_want_no_token(self):
        choice = self.client.completions.create(model=MODEL, prompt="Once upon", max_tokens=0, echo=True).choices[0]
        self.assertEqual((choice.text, choice.finish_reason), ("Once upon", "length"))

    def test_what_cannot_be_had_of_prompts_is_refused_by_name(self):
        path = "/v1/completions"
        self.refused(path, {"prompt": "a", "max_tokens": 0}, "max_tokens")
        self.refused(path, {"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs")
        self.refused(path, {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs")
        self.refused(path, {"prompt": "a", "prompt_logprobs": 1, "echo": True, "logprobs": 1}, "prompt_logprobs")
        self.refused(path, {"prompt": "a", "logprobs": 1, "echo": True, "stream": True, "n": 2}, "n")
        self.assertIn("tokenizer", self.refused(path, {"prompt": "a", "suffix": "b"}, "suffix"))
        self.refused("/v1/chat/completions",
                     {"messages": [{"role": "user", "content": "a"}], "suffix": "b"}, "suffix")


class OneProcess(Answers, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served(BINARY)


class ChunksWithMeanPooling(Answers, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served(BINARY, "--pooling=mean", "--max-prefill-chunk=24")


class SplitWorkers(Answers, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = House(BINARY, "--pooling=mean")

    def test_the_same_as_of_one_process(self):
        one = Served(BINARY, "--pooling=mean")
        self.addCleanup(one.stop)
        texts = [words(3 * i + 1, i) for i in range(20)]
        with openai.OpenAI(base_url=f"http://{one.http}/v1", api_key="none") as alone:
            expected = alone.embeddings.create(model=MODEL, input=texts, encoding_format="float")
        here = self.embed(texts, encoding_format="float")
        self.assertEqual([each.embedding for each in here.data], [each.embedding for each in expected.data])

    def test_a_prefill_worker_is_not_asked_for_what_it_does_not_bring(self):
        raw = self.client.completions.with_raw_response.create(
            model=MODEL, prompt=words(90, 31), max_tokens=2, logprobs=1, echo=True,
            extra_headers={"x-aisp-prefill": "remote"})
        self.assertIn("prefill=local", raw.headers["x-aisp-route"])
        self.assertEqual(len(raw.parse().choices[0].logprobs.tokens), raw.parse().usage.total_tokens)


class SplitWorkersLastPosition(unittest.TestCase):
    def test_the_last_position_behind_kv_of_a_prefill_worker(self):
        house, one = House(BINARY, "--pooling=last"), Served(BINARY, "--pooling=last")
        self.addCleanup(house.stop)
        self.addCleanup(one.stop)
        texts = [words(60 + i, i) for i in range(6)]
        got = []
        for server, headers in ((house, {"x-aisp-prefill": "remote"}), (one, {})):
            with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none") as client:
                raw = client.embeddings.with_raw_response.create(model=MODEL, input=texts, encoding_format="float",
                                                                 extra_headers=headers)
            got.append([each.embedding for each in raw.parse().data])
            if headers:
                self.assertIn("reason=forced-remote", raw.headers["x-aisp-route"])
        self.assertEqual(*got)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main(verbosity=2)
