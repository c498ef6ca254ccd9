#!/usr/bin/env python3
"""langchain-openai, unmodified, against a real server: chat and completions, whole, streamed, in a batch.

Usage: langchain_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import os
import sys
import unittest

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

from served import Served

SERVER = None
TOOLS = None
STORY = "Tell me a story about a duck."


def options(**more):
    return {"model": "story-7m", "base_url": f"http://{SERVER.http}/v1", "api_key": "none", "temperature": 0,
            "max_tokens": 24, "max_retries": 0, **more}


class LangChain(unittest.TestCase):
    def test_chat_streamed_says_the_same_as_whole(self):
        chat = ChatOpenAI(**options(stream_usage=True))
        whole = chat.invoke(STORY)
        self.assertEqual(whole.usage_metadata["output_tokens"], 24)
        self.assertEqual(whole.response_metadata["finish_reason"], "length")
        parts = list(chat.stream(STORY))
        self.assertEqual("".join(part.content for part in parts), whole.content)
        self.assertEqual(sum(p.usage_metadata["output_tokens"] for p in parts if p.usage_metadata), 24)

    def test_responses_go_on_from_one_another(self):
        chat = ChatOpenAI(**options(use_responses_api=True, use_previous_response_id=True))
        whole = chat.invoke(STORY)
        self.assertEqual(whole.usage_metadata["output_tokens"], 24)
        self.assertEqual("".join(part.text for part in chat.stream(STORY)), whole.text)
        longer = chat.invoke([("user", STORY), whole, ("user", "And then?")])
        self.assertGreater(longer.usage_metadata["input_tokens"], whole.usage_metadata["input_tokens"] + 24)

    def test_completions_streamed_say_the_same_as_whole(self):
        llm = OpenAI(**options())
        self.assertEqual("".join(llm.stream("Once upon a time")), llm.invoke("Once upon a time"))

    def test_a_chain_in_a_batch(self):
        chain = ChatPromptTemplate.from_messages([("user", "Tell me a story about a {animal}.")]) | ChatOpenAI(**options())
        answers = [a.content for a in chain.batch([{"animal": "duck"}, {"animal": "fox"}, {"animal": "duck"}])]
        self.assertEqual(answers[0], answers[2])
        self.assertNotEqual(answers[0], answers[1])

    def test_structured_output_and_tools(self):
        class Weather(BaseModel):
            """Asks for the weather."""
            city: str = Field(max_length=12)
            days: int = Field(ge=1, le=9)

        template = {"chat_template_kwargs": {"enable_thinking": False}}
        chat = ChatOpenAI(**options(base_url=f"http://{TOOLS.http}/v1", max_tokens=400, temperature=1, seed=4, extra_body=template))
        called = chat.bind_tools([Weather], tool_choice="any", parallel_tool_calls=False, strict=True).invoke("The weather in Oslo?")
        self.assertEqual([call["name"] for call in called.tool_calls], ["Weather"])
        Weather(**called.tool_calls[0]["args"])
        by_call = chat.with_structured_output(Weather, method="function_calling", strict=True).invoke("The weather in Oslo?")
        self.assertIn(by_call.days, range(1, 10))
        by_schema = chat.with_structured_output(Weather, method="json_schema", strict=True).invoke("The weather in Oslo?")
        self.assertIn(by_schema.days, range(1, 10))


if __name__ == "__main__":
    BINARY = sys.argv.pop()
    HERE = os.path.dirname(os.path.abspath(__file__))
    SERVER = Served(BINARY)
    TOOLS = Served(BINARY, f"--chat-template={HERE}/templates/hermes.jinja")
    try:
        unittest.main()
    finally:
        SERVER.stop()
        TOOLS.stop()
