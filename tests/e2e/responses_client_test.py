#!/usr/bin/env python3
"""The Responses API, with OpenAI's own Python client against a real server.

Usage: responses_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import asyncio
import json
import os
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import jsonschema
import openai
import pydantic

from served import Served, metric

SERVER = None
MODEL = "story-7m"
KEYS = {"ann": "sk-ann", "bob": "sk-bob"}
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "get_weather", "description": "It does.", "strict": True, "parameters": WEATHER}]
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}


class City(pydantic.BaseModel):
    days: int
    sunny: bool


def client(who="ann"):
    return openai.OpenAI(base_url=f"http://{SERVER.http}/v1", api_key=KEYS[who], max_retries=0)


class Responses(unittest.TestCase):
    def setUp(self):
        self.client = client()
        self.addCleanup(self.client.close)

    def create(self, **options):
        return self.client.responses.create(**{"model": MODEL, "input": "Tell me of a duck.", "temperature": 0, "max_output_tokens": 24,
                                               "extra_body": NO_THOUGHT, **options})

    def test_a_response_has_what_a_chat_says(self):
        answer = self.create(instructions="Be brief.", metadata={"job": "7"}, top_p=0.5, user="u")
        chat = self.client.chat.completions.create(
            model=MODEL, temperature=0, max_tokens=24, extra_body=NO_THOUGHT, top_p=0.5,
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of a duck."}])
        self.assertEqual(answer.output_text, chat.choices[0].message.content)
        self.assertEqual((answer.object, answer.status), ("response", "incomplete"))
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")
        self.assertTrue(answer.id.startswith("resp_"))
        self.assertEqual((answer.instructions, answer.metadata, answer.user), ("Be brief.", {"job": "7"}, "u"))
        self.assertEqual((answer.temperature, answer.top_p, answer.max_output_tokens), (0, 0.5, 24))
        self.assertEqual(answer.usage.output_tokens, 24)
        self.assertEqual(answer.usage.input_tokens, chat.usage.prompt_tokens)
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + 24)
        self.assertEqual(answer.output[0].role, "assistant")
        self.assertEqual(answer.output[0].status, "incomplete")
        whole = self.create(max_output_tokens=None, extra_body={**NO_THOUGHT, "stop": "."})
        self.assertEqual((whole.status, whole.output[0].status, whole.incomplete_details), ("completed", "completed", None))

    def test_events_come_in_their_order_and_add_up(self):
        options = {"extra_body": {**NO_THOUGHT, "stop": "."}, "max_output_tokens": 200}
        whole = self.create(**options)
        events = list(self.create(stream=True, **options))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        names = [e.type for e in events]
        deltas = names.count("response.output_text.delta")
        self.assertGreater(deltas, 2)
        self.assertEqual(names, ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
                         + ["response.output_text.delta"] * deltas
                         + ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"])
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), whole.output_text)
        self.assertEqual(events[-1].response.output_text, whole.output_text)
        self.assertEqual(events[-1].response.usage.output_tokens, whole.usage.output_tokens)
        self.assertEqual((events[0].response.status, events[0].response.output), ("in_progress", []))
        item = events[2].item.id
        self.assertEqual({e.item_id for e in events if hasattr(e, "item_id")}, {item})
        self.assertEqual(events[-1].response.output[0].id, item)
        cut = list(self.create(stream=True))
        self.assertEqual(cut[-1].type, "response.incomplete")
        self.assertEqual(cut[-2].item.status, "incomplete")

    def test_the_stream_helper_gathers_the_response(self):
        with self.client.responses.stream(model=MODEL, input="A duck?", temperature=0, extra_body={**NO_THOUGHT, "stop": "."}) as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertEqual(final.output_text, text)

    def test_calls_are_items_whole_and_streamed(self):
        options = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1, "max_output_tokens": 200,
                   "extra_body": {**NO_THOUGHT, "seed": 3}}
        whole = self.create(**options)
        self.assertEqual([item.type for item in whole.output], ["function_call"])
        call = whole.output[0]
        self.assertEqual((call.name, call.status), ("get_weather", "completed"))
        self.assertTrue(call.call_id.startswith("call_"))
        jsonschema.validate(json.loads(call.arguments), WEATHER)
        events = list(self.create(stream=True, **options))
        names = [e.type for e in events]
        deltas = names.count("response.function_call_arguments.delta")
        self.assertEqual(names, ["response.created", "response.in_progress", "response.output_item.added"]
                         + ["response.function_call_arguments.delta"] * deltas
                         + ["response.function_call_arguments.done", "response.output_item.done", "response.completed"])
        self.assertEqual("".join(e.delta for e in events if e.type == "response.function_call_arguments.delta"), call.arguments)
        self.assertEqual(events[-3].arguments, call.arguments)
        named = self.create(**{**options, "tool_choice": {"type": "function", "name": "get_weather"}})
        self.assertEqual(named.output[0].name, "get_weather")
        with self.client.responses.stream(model=MODEL, input="Oslo?", tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                                          extra_body={**NO_THOUGHT, "seed": 3}) as stream:
            final = stream.get_final_response()
        jsonschema.validate(final.output[0].parsed_arguments, WEATHER)

    def test_results_of_calls_go_back_by_id_and_by_items(self):
        options = {"tools": TOOLS, "temperature": 0, "max_output_tokens": 200}
        first = self.create(tool_choice="required", parallel_tool_calls=False, **options)
        result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "Rain."}
        by_id = self.create(previous_response_id=first.id, input=[result], **options)
        self.assertEqual(by_id.previous_response_id, first.id)
        items = [{"role": "user", "content": "Tell me of a duck."}, *[i.model_dump(exclude_none=True) for i in first.output], result]
        by_items = self.create(input=items, store=False, **options)
        self.assertEqual(by_id.output_text, by_items.output_text)
        self.assertEqual(by_id.usage.input_tokens, by_items.usage.input_tokens)

    def test_a_conversation_goes_on_and_forgets_its_instructions(self):
        first = self.create(instructions="Speak of ducks.")
        second = self.create(previous_response_id=first.id, input="And then?")
        chat = self.client.chat.completions.create(
            model=MODEL, temperature=0, max_tokens=24, extra_body=NO_THOUGHT,
            messages=[{"role": "user", "content": "Tell me of a duck."}, {"role": "assistant", "content": first.output_text},
                      {"role": "user", "content": "And then?"}])
        self.assertEqual(second.output_text, chat.choices[0].message.content)
        self.assertEqual(second.usage.input_tokens, chat.usage.prompt_tokens)
        third = self.create(previous_response_id=second.id, input="Why?")
        self.assertGreater(third.usage.input_tokens, second.usage.input_tokens + 24)

    def test_responses_are_kept_fetched_and_deleted_by_their_tenant(self):
        first = self.create()
        again = self.client.responses.retrieve(first.id)
        self.assertEqual(again.model_dump(), first.model_dump())
        with self.assertRaises(openai.BadRequestError) as streamed:
            self.client.responses.retrieve(first.id, stream=True)
        self.assertEqual(streamed.exception.param, "stream")
        with client("bob") as other:
            for ask in (lambda: other.responses.retrieve(first.id), lambda: other.responses.delete(first.id),
                        lambda: other.responses.create(model=MODEL, input="x", previous_response_id=first.id)):
                with self.assertRaises(openai.NotFoundError) as unknown:
                    ask()
                self.assertIn(first.id, unknown.exception.message)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.NotFoundError) as gone:
            self.create(previous_response_id=first.id)
        self.assertEqual(gone.exception.param, "previous_response_id")
        unkept = self.create(store=False)
        self.assertFalse(unkept.model_dump()["store"])
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(unkept.id)
        streamed = list(self.create(stream=True))[-1].response
        self.assertEqual(self.client.responses.retrieve(streamed.id).output_text, streamed.output_text)

    def test_what_a_response_was_made_from_is_listed(self):
        first = self.create()
        second = self.create(previous_response_id=first.id, input=[{"role": "user", "content": [{"type": "input_text", "text": "And?"}]}])
        listed = list(self.client.responses.input_items.list(second.id, order="asc", limit=2))
        self.assertEqual([(item.role, item.content[0].text) for item in listed],
                         [("user", "Tell me of a duck."), ("assistant", first.output_text), ("user", "And?")])
        self.assertEqual([item.id for item in self.client.responses.input_items.list(second.id)], [item.id for item in reversed(listed)])
        for wrong in ({"limit": 101}, {"after": "nothing"}):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.client.responses.input_items.list(second.id, **wrong)
            self.assertEqual(refused.exception.param, *wrong)
        with self.assertRaises(openai.NotFoundError):
            client("bob").responses.input_items.list(second.id)

    def test_tokens_are_counted_as_they_are_used(self):
        counted = self.client.responses.input_tokens.count(model=MODEL, input="Tell me of a duck.", extra_body=NO_THOUGHT)
        first = self.create()
        self.assertEqual(counted.input_tokens, first.usage.input_tokens)
        more = {"previous_response_id": first.id, "input": "And?", "extra_body": NO_THOUGHT}
        self.assertEqual(self.client.responses.input_tokens.count(model=MODEL, **more).input_tokens, self.create(**more).usage.input_tokens)

    def test_no_more_are_kept_than_the_operator_said(self):
        ids = [self.create(max_output_tokens=1).id for _ in range(9)]
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(ids[0])
        self.client.responses.retrieve(ids[1])
        self.assertLessEqual(metric(SERVER.http, "aisp_stored_responses"), 8 * len(KEYS))
        self.assertGreater(metric(SERVER.http, "aisp_stored_responses_bytes"), 8 * 500)
        self.assertGreater(metric(SERVER.http, "aisp_stored_responses_forgotten_total"), 0)

    def test_text_follows_a_format(self):
        answer = self.create(text={"format": {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}}, max_output_tokens=200,
                             extra_body={**NO_THOUGHT, "seed": 5}, temperature=1)
        jsonschema.validate(json.loads(answer.output_text), WEATHER)
        parsed = self.client.responses.parse(model=MODEL, input="Oslo?", text_format=City, extra_body={**NO_THOUGHT, "seed": 5})
        self.assertIsInstance(parsed.output_parsed, City)
        with self.client.responses.stream(model=MODEL, input="Oslo?", text_format=City, extra_body={**NO_THOUGHT, "seed": 5}) as stream:
            self.assertIsInstance(stream.get_final_response().output_parsed, City)
        free = self.create(text={"format": {"type": "json_object"}}, max_output_tokens=40)
        self.assertRegex(free.output_text, r"^\s*(\{|$)")

    def test_reasoning_is_an_item_of_its_own(self):
        options = {"extra_body": {"thinking_token_budget": 8, "seed": 4}, "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 200, "temperature": 1,
                   "text": {"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}}
        whole = self.create(**options)
        self.assertEqual([item.type for item in whole.output], ["reasoning", "message"])
        thought = whole.output[0].content[0].text
        self.assertGreater(len(thought), 3)
        self.assertGreater(whole.usage.output_tokens_details.reasoning_tokens, 3)
        self.assertLess(whole.usage.output_tokens_details.reasoning_tokens, whole.usage.output_tokens)
        events = list(self.create(stream=True, **options))
        self.assertEqual("".join(e.delta for e in events if e.type == "response.reasoning_text.delta"), thought)
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), whole.output_text)
        # It is sent back unchanged.
        self.create(input=[{"role": "user", "content": "A duck."}, *[i.model_dump(exclude_none=True) for i in whole.output],
                           {"role": "user", "content": "More."}])

    def test_logprobs_are_there_for_who_asks(self):
        options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 6}
        whole = self.create(**options)
        values = whole.output[0].content[0].logprobs
        self.assertEqual("".join(v.token for v in values), whole.output_text)
        self.assertEqual({len(v.top_logprobs) for v in values}, {2})
        events = list(self.create(stream=True, **options))
        streamed = [v for e in events if e.type == "response.output_text.delta" for v in e.logprobs]
        self.assertEqual([v.logprob for v in streamed], [v.logprob for v in values])

    def test_what_cannot_be_had_is_refused_by_name(self):
        for options, param in [
                ({"background": True}, "background"), ({"truncation": "auto"}, "truncation"),
                ({"conversation": "conv_1"}, "conversation"), ({"max_tool_calls": 3}, "max_tool_calls"),
                ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"max_output_tokens": 0}, "max_output_tokens"),
                ({"include": ["file_search_call.results"]}, "include"), ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
                ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"), ({"text": {"verbosity": "low"}}, "text.verbosity"),
                ({"text": {"format": {"type": "xml"}}}, "text.format"), ({"input": []}, "input"),
                ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
                ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
                ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
                ({"extra_body": {"max_tokens": 4}}, "max_tokens"), ({"temperature": 9}, "temperature")]:
            with self.assertRaises(openai.BadRequestError, msg=str(options)) as refused:
                self.create(**options)
            self.assertEqual(refused.exception.param, param, refused.exception.message)
            self.assertIn(param.split("[")[0].split(".")[-1], refused.exception.message)
        with self.assertRaises(openai.BadRequestError) as long:
            self.create(max_output_tokens=100000)
        self.assertEqual(long.exception.param, "max_output_tokens")

    def test_conversations_at_once_do_not_mix(self):
        async def talk(shared, seed):
            answer = None
            for turn in range(3):
                answer = await shared.responses.create(model=MODEL, input=f"Turn {turn}.", max_output_tokens=8, temperature=0.8,
                                                       previous_response_id=answer.id if answer else None, extra_body={**NO_THOUGHT, "seed": seed})
            return answer.output_text

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=f"http://{SERVER.http}/v1", api_key=KEYS["bob"], max_retries=0) as shared:
                return await asyncio.gather(*(talk(shared, seed) for seed in (1, 2, 1)))

        first, _, again = asyncio.run(all_of_them())
        self.assertEqual(first, again)

    def test_unknown_methods_are_told_the_known_ones(self):
        request = urllib.request.Request(f"http://{SERVER.http}/v1/responses/resp_x", method="POST", data=b"{}")
        with self.assertRaises(urllib.error.HTTPError) as wrong:
            urllib.request.urlopen(request)
        self.assertEqual((wrong.exception.code, wrong.exception.headers["allow"]), (405, "GET, HEAD, DELETE, OPTIONS"))


if __name__ == "__main__":
    HERE = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.writelines(f"{name}:{key}\n" for name, key in KEYS.items())
        SERVER = Served(sys.argv.pop(1), f"--chat-template={HERE}/templates/hermes.jinja", f"--api-keys-file={keys}",
                        "--max-stored-responses=8")
        try:
            unittest.main()
        finally:
            SERVER.stop()
