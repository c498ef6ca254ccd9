#!/usr/bin/env python3
"""The Messages API, with Anthropic's own Python client against a real server.

Usage: anthropic_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import json
import os
import sys
import tempfile
import unittest

import anthropic
import jsonschema
import openai
import pydantic

from served import LOG, Served, metric

SERVER = None
MODEL = "story-7m"
KEY = "sk-test-of-the-client"
ASK = [{"role": "user", "content": "Tell me of a duck."}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"], "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "set_colour": COLOUR}
TOOLS = [{"name": name, "description": "It does.", "input_schema": schema} for name, schema in SCHEMAS.items()]
OFF = {"type": "disabled"}


class City(pydantic.BaseModel):
    days: int
    sunny: bool


class Messages(unittest.TestCase):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=f"http://{SERVER.http}", api_key=KEY, max_retries=0)
        self.addCleanup(self.client.close)

    def options(self, **options):
        """What the client has no parameter for goes into extra_body."""
        body = {"temperature": options.pop("temperature", 0), "seed": options.pop("seed", 3), **options.pop("extra_body", {})}
        return {"model": MODEL, "messages": ASK, "max_tokens": 24, "thinking": OFF, "extra_body": body, **options}

    def create(self, **options):
        return self.client.messages.create(**self.options(**options))

    def check(self, block):
        self.assertEqual(block.type, "tool_use")
        self.assertTrue(block.id)
        jsonschema.validate(block.input, SCHEMAS[block.name])

    def test_a_message_has_what_a_chat_says(self):
        with openai.OpenAI(base_url=f"http://{SERVER.http}/v1", api_key=KEY, max_retries=0) as other:
            chat = other.chat.completions.create(
                model=MODEL, temperature=0, max_tokens=24, messages=[{"role": "system", "content": "Be brief."}, *ASK],
                extra_body={"chat_template_kwargs": {"enable_thinking": False}})
        answer = self.create(system="Be brief.")
        self.assertEqual([block.type for block in answer.content], ["text"])
        self.assertEqual(answer.content[0].text, chat.choices[0].message.content)
        self.assertTrue(answer._request_id)
        self.assertEqual((answer.type, answer.role, answer.model, answer.stop_reason), ("message", "assistant", MODEL, "max_tokens"))
        self.assertTrue(answer.id.startswith("msg_"))
        usage = answer.usage
        self.assertEqual(usage.output_tokens, 24)
        self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, chat.usage.prompt_tokens)
        blocks = self.create(system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                             messages=[{"role": "user", "content": [{"type": "text", "text": "Tell me of a duck."}]}])
        self.assertEqual(blocks.content[0].text, answer.content[0].text)

    def test_models(self):
        listed = self.client.models.list()
        self.assertEqual([(model.id, model.type, model.display_name) for model in listed], [(MODEL, "model", MODEL)])
        self.assertEqual(self.client.models.retrieve(MODEL).created_at, listed.data[0].created_at)
        with self.assertRaises(anthropic.NotFoundError):
            self.client.models.retrieve("gpt-9")

    def test_why_it_ended(self):
        stopped = self.create(stop_sequences=[".", "never"], max_tokens=200)
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", "."))
        self.assertNotIn(".", stopped.content[0].text)
        ended = self.create(output_config={"format": {"type": "json_schema", "schema": COLOUR}}, max_tokens=200)
        self.assertEqual((ended.stop_reason, ended.stop_sequence), ("end_turn", None))

    def test_events_come_in_their_order_and_add_up(self):
        whole = self.create(stop_sequences=["."], max_tokens=200)
        events = list(self.create(stop_sequences=["."], max_tokens=200, stream=True))
        names = [event.type for event in events]
        deltas = names.count("content_block_delta")
        self.assertGreater(deltas, 2)
        self.assertEqual(names, ["message_start", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop",
                                 "message_delta", "message_stop"])
        self.assertEqual("".join(e.delta.text for e in events if e.type == "content_block_delta"), whole.content[0].text)
        start, delta = events[0].message, events[-2]
        self.assertEqual((start.content, start.stop_reason), ([], None))
        self.assertGreater(start.usage.input_tokens + start.usage.cache_read_input_tokens, 5)
        self.assertEqual((delta.delta.stop_reason, delta.delta.stop_sequence), ("stop_sequence", "."))
        self.assertEqual(delta.usage.output_tokens, whole.usage.output_tokens)
        with self.client.messages.stream(**self.options(stop_sequences=["."], max_tokens=200)) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual((text, final.content[0].text), (whole.content[0].text,) * 2)
        self.assertEqual(final.stop_reason, "stop_sequence")

    def test_tools_are_called_whole_and_streamed(self):
        options = {"tools": TOOLS, "max_tokens": 300, "temperature": 1,
                   "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        for seed in range(1, 6):
            whole = self.create(seed=seed, **options)
            self.assertEqual(whole.stop_reason, "tool_use")
            self.assertEqual(len(whole.content), 1)
            self.check(whole.content[0])
            with self.client.messages.stream(**self.options(seed=seed, **options)) as stream:
                events = list(stream)
                final = stream.get_final_message()
            self.assertEqual(final.content[0].input, whole.content[0].input)
            self.assertEqual(final.content[0].name, whole.content[0].name)
            self.assertEqual(final.stop_reason, "tool_use")
            self.assertIn("input_json", [event.type for event in events])
        for name in SCHEMAS:
            named = self.create(**{**options, "tool_choice": {"type": "tool", "name": name}})
            self.assertEqual([block.name for block in named.content], [name])
        several = self.create(seed=5, **{**options, "tool_choice": {"type": "any"}})
        for block in several.content[:-1] or several.content:
            self.check(block)
        quiet = self.create(**{**options, "tool_choice": {"type": "none"}, "max_tokens": 12})
        self.assertEqual([block.type for block in quiet.content], ["text"])

    def test_results_of_tools_go_back(self):
        call = self.create(tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=300)
        result = {"type": "tool_result", "tool_use_id": call.content[0].id, "content": [{"type": "text", "text": "Rain."}]}
        for content in ([result], [{**result, "is_error": True}, {"type": "text", "text": "And now?"}]):
            answer = self.create(tools=TOOLS, messages=ASK + [call.to_param(), {"role": "user", "content": content}])
            self.assertGreater(answer.usage.output_tokens, 0)
        # The template gets the call as it was, so a longer conversation begins with the shorter
        # one's tokens.
        self.assertGreater(answer.usage.cache_read_input_tokens, 15)

    def test_thinking_is_a_block_of_its_own(self):
        options = {"thinking": {"type": "enabled", "budget_tokens": 8}, "max_tokens": 200, "seed": 4, "temperature": 1,
                   "extra_body": {"structured_outputs": {"json": COLOUR, "disable_any_whitespace": True}}}
        whole = self.create(**options)
        self.assertEqual([block.type for block in whole.content], ["thinking", "text"])
        self.assertGreater(len(whole.content[0].thinking), 3)
        jsonschema.validate(json.loads(whole.content[1].text), COLOUR)
        with self.client.messages.stream(**self.options(**options)) as stream:
            final = stream.get_final_message()
        self.assertEqual(final.content[0].thinking, whole.content[0].thinking)
        self.assertEqual(final.content[1].text, whole.content[1].text)
        hidden = self.create(**{**options, "thinking": {**options["thinking"], "display": "omitted"}})
        self.assertEqual([block.text for block in hidden.content], [whole.content[1].text])
        # It is sent back unchanged.
        self.create(messages=ASK + [whole.to_param(), {"role": "user", "content": "More."}])
        by_itself = self.create(thinking={"type": "adaptive"}, max_tokens=6)
        self.assertEqual(by_itself.content[0].type, "thinking")

    def test_the_last_words_of_the_assistant_are_gone_on_with(self):
        ask = ASK + [{"role": "assistant", "content": "Once upon a time"}]
        with openai.OpenAI(base_url=f"http://{SERVER.http}/v1", api_key=KEY, max_retries=0) as other:
            chat = other.chat.completions.create(
                model=MODEL, temperature=0, max_tokens=16, messages=ask,
                extra_body={"continue_final_message": True, "add_generation_prompt": False})
        rest = self.create(messages=ask, max_tokens=16)
        self.assertEqual(rest.content[0].text, chat.choices[0].message.content)
        self.assertNotIn("Once upon a time", rest.content[0].text)

    def test_tokens_are_counted_as_they_are_used(self):
        options = {"system": "Be brief.", "messages": ASK, "tools": TOOLS}
        count = self.client.messages.count_tokens(model=MODEL, thinking=OFF, **options).input_tokens
        usage = self.create(max_tokens=1, **options).usage
        self.assertEqual(count, usage.input_tokens + usage.cache_read_input_tokens)

    def test_parsed_output(self):
        parsed = self.client.messages.parse(model=MODEL, messages=ASK, max_tokens=200, thinking=OFF, output_format=City,
                                            extra_body={"seed": 3})
        self.assertIsInstance(parsed.parsed_output, City)

    def test_errors_become_the_clients_exceptions(self):
        for options, word in [
                ({"max_tokens": 0}, "max_tokens must be an integer from 1"), ({"temperature": -1}, "temperature must be"),
                ({"messages": []}, "messages must not be empty"), ({"stop_sequences": [""]}, "stop_sequences[0]"),
                ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
                ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
                ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
                ({"tools": [{"name": "f"}]}, "tools[0].input_schema"), ({"tool_choice": {"type": "any"}}, "tool_choice"),
                ({"thinking": {"type": "enabled", "budget_tokens": 24}}, "thinking.budget_tokens must be less than max_tokens"),
                ({"thinking": {"type": "between_tools"}}, "thinking.type"), ({"extra_body": {"mcp_servers": [{}]}}, "mcp_servers"),
                ({"extra_body": {"stop": "x"}}, "use stop_sequences"), ({"max_tokens": 3000}, "max_tokens")]:
            with self.assertRaises(anthropic.BadRequestError, msg=str(options)) as refused:
                self.create(**options)
            self.assertEqual(refused.exception.body["type"], "error")
            self.assertEqual(refused.exception.body["error"]["type"], "invalid_request_error")
            self.assertIn(word, refused.exception.body["error"]["message"])
            self.assertEqual(refused.exception.body["request_id"], refused.exception.request_id)
        with self.assertRaises(anthropic.NotFoundError) as missing:
            self.create(model="claude-9")
        self.assertEqual(missing.exception.body["error"]["type"], "not_found_error")
        with anthropic.Anthropic(base_url=f"http://{SERVER.http}", api_key="sk-nobody", max_retries=0) as stranger:
            with self.assertRaises(anthropic.AuthenticationError) as unknown:
                stranger.messages.create(**self.options())
        self.assertEqual(unknown.exception.body["error"]["type"], "authentication_error")

    def test_a_bearer_token_is_as_good_as_the_key(self):
        with anthropic.Anthropic(base_url=f"http://{SERVER.http}", auth_token=KEY, api_key=None, max_retries=0) as bearer:
            self.assertEqual(bearer.messages.create(**self.options(max_tokens=2)).usage.output_tokens, 2)

    def test_time_that_is_over_is_an_error_whole_and_streamed(self):
        late = {"max_tokens": 1900, "extra_body": {"ignore_eos": True, "timeout": 0.2}}
        with self.assertRaises(anthropic.APIStatusError) as whole:
            self.create(**late)
        self.assertEqual((whole.exception.status_code, whole.exception.body["error"]["type"]), (504, "timeout_error"))
        with self.assertRaises(anthropic.APIStatusError) as streamed:
            list(self.create(stream=True, **late))
        self.assertEqual(streamed.exception.body["error"]["type"], "timeout_error")
        self.create(max_tokens=1)
        self.assertTrue(LOG.await_(lambda: metric(SERVER.http, "aisp_active_requests") == 0, answers=True))


if __name__ == "__main__":
    HERE = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(f"tester:{KEY}\n")
        SERVER = Served(sys.argv.pop(1), f"--chat-template={HERE}/templates/hermes.jinja", f"--api-keys-file={keys}")
        try:
            unittest.main()
        finally:
            SERVER.stop()
