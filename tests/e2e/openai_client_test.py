#!/usr/bin/env python3
"""OpenAI's own Python client, unmodified, against a real server.

Usage: openai_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import asyncio
import os
import sys
import tempfile
import unittest

import openai

from served import LOG, Served, metric

SERVER = None
KEY = "sk-test-of-the-client"
STORY = [{"role": "user", "content": "Tell me a story about a duck."}]
MODEL = "story-7m"


def client(**options):
    return openai.OpenAI(**{"base_url": f"http://{SERVER.http}/v1", "api_key": KEY, "max_retries": 0, **options})


class OpenAiClient(unittest.TestCase):
    def setUp(self):
        self.client = client()
        self.addCleanup(self.client.close)

    def chat(self, **options):
        return self.client.chat.completions.create(
            **{"model": MODEL, "messages": STORY, "temperature": 0, "max_tokens": 24, **options})

    def test_models(self):
        models = self.client.models.list()
        self.assertEqual([model.id for model in models], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).object, "model")

    def test_chat_streamed_says_the_same_as_whole(self):
        whole = self.chat()
        self.assertEqual(whole.object, "chat.completion")
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(whole.usage.completion_tokens, 24)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + 24)
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], ["length"])
        self.assertEqual(chunks[-1].usage.completion_tokens, 24)
        self.assertEqual({c.id for c in chunks}, {chunks[0].id})

    def test_stream_helper(self):
        with self.client.chat.completions.stream(model=MODEL, messages=STORY, temperature=0, stop=["."]) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].finish_reason, "stop")
        self.assertEqual(final.choices[0].message.content, self.chat(max_tokens=200, stop=".").choices[0].message.content)

    def test_logprobs_and_choices(self):
        answer = self.chat(logprobs=True, top_logprobs=3, n=2, temperature=1, seed=5)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertNotEqual(answer.choices[0].message.content, answer.choices[1].message.content)
        for choice in answer.choices:
            content = choice.logprobs.content
            self.assertEqual("".join(bytes(t.bytes).decode() for t in content).strip(), choice.message.content.strip())
            for token in content:
                self.assertLessEqual(token.logprob, 0)
                self.assertEqual(len(token.top_logprobs), 3)
        again = self.chat(logprobs=True, top_logprobs=3, n=2, temperature=1, seed=5)
        self.assertEqual([c.message.content for c in again.choices], [c.message.content for c in answer.choices])

    def test_completions(self):
        answer = self.client.completions.create(model=MODEL, prompt=["Once upon a time", "One day"], max_tokens=8,
                                                temperature=0, logprobs=2, echo=False)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        for choice in answer.choices:
            self.assertEqual(len(choice.logprobs.tokens), 8)
            self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        echoed = self.client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=4, temperature=0, echo=True)
        self.assertTrue(echoed.choices[0].text.startswith("Once upon a time"))
        stopped = "".join(part.choices[0].text for part in self.client.completions.create(
            model=MODEL, prompt="Once upon a time", max_tokens=200, temperature=0, stop=["."], stream=True))
        self.assertNotIn(".", stopped)
        self.assertGreater(len(stopped), 10)

    def test_errors_become_the_clients_exceptions(self):
        with self.assertRaises(openai.BadRequestError) as bad:
            self.chat(temperature=-1)
        self.assertEqual(bad.exception.param, "temperature")
        self.assertEqual(bad.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as long:
            self.chat(messages=[{"role": "user", "content": "word " * 4000}])
        self.assertEqual(long.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as missing:
            self.chat(model="gpt-9")
        self.assertEqual(missing.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError) as stranger:
            client(api_key="sk-nobody").models.list()
        self.assertEqual(stranger.exception.code, "invalid_api_key")
        self.assertTrue(stranger.exception.request_id)

    def test_raw_responses_carry_the_headers(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=STORY, max_tokens=4, extra_headers={"x-request-id": "client-7"})
        self.assertEqual(raw.headers["x-request-id"], "client-7")
        self.assertIn("decode=", raw.headers["x-aisp-route"])
        self.assertEqual(raw.parse()._request_id, "client-7")

    def test_a_timeout_of_the_client_leaves_nothing_running(self):
        with self.assertRaises(openai.APITimeoutError):
            client(timeout=0.2).completions.create(model=MODEL, prompt="Once upon a time", max_tokens=1900,
                                                   extra_body={"ignore_eos": True})
        with self.assertRaises(openai.APIStatusError) as late:
            self.client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=1900,
                                           extra_body={"ignore_eos": True, "timeout": 0.2})
        self.assertEqual(late.exception.status_code, 504)
        self.chat(max_tokens=1)
        self.assertTrue(LOG.await_(lambda: metric(SERVER.http, "aisp_active_requests") == 0, answers=True))

    def test_thirty_two_streams_at_once(self):
        async def one(shared, seed):
            text = ""
            stream = await shared.chat.completions.create(model=MODEL, messages=STORY, max_tokens=40, seed=seed,
                                                          temperature=0.8, stream=True)
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
            return text

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=f"http://{SERVER.http}/v1", api_key=KEY, max_retries=0) as shared:
                return await asyncio.gather(*(one(shared, seed) for seed in range(1, 33)))

        texts = asyncio.run(all_of_them())
        self.assertTrue(all(texts))
        alone = self.chat(seed=7, temperature=0.8, max_tokens=40).choices[0].message.content
        self.assertEqual(texts[6], alone)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(f"tester:{KEY}\n")
        SERVER = Served(sys.argv.pop(), f"--api-keys-file={keys}")
        try:
            unittest.main()
        finally:
            SERVER.stop()
