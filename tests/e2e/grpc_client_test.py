#!/usr/bin/env python3
"""A client that knows nothing of aisp but its address: it lists the services by server reflection, fetches the descriptors, builds a
request from them and reads the answer; then health, a deadline and a cancelled call.

Usage: grpc_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import json
import sys
import unittest
import urllib.error
import urllib.request

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from served import LOG, Served, metric

SERVER = None


class GrpcClient(unittest.TestCase):
    def setUp(self):
        self.channel = grpc.insecure_channel(SERVER.grpc)
        self.addCleanup(self.channel.close)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def method(self, name):
        """(callable, request class) of a method of aisp.v1.Inference, made of nothing but the descriptors."""
        method = self.pool.FindServiceByName("aisp.v1.Inference").FindMethodByName(name)
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call = make(f"/aisp.v1.Inference/{name}", request_serializer=request.SerializeToString,
                    response_deserializer=response.FromString)
        return call, request

    def test_services_are_listed(self):
        services = set(self.database.get_services())
        self.assertIn("aisp.v1.Inference", services)
        self.assertIn("grpc.health.v1.Health", services)
        self.assertNotIn("aisp.v1.RouterControl", services)

    def test_a_request_built_from_descriptors_is_answered(self):
        generate, request = self.method("Generate")
        chat = request(temperature=0, max_tokens=12)
        chat.chat.messages.add(role="user", content="Tell me a story about a duck.")
        call = generate(chat, metadata=[("x-request-id", "by-reflection")])
        self.assertIn(("x-request-id", "by-reflection"), tuple(call.initial_metadata()))
        events = list(call)
        text = "".join(e.choice.text for e in events if e.WhichOneof("event") == "choice")
        self.assertGreater(len(text), 5)
        self.assertEqual(events[-1].usage.completion_tokens, 12)
        self.assertEqual(events[-2].choice.finish_reason, "length")
        list_models, nothing = self.method("ListModels")
        self.assertEqual(list_models(nothing()).models[0].id, "story-7m")

    def test_logprobs_of_the_prompt_come_with_the_first_event(self):
        generate, request = self.method("Generate")
        for asked in ({"prompt_logprobs": 2}, {"echo": True, "logprobs": 2}):
            wanted = request(prompt="Once upon a time there was a duck.", max_tokens=2, temperature=0, **asked)
            events = list(generate(wanted))
            first = events[0].choice
            self.assertEqual(len(first.prompt_logprobs), events[-1].usage.prompt_tokens - 1)
            for token in first.prompt_logprobs:
                self.assertLessEqual(token.logprob, 0)
                self.assertEqual(len(token.top), 2)
                self.assertGreaterEqual(token.rank, 1)
            self.assertFalse(any(e.choice.prompt_logprobs for e in events[1:-1]))
        with self.assertRaises(grpc.RpcError) as refused:
            list(generate(request(prompt="a", suffix="b", max_tokens=2)))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def http(self, path, body):
        """(status, answer) of the same question over HTTP."""
        request = urllib.request.Request(f"http://{SERVER.http}{path}", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def test_embeddings_scores_and_ranks_are_those_of_http(self):
        texts = ["A duck swam.", "The fox slept all day in the sun.", "Tom and his red ball"]
        embed, request = self.method("Embed")
        call = embed.with_call(request(input=texts), metadata=[("x-request-id", "by-reflection")])
        got, metadata = call[0], dict(call[1].initial_metadata())
        self.assertEqual(metadata["x-request-id"], "by-reflection")
        self.assertIn("prefill=", metadata["x-aisp-route"])
        expected = self.http("/v1/embeddings", {"input": texts})[1]
        self.assertEqual([each.index for each in got.data], [0, 1, 2])
        self.assertEqual((got.model, got.prompt_tokens), (expected["model"], expected["usage"]["prompt_tokens"]))
        for mine, theirs in zip(got.data, expected["data"]):
            self.assertEqual(len(mine.embedding), len(theirs["embedding"]))
            for a, b in zip(mine.embedding, theirs["embedding"]):
                self.assertAlmostEqual(a, b, places=6)
        cut = request(dimensions=5)
        for ids in ([5, 6, 7], [9]):
            cut.input_token_ids.add(ids=ids)
        expected = self.http("/v1/embeddings", {"input": [[5, 6, 7], [9]], "dimensions": 5})[1]["data"]
        for mine, theirs in zip(embed(cut).data, expected):
            self.assertEqual(len(mine.embedding), 5)
            for a, b in zip(mine.embedding, theirs["embedding"]):
                self.assertAlmostEqual(a, b, places=6)

        score, request = self.method("Score")
        for first in (texts[:1], texts):
            got = score(request(text_1=first, text_2=texts))
            expected = self.http("/v1/score", {"text_1": first, "text_2": texts})[1]
            self.assertEqual(got.prompt_tokens, expected["usage"]["prompt_tokens"])
            self.assertEqual(len(got.scores), 3)
            for a, b in zip(got.scores, expected["data"]):
                self.assertAlmostEqual(a, b["score"], places=6)

        rerank, request = self.method("Rerank")
        for options in ({}, {"top_n": 2}, {"return_documents": False}):
            asked = {"query": "a fox", "documents": texts, **options}
            got, expected = rerank(request(**asked)), self.http("/v1/rerank", asked)[1]
            self.assertEqual([each.index for each in got.results], [each["index"] for each in expected["results"]])
            for a, b in zip(got.results, expected["results"]):
                self.assertAlmostEqual(a.relevance_score, b["relevance_score"], places=6)
                self.assertEqual(a.HasField("document"), "document" in b)
                self.assertEqual(a.document, b.get("document", {"text": ""})["text"])

    def test_refusals_of_vectors_are_those_of_http(self):
        codes = {400: grpc.StatusCode.INVALID_ARGUMENT, 404: grpc.StatusCode.NOT_FOUND}
        for name, path, asked in (
                ("Embed", "/v1/embeddings", {}),
                ("Embed", "/v1/embeddings", {"input": ["a"], "dimensions": 0}),
                ("Embed", "/v1/embeddings", {"input": ["a"], "dimensions": 100000}),
                ("Embed", "/v1/embeddings", {"input": ["a"], "model": "another"}),
                ("Embed", "/v1/embeddings", {"input": ["a"] * 5000}),
                ("Score", "/v1/score", {"text_1": ["a"]}),
                ("Score", "/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
                ("Rerank", "/v1/rerank", {"documents": ["a"]}),
                ("Rerank", "/v1/rerank", {"query": "a"}),
                ("Rerank", "/v1/rerank", {"query": "a", "documents": ["a"], "top_n": -1})):
            call, request = self.method(name)
            status, answer = self.http(path, asked)
            with self.assertRaises(grpc.RpcError) as caught:
                call(request(**asked))
            error = caught.exception
            self.assertEqual(error.code(), codes[status], (name, asked))
            self.assertEqual(error.details(), answer["error"]["message"])
            self.assertEqual(dict(error.trailing_metadata()).get("error-param"), answer["error"]["param"])
        embed, request = self.method("Embed")
        both = request(input=["a"])
        both.input_token_ids.add(ids=[1])
        with self.assertRaises(grpc.RpcError) as caught:
            embed(both)
        self.assertIn(("error-param", "input_token_ids"), tuple(caught.exception.trailing_metadata()))

    def test_constraints_are_carried(self):
        generate, request = self.method("Generate")
        wanted = request(max_tokens=200, seed=5)
        wanted.chat.messages.add(role="user", content="Tell me a story about a duck.")
        wanted.structured_outputs.disable_any_whitespace = True
        wanted.structured_outputs.json = '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"],' \
                                         '"additionalProperties": false}'
        text = "".join(e.choice.text for e in generate(wanted) if e.WhichOneof("event") == "choice")
        age = json.loads(text)["age"]
        self.assertEqual(age, int(age), "9.0 is an integer in JSON Schema, 9.5 is none")
        wanted.structured_outputs.regex = "a+"
        with self.assertRaises(grpc.RpcError) as caught:
            list(generate(wanted))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        tools = request(max_tokens=200, seed=5, prompt="once")
        tools.tool_choice.string_value = "required"
        with self.assertRaises(grpc.RpcError) as caught:
            list(generate(tools))
        self.assertIn(("error-param", "tool_choice"), tuple(caught.exception.trailing_metadata()))

    def test_errors_come_with_code_words_and_metadata(self):
        generate, request = self.method("Generate")
        with self.assertRaises(grpc.RpcError) as caught:
            list(generate(request(prompt="once", temperature=-1)))
        error = caught.exception
        self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("temperature must be", error.details())
        self.assertIn(("error-param", "temperature"), tuple(error.trailing_metadata()))

    def test_health(self):
        stub = health_pb2_grpc.HealthStub(self.channel)
        self.assertEqual(stub.Check(health_pb2.HealthCheckRequest()).status, health_pb2.HealthCheckResponse.SERVING)

    def test_cancelling_and_deadlines_leave_nothing_running(self):
        generate, request = self.method("Generate")
        endless = request(prompt="Once upon a time", max_tokens=1800, ignore_eos=True)
        call = generate(endless)
        next(iter(call))
        call.cancel()
        with self.assertRaises(grpc.RpcError) as caught:
            list(generate(endless, timeout=0.2))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertTrue(LOG.await_(lambda: metric(SERVER.http, "aisp_active_requests") == 0, answers=True))


if __name__ == "__main__":
    SERVER = Served(sys.argv.pop())
    try:
        unittest.main()
    finally:
        SERVER.stop()
