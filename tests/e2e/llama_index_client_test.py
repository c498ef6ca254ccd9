#!/usr/bin/env python3
"""LlamaIndex's OpenAILike, unmodified, against a real server: chat and completions, whole and streamed.

Usage: llama_index_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import sys
import unittest

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from served import Served

SERVER = None
STORY = [ChatMessage(role="user", content="Tell me a story about a duck.")]


def model(chat):
    return OpenAILike(model="story-7m", api_base=f"http://{SERVER.http}/v1", api_key="none", temperature=0, max_tokens=24,
                      is_chat_model=chat, context_window=2048, max_retries=0)


class LlamaIndex(unittest.TestCase):
    def test_chat_streamed_says_the_same_as_whole(self):
        whole = model(True).chat(STORY).message.content
        self.assertTrue(whole)
        self.assertEqual("".join(part.delta for part in model(True).stream_chat(STORY)), whole)

    def test_completions_streamed_say_the_same_as_whole(self):
        whole = model(False).complete("Once upon a time").text
        self.assertTrue(whole)
        self.assertEqual("".join(part.delta for part in model(False).stream_complete("Once upon a time")), whole)


if __name__ == "__main__":
    SERVER = Served(sys.argv.pop())
    try:
        unittest.main()
    finally:
        SERVER.stop()
