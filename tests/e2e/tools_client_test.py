#!/usr/bin/env python3
"""Tools and thinking, with OpenAI's own Python client against a real server. The model is small and was taught neither: what makes its
calls right is the constraint alone.

Usage: tools_client_test.py BINARY          (run by CTest through tests/e2e/python_test.py)
"""

import json
import os
import sys
import unittest
import urllib.request
from typing import Literal

import jsonschema
import openai
import pydantic

from served import Served

SERVER = BINARY = HERE = None
MODEL = "story-7m"
ASK = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"], "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "set_colour": COLOUR}
TOOLS = [{"type": "function", "function": {"name": name, "description": "It does.", "strict": True, "parameters": schema}}
         for name, schema in SCHEMAS.items()]
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}


class Tools(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=f"http://{SERVER.http}/v1", api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def chat(self, **options):
        return self.client.chat.completions.create(
            **{"model": MODEL, "messages": ASK, "max_tokens": 200, "seed": 3, "extra_body": NO_THOUGHT, **options})

    def check(self, calls):
        self.assertGreater(len(calls), 0)
        for call in calls:
            self.assertTrue(call.id.startswith("call_"))
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        self.assertEqual(len({call.id for call in calls}), len(calls))

    def test_required_calls_are_valid(self):
        for seed in range(1, 9):
            choice = self.chat(tools=TOOLS, tool_choice="required", seed=seed, temperature=1.3, parallel_tool_calls=False).choices[0]
            self.assertEqual(choice.finish_reason, "tool_calls")
            self.assertIsNone(choice.message.content)
            self.assertEqual(len(choice.message.tool_calls), 1)
            self.check(choice.message.tool_calls)

    def test_a_named_tool_is_the_one_that_is_called(self):
        for name in SCHEMAS:
            answer = self.chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}})
            self.assertEqual([call.function.name for call in answer.choices[0].message.tool_calls], [name])
            self.check(answer.choices[0].message.tool_calls)

    def test_parallel_calls_and_choices(self):
        answer = self.chat(tools=TOOLS, tool_choice="required", n=4, temperature=1.5, max_tokens=600)
        for choice in answer.choices:
            calls = choice.message.tool_calls
            if choice.finish_reason == "length":  # the last one was cut off
                calls = calls[:-1]
            self.check(calls or answer.choices[0].message.tool_calls)

    def test_streamed_deltas_add_up_to_the_whole(self):
        options = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1}
        whole = self.chat(**options).choices[0].message.tool_calls[0]
        chunks = [c.choices[0] for c in self.chat(stream=True, **options)]
        deltas = [d for c in chunks for d in c.delta.tool_calls or []]
        self.assertEqual(deltas[0].function.name, whole.function.name)
        self.assertTrue(deltas[0].id)
        self.assertEqual({d.index for d in deltas}, {0})
        self.assertTrue(all(d.id is None and d.function.name is None for d in deltas[1:]))
        self.assertGreater(len(deltas), 2, "the arguments came at once")
        self.assertEqual("".join(d.function.arguments or "" for d in deltas), whole.function.arguments)
        self.assertEqual([c.finish_reason for c in chunks if c.finish_reason], ["tool_calls"])

    def test_parse_gives_objects_of_the_class_that_was_asked_for(self):
        class Weather(pydantic.BaseModel):
            city: str = pydantic.Field(max_length=12)
            days: int = pydantic.Field(ge=1, le=9)
            kind: Literal["sun", "rain"]

        for parse in (self.client.chat.completions.parse, self.client.beta.chat.completions.parse):
            choice = parse(model=MODEL, messages=ASK, max_tokens=400, seed=5, temperature=1, response_format=Weather,
                           extra_body=NO_THOUGHT).choices[0]
            self.assertEqual(choice.finish_reason, "stop")
            self.assertIsInstance(choice.message.parsed, Weather)
            self.assertIn(choice.message.parsed.kind, ("sun", "rain"))

    def test_stream_helper(self):
        with self.client.chat.completions.stream(model=MODEL, messages=ASK, tools=TOOLS, tool_choice="required", max_tokens=400,
                                                 seed=3, parallel_tool_calls=False, extra_body=NO_THOUGHT) as stream:
            names = [event.type for event in stream]
            final = stream.get_final_completion()
        self.assertIn("tool_calls.function.arguments.done", names)
        self.check(final.choices[0].message.tool_calls)

    def test_auto_without_a_call_is_content(self):
        plain = self.chat(temperature=0, max_tokens=30)
        auto = self.chat(temperature=0, max_tokens=30, tools=TOOLS, tool_choice="none")
        self.assertEqual(auto.choices[0].message.content, plain.choices[0].message.content)
        auto = self.chat(temperature=0, max_tokens=30, tools=TOOLS)
        self.assertIsNone(auto.choices[0].message.tool_calls)
        self.assertGreater(len(auto.choices[0].message.content), 10)

    def test_results_go_back(self):
        call = self.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
        answer = self.chat(tools=TOOLS, max_tokens=20, messages=ASK + [
            call.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "Rain."}])
        self.assertGreater(answer.usage.completion_tokens, 0)

    def test_cut_off_calls_say_length(self):
        choice = self.chat(tools=TOOLS, tool_choice="required", max_tokens=6).choices[0]
        self.assertEqual(choice.finish_reason, "length")

    def test_thinking_has_a_budget_and_a_field_of_its_own(self):
        body = {"thinking_token_budget": 12}
        body["structured_outputs"] = {"json": WEATHER, "disable_any_whitespace": True}
        options = {"extra_body": body}
        whole = self.chat(**options).choices[0]
        self.assertEqual(whole.finish_reason, "stop")
        jsonschema.validate(json.loads(whole.message.content), WEATHER)
        self.assertGreater(len(whole.message.reasoning_content), 3)
        chunks = [c.choices[0].delta for c in self.chat(stream=True, **options)]
        thought = "".join(getattr(d, "reasoning_content", None) or "" for d in chunks)
        self.assertEqual(thought, whole.message.reasoning_content)
        self.assertEqual("".join(d.content or "" for d in chunks), whole.message.content)
        hidden = self.chat(**{**options, "extra_body": {**body, "include_reasoning": False}}).choices[0]
        self.assertFalse(hasattr(hidden.message, "reasoning_content"))
        self.assertEqual(hidden.message.content, whole.message.content)

    def test_thinking_leaves_room_for_an_answer_that_shall_end_whole(self):
        for seed in range(1, 5):
            choice = self.chat(max_tokens=160, seed=seed, temperature=1, extra_body={
                "force_finish": True, "structured_outputs": {"json": WEATHER, "disable_any_whitespace": True}}).choices[0]
            self.assertEqual(choice.finish_reason, "stop")
            jsonschema.validate(json.loads(choice.message.content), WEATHER)
            self.assertGreater(len(choice.message.reasoning_content), 3)

    def test_thinking_before_a_call(self):
        choice = self.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
                           extra_body={"thinking_token_budget": 8}).choices[0]
        self.check(choice.message.tool_calls)
        self.assertGreater(len(choice.message.reasoning_content), 1)

    def test_an_answer_by_schema_or_calls(self):
        """response_format beside tools: either, each valid; what the first token is decides, so the test leans on it."""
        form = {"type": "json_schema", "json_schema": {"name": "colour", "strict": True, "schema": COLOUR}}
        request = urllib.request.Request(f"http://{SERVER.http}/tokenize", json.dumps(
            {"prompt": "<", "add_special_tokens": False}).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            opens_call = str(json.loads(answer.read())["tokens"][0])
        for thinks in (False, True):
            extra = {"thinking_token_budget": 6} if thinks else NO_THOUGHT
            for choice, bias, calls in (("auto", 100, True), ("auto", -100, False), ("required", -100, True), ("none", 100, False),
                                        ({"type": "function", "function": {"name": "set_colour"}}, -100, True)):
                if thinks and bias == 100:
                    continue  # reasoning would fill the whole answer
                with self.subTest(choice=choice, bias=bias, thinks=thinks):
                    options = {"tools": TOOLS, "tool_choice": choice, "response_format": form, "extra_body": extra, "temperature": 1,
                               "parallel_tool_calls": False, "logit_bias": {opens_call: bias}}
                    whole = self.chat(**options).choices[0]
                    self.assertEqual(whole.finish_reason, "tool_calls" if calls else "stop")
                    if calls:
                        self.assertIsNone(whole.message.content)
                        self.check(whole.message.tool_calls)
                    else:
                        self.assertIsNone(whole.message.tool_calls)
                        jsonschema.validate(json.loads(whole.message.content), COLOUR)
                    chunks = [c.choices[0].delta for c in self.chat(stream=True, **options)]
                    self.assertEqual("".join(d.content or "" for d in chunks), whole.message.content or "")
                    arguments = "".join(c.function.arguments or "" for d in chunks for c in d.tool_calls or [])
                    self.assertEqual(arguments, "".join(c.function.arguments for c in whole.message.tool_calls or []))

    def test_an_answer_by_schema_or_calls_is_refused_by_its_own_field(self):
        pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(x)\\1"}}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": pattern}}
        for choice in ("auto", "required"):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.chat(tools=TOOLS, tool_choice=choice, response_format=form)
            self.assertEqual(refused.exception.param, "response_format")

    def test_calls_that_shall_end_whole(self):
        """force_finish beside tools: however few tokens there are, what comes is whole."""
        form = {"type": "json_schema", "json_schema": {"name": "colour", "strict": True, "schema": COLOUR}}
        named = {"type": "function", "function": {"name": "get_weather"}}
        for seed, (choice, most, more) in enumerate([
                ("required", 90, {}), ("required", 160, {}), (named, 100, {"parallel_tool_calls": False}),
                ("auto", 60, {}), ("auto", 120, {"response_format": form}), ("required", 120, {"n": 3})], 1):
            with self.subTest(choice=choice, most=most, more=more):
                options = {"tools": TOOLS, "tool_choice": choice, "max_tokens": most, "temperature": 1.3, "seed": seed,
                           "extra_body": {**NO_THOUGHT, "force_finish": True}, **more}
                answer = self.chat(**options)
                self.assertLessEqual(answer.usage.completion_tokens, most * more.get("n", 1))
                for each in answer.choices:
                    self.assertEqual(each.finish_reason, "tool_calls" if each.message.tool_calls else "stop")
                    if each.message.tool_calls:
                        self.check(each.message.tool_calls)
                    elif "response_format" in more:
                        jsonschema.validate(json.loads(each.message.content), COLOUR)
                    self.assertTrue(choice == "auto" or each.message.tool_calls)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(tools=TOOLS, tool_choice="required", max_tokens=4, extra_body={**NO_THOUGHT, "force_finish": True})
        self.assertIn("shortest answer", str(refused.exception))
        unique = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "array", "minItems": 40, "uniqueItems": True, "items": {"type": "object", "properties": {
                "x": {"type": "integer"}}}}}}}}
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(tools=[unique], extra_body={**NO_THOUGHT, "force_finish": True})
        self.assertEqual(refused.exception.param, "force_finish")

    def test_a_tool_without_parameters_takes_none(self):
        for tool in ({"name": "now"}, {"name": "now", "parameters": None}):
            call = self.chat(tools=[{"type": "function", "function": tool}], tool_choice="required", parallel_tool_calls=False,
                             temperature=1.5).choices[0].message.tool_calls[0]
            self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("now", {}))

    def test_effort_reaches_the_template(self):
        self.assertFalse(hasattr(self.chat(extra_body={}, reasoning_effort="none", max_tokens=8).choices[0].message,
                                 "reasoning_content"))
        self.assertTrue(self.chat(extra_body={}, reasoning_effort="low", max_tokens=8).choices[0].message.reasoning_content)

    def test_what_cannot_be_had_is_refused_by_name(self):
        bad = [({"type": "function", "function": {"name": "f", "strict": True, "parameters": {
            "type": "object", "properties": {"a": {"type": "string", "pattern": "(x)\\1"}}}}}, "pattern"),
               ({"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}, "object")]
        for tool, word in bad:
            with self.assertRaises(openai.BadRequestError) as refused:
                self.chat(tools=[tool], tool_choice="required")
            self.assertEqual(refused.exception.param, "tools")
            self.assertIn(word, refused.exception.message)


class Spelled(unittest.TestCase):
    """Formats whose arguments are no JSON: valid by the tool's schema all the same, whole and streamed, and JSON for the client."""

    PLACE = {"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "mode": {"enum": ["by day", "by night"]}, "exact": {"type": "boolean"}, "near": {"$ref": "#/$defs/point"}},
        "required": ["city", "days", "exact"], "additionalProperties": False, "$defs": {"point": {
            "type": "array", "items": {"type": ["integer", "null"], "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 2}}}
    SCHEMAS = {"get_weather": PLACE, "set_colour": COLOUR, "stop": {"type": "object", "properties": {}, "additionalProperties": False}}
    TOOLS = [{"type": "function", "function": {"name": name, "strict": True, "parameters": schema}} for name, schema in SCHEMAS.items()]

    def check_format(self, parser, opening):
        server = Served(BINARY, f"--chat-template={HERE}/templates/hermes.jinja", f"--tool-call-parser={parser}")
        self.addCleanup(server.stop)
        client = openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0)
        self.addCleanup(client.close)

        def chat(**options):
            return client.chat.completions.create(**{"model": MODEL, "messages": ASK, "max_tokens": 300, "extra_body": NO_THOUGHT,
                                                     "tools": self.TOOLS, "temperature": 1.3, **options})

        def valid(call):
            jsonschema.validate(json.loads(call.function.arguments), self.SCHEMAS[call.function.name])
            return True

        named = {"type": "function", "function": {"name": "get_weather"}}
        request = urllib.request.Request(f"http://{server.http}/tokenize", json.dumps(
            {"prompt": opening, "add_special_tokens": False}).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            opens = {str(json.loads(answer.read())["tokens"][0]): 100}
        called = set()
        form = {"type": "json_schema", "json_schema": {"name": "colour", "strict": True, "schema": COLOUR}}
        for seed in range(1, 3):
            for choice, more in (("required", {"parallel_tool_calls": False}), (named, {}), ("required", {"max_tokens": 400}),
                                 ("auto", {"logit_bias": opens, "parallel_tool_calls": False, "response_format": form})):
                with self.subTest(parser=parser, seed=seed, choice=choice, more=more):
                    options = {"tool_choice": choice, "seed": seed, **more}
                    whole = chat(**options).choices[0]
                    self.assertIsNone(whole.message.content)
                    calls = whole.message.tool_calls
                    if "max_tokens" not in more:
                        self.assertEqual((whole.finish_reason, len(calls)), ("tool_calls", 1))
                    called |= {call.function.name for call in calls[:-1] + calls[-1:] * (whole.finish_reason == "tool_calls") if valid(call)}
                    chunks = [c.choices[0] for c in chat(stream=True, **options)]
                    deltas = [d for c in chunks for d in c.delta.tool_calls or []]
                    for i, call in enumerate(calls):
                        mine = [d for d in deltas if d.index == i]
                        self.assertEqual((mine[0].id is None, mine[0].function.name), (False, call.function.name))
                        self.assertEqual("".join(d.function.arguments or "" for d in mine), call.function.arguments)
                    self.assertEqual([c.finish_reason for c in chunks if c.finish_reason], [whole.finish_reason])
        self.assertGreater(len(called), 1)
        told = chat(tool_choice="auto", temperature=0, max_tokens=20, logit_bias={next(iter(opens)): -100}).choices[0].message
        self.assertTrue(told.content and not told.tool_calls)
        # Together with a schema for the answer, and with names that the format cannot write.
        told = chat(tool_choice="auto", seed=1, response_format=form, logit_bias={next(iter(opens)): -100}).choices[0].message
        jsonschema.validate(json.loads(told.content), COLOUR)
        odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a\"b": {}}, "required": ["a\"b"]}}}
        with self.assertRaises(openai.BadRequestError) as refused:
            chat(tools=[odd])
        self.assertIn("cannot name", refused.exception.message)
        with self.assertRaises(openai.BadRequestError) as refused:
            chat(extra_body={**NO_THOUGHT, "force_finish": True})
        self.assertEqual(refused.exception.param, "force_finish")

    def test_python_calls(self):
        self.check_format("pythonic", "[")

    def test_calls_in_tags(self):
        self.check_format("qwen3_coder", "<")


class Channels(unittest.TestCase):
    """gpt-oss: thinking in the analysis channel, calls in commentary, the answer in final."""

    def templates(self):
        yield f"{HERE}/templates/harmony.jinja"
        real = os.path.join(HERE, "../../../shared/templates/x-gpt-oss.jinja")  # third-party, optional
        if os.path.exists(real):
            yield real

    def test_each_channel_has_its_constraint(self):
        form = {"type": "json_schema", "json_schema": {"name": "colour", "strict": True, "schema": COLOUR}}
        for template in self.templates():
            server = Served(BINARY, f"--chat-template={template}")
            self.addCleanup(server.stop)
            client = openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0)
            self.addCleanup(client.close)
            thought = 0
            for seed, (tools, choice, schema) in enumerate([
                    (None, None, True), (TOOLS, "required", False), (TOOLS, "none", True), (TOOLS, "auto", True), (TOOLS, "auto", True),
                    (TOOLS, {"type": "function", "function": {"name": "set_colour"}}, False), (TOOLS, "required", True)], 1):
                with self.subTest(template=template, choice=choice, schema=schema):
                    options = {"model": MODEL, "messages": ASK, "max_tokens": 250, "temperature": 1.3, "seed": seed,
                               "extra_body": {"thinking_token_budget": 10, "force_finish": True}}
                    options |= {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False} if tools else {}
                    options |= {"response_format": form} if schema else {}
                    whole = client.chat.completions.create(**options).choices[0]
                    calls = whole.message.tool_calls or []
                    if choice == "required" or isinstance(choice, dict):
                        self.assertEqual(len(calls), 1)
                    self.assertEqual(whole.finish_reason, "tool_calls" if calls else "stop")
                    for call in calls:
                        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
                    if not calls:
                        jsonschema.validate(json.loads(whole.message.content), COLOUR)
                    reasoning = getattr(whole.message, "reasoning_content", None) or ""
                    self.assertNotIn("<|", reasoning + (whole.message.content or ""))
                    thought += len(reasoning) > 0
                    chunks = [c.choices[0].delta for c in client.chat.completions.create(stream=True, **options)]
                    self.assertEqual("".join(getattr(d, "reasoning_content", None) or "" for d in chunks), reasoning)
                    self.assertEqual("".join(d.content or "" for d in chunks), whole.message.content or "")
                    self.assertEqual("".join(c.function.arguments or "" for d in chunks for c in d.tool_calls or []),
                                     "".join(c.function.arguments for c in calls))
            self.assertGreater(thought, 0)
            free = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=60, seed=1,
                                                  extra_body={"thinking_token_budget": 5, "min_tokens": 40})
            self.assertGreater(len(free.choices[0].message.content), 10)
            answer = client.responses.create(model=MODEL, input="Oslo?", max_output_tokens=250, text={
                "format": {"type": "json_schema", "name": "colour", "strict": True, "schema": COLOUR}},
                extra_body={"seed": 1, "thinking_token_budget": 10, "force_finish": True})
            jsonschema.validate(json.loads(answer.output_text), COLOUR)


class SecondTurn(unittest.TestCase):
    """A template that takes arguments as text alone, writes no calls beside content, and knows no developers."""

    def setUp(self):
        self.server = Served(BINARY, f"--chat-template={HERE}/templates/text_calls.jinja", "--tool-call-parser=hermes")
        self.addCleanup(self.server.stop)

    def post(self, path, **body):
        request = urllib.request.Request(f"http://{self.server.http}/{path}", json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    def test_the_model_hears_of_its_own_calls(self):
        client = openai.OpenAI(base_url=f"http://{self.server.http}/v1", api_key="none", max_retries=0)
        self.addCleanup(client.close)
        messages = [{"role": "developer", "content": "Be kind."}, *ASK]
        said = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, tool_choice="required", seed=3, max_tokens=200,
                                              parallel_tool_calls=False).choices[0].message
        for content in (None, "", "Let me see."):
            call = said.tool_calls[0]
            turn = [*messages, {**said.model_dump(exclude_none=True), "content": content},
                    {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
            client.chat.completions.create(model=MODEL, messages=turn, tools=TOOLS, max_tokens=4)
            prompt = self.post("detokenize", tokens=self.post("tokenize", messages=turn, tools=TOOLS)["tokens"])["prompt"]
            written = prompt[prompt.index("<tool_call>") + len("<tool_call>"):prompt.index("</tool_call>")]
            name, arguments = written.split(" ", 1)
            self.assertEqual((name, json.loads(arguments)), (call.function.name, json.loads(call.function.arguments)))
            self.assertIn("system: Be kind.", prompt)
            self.assertIn("tool: Rain.", prompt)
            self.assertEqual("assistant: Let me see." in prompt, content == "Let me see.")

    def test_mistrals_later_calls_are_written_read_and_shown_again(self):
        server = Served(BINARY, f"--chat-template={HERE}/templates/mistral_args.jinja")
        self.addCleanup(server.stop)
        client = openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0)
        self.addCleanup(client.close)
        with urllib.request.urlopen(urllib.request.Request(
                f"http://{server.http}/tokenize", json.dumps({"prompt": "[", "add_special_tokens": False}).encode(),
                {"content-type": "application/json"})) as answer:
            bracket = str(json.loads(answer.read())["tokens"][0])
        several = 0
        for seed in range(1, 7):
            # A model that prefers the bracket goes on with another call.
            options = {"model": MODEL, "messages": ASK, "tools": TOOLS, "tool_choice": "required", "seed": seed, "max_tokens": 300,
                       "temperature": 1.3, "logit_bias": {bracket: 12 * (seed % 2)}}
            choice = client.chat.completions.create(**options).choices[0]
            calls = choice.message.tool_calls if choice.finish_reason == "tool_calls" else choice.message.tool_calls[:-1]
            for call in calls:
                self.assertRegex(call.id, "^[a-zA-Z0-9]{9}$")
                jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            several += len(calls) > 1
            deltas = [d for chunk in client.chat.completions.create(stream=True, **options) for d in chunk.choices[0].delta.tool_calls or []]
            self.assertEqual("".join(d.function.arguments or "" for d in deltas),
                             "".join(call.function.arguments for call in choice.message.tool_calls))
        self.assertGreater(several, 0, "no answer had several calls in a row")
        turn = [*ASK, choice.message.model_dump(exclude_none=True)]
        with urllib.request.urlopen(urllib.request.Request(
                f"http://{server.http}/tokenize", json.dumps({"messages": turn, "tools": TOOLS}).encode(),
                {"content-type": "application/json"})) as answer:
            tokens = json.loads(answer.read())["tokens"]
        with urllib.request.urlopen(urllib.request.Request(
                f"http://{server.http}/detokenize", json.dumps({"tokens": tokens}).encode(), {"content-type": "application/json"})) as answer:
            prompt = json.loads(answer.read())["prompt"]
        for call in choice.message.tool_calls:
            self.assertIn(f"[TOOL_CALLS]{call.function.name}[ARGS]", prompt)


if __name__ == "__main__":
    HERE = os.path.dirname(os.path.abspath(__file__))
    BINARY = sys.argv.pop(1)
    SERVER = Served(BINARY, f"--chat-template={HERE}/templates/hermes.jinja")
    try:
        unittest.main()
    finally:
        SERVER.stop()
