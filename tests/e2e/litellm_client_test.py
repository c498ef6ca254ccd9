#!/usr/bin/env python3
"""LiteLLM, unmodified, against a real server: chat and completions, whole, streamed and asynchronous, and its errors.

Usage: litellm_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import asyncio
import os
import sys
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download of price lists
import litellm

from served import Served

SERVER = None
STORY = [{"role": "user", "content": "Tell me a story about a duck."}]


def options(**more):
    return {"api_base": f"http://{SERVER.http}/v1", "api_key": "none", "temperature": 0, "max_tokens": 24, "num_retries": 0, **more}


class LiteLlm(unittest.TestCase):
    def test_chat_streamed_says_the_same_as_whole(self):
        whole = litellm.completion(model="openai/story-7m", messages=STORY, **options())
        self.assertEqual(whole.usage.completion_tokens, 24)
        parts = list(litellm.completion(model="openai/story-7m", messages=STORY, stream=True,
                                        stream_options={"include_usage": True}, **options()))
        self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts if p.choices), whole.choices[0].message.content)
        self.assertEqual(parts[-1].usage.completion_tokens, 24)

    def test_messages_say_the_same_as_a_chat(self):
        chat = litellm.completion(model="openai/story-7m", messages=STORY, **options()).choices[0].message.content
        message = litellm.completion(model="anthropic/story-7m", messages=STORY, **options(api_base=f"http://{SERVER.http}"))
        self.assertEqual(message.choices[0].message.content, chat)
        self.assertEqual(message.usage.completion_tokens, 24)
        streamed = litellm.completion(model="anthropic/story-7m", messages=STORY, stream=True, **options(api_base=f"http://{SERVER.http}"))
        self.assertEqual("".join(p.choices[0].delta.content or "" for p in streamed), chat)

    def test_completions_streamed_say_the_same_as_whole(self):
        ask = {"model": "text-completion-openai/story-7m", "prompt": "Once upon a time"}
        whole = litellm.text_completion(**ask, **options()).choices[0].text
        self.assertTrue(whole)
        streamed = litellm.text_completion(**ask, stream=True, **options())
        self.assertEqual("".join(p.choices[0].text or "" for p in streamed), whole)

    def test_eight_streams_at_once(self):
        async def one():
            stream = await litellm.acompletion(model="openai/story-7m", messages=STORY, stream=True, **options())
            return "".join([p.choices[0].delta.content or "" async for p in stream])

        async def all_of_them():
            return await asyncio.gather(*(one() for _ in range(8)))

        texts = asyncio.run(all_of_them())
        self.assertTrue(texts[0])
        self.assertEqual(len(set(texts)), 1)

    def test_a_wrong_request_is_its_exception(self):
        with self.assertRaises(litellm.BadRequestError):
            litellm.completion(model="openai/story-7m", messages=STORY, **options(temperature=-1))


if __name__ == "__main__":
    SERVER = Served(sys.argv.pop())
    try:
        unittest.main()
    finally:
        SERVER.stop()
