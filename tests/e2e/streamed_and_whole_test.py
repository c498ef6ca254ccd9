#!/usr/bin/env python3
"""Random mixes of parameters, each sent to every endpoint streamed and whole: what is said is the same, to the last logprob, and
chats, responses and messages of one conversation say the same to each other.

Usage: streamed_and_whole_test.py BINARY [MIXES [SEED]]          (Python's own library alone; run by CTest)
"""

import json
import os
import random
import sys
import unittest
import urllib.error
import urllib.request

from served import Served

MODEL = "story-7m"
SERVER, MIXES, SEED = None, 40, 1
HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = {"get_weather": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
                         "required": ["city"], "additionalProperties": False},
         "set_colour": {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


def draw_mix(draw):
    """Parameters under a chat's names; those that an endpoint spells otherwise, or has not, are left to it."""
    mix = {"max_tokens": draw.randint(1, 60), "temperature": draw.choice([0, 0.7, 1, 1.4]), "seed": draw.randint(1, 10 ** 6)}
    for name, values in (("top_p", [0.5, 0.9]), ("top_k", [1, 5, 50]), ("min_p", [0.05]), ("presence_penalty", [-1, 1.5]),
                         ("frequency_penalty", [0.5]), ("repetition_penalty", [1.3]), ("logit_bias", [{"304": 4, "431": -100}]),
                         ("ignore_eos", [True]), ("skip_special_tokens", [False]), ("timeout", [60]), ("user", ["somebody"]),
                         ("include_stop_str_in_output", [True]), ("stop_token_ids", [[265, 304]]),
                         ("stop", ["a", [" the", "."], ["was", "nce", "e o"], ["\n"]])):
        if draw.random() < 0.25:
            mix[name] = draw.choice(values)
    return mix


def draw_chat(draw):
    """A mix, and what chats alone have: constraints, tools, thinking."""
    mix = draw_mix(draw)
    kind = draw.choice(["text", "text", "tools", "tools", "json", "either"])
    mix["thinks"] = draw.random() < 0.5
    if kind in ("json", "either"):
        mix["schema"] = SCHEMA
        mix["max_tokens"] += 60
    if kind in ("tools", "either"):
        mix["tools"] = draw.sample(sorted(TOOLS), draw.randint(1, 2))
        mix["choice"] = draw.choice(["auto", "required", "named"] + ["none"] * (kind == "either"))
        mix["parallel"] = draw.random() < 0.5
        mix["max_tokens"] += 60
    mix["messages"] = [{"role": "user", "content": draw.choice(["Tell me about a fox.", "Hello!", "What is the weather in Oslo?"])}]
    if draw.random() < 0.3:
        mix["messages"].insert(0, {"role": "system", "content": "Be kind."})
    return mix


def post(path, body):
    request = urllib.request.Request(f"http://{SERVER.http}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def events(text):
    blocks = [block.split("\n")[-1] for block in text.split("\n\n") if block and not block.startswith(":")]
    return [json.loads(block[len("data: "):]) for block in blocks if block != "data: [DONE]"]


def joined(parts):
    """Logprobs of several events as those of one."""
    out = None
    for part in parts:
        out = part if out is None else {key: out[key] + part[key] if isinstance(out[key], list) else out[key] for key in out}
    return out


def without_times(usage):
    return {key: value for key, value in usage.items() if key not in ("aisp", "prompt_tokens_details", "input_tokens_details")}


class OpenAi:
    """Chats and completions: {index: {...}}, usage."""

    @staticmethod
    def whole(text, chat):
        answer = json.loads(text)
        out = {}
        for choice in answer["choices"]:
            said = choice["message"] if chat else {"content": choice["text"]}
            out[choice["index"]] = {
                "text": said["content"] or "", "thought": said.get("reasoning_content", ""),
                "calls": [(each["function"]["name"], each["function"]["arguments"]) for each in said.get("tool_calls", [])],
                "logprobs": choice["logprobs"], "ids": choice.get("token_ids", []), "finish": choice["finish_reason"]}
        return out, without_times(answer["usage"])

    @staticmethod
    def streamed(text, chat):
        out, usage = {}, None
        for event in events(text):
            usage = event["usage"] or usage
            for choice in event["choices"]:
                said = choice["delta"] if chat else {"content": choice["text"]}
                one = out.setdefault(choice["index"], {"text": "", "thought": "", "calls": [], "logprobs": [], "ids": [], "finish": None})
                assert one["finish"] is None, "nothing comes behind the end"
                one["text"] += said.get("content") or ""
                one["thought"] += said.get("reasoning_content", "")
                for call in said.get("tool_calls", []):
                    if "id" in call:
                        assert call["index"] == len(one["calls"])
                        one["calls"].append((call["function"]["name"], ""))
                    name, arguments = one["calls"][call["index"]]
                    one["calls"][call["index"]] = (name, arguments + call["function"]["arguments"])
                if choice["logprobs"]:
                    one["logprobs"].append(choice["logprobs"])
                one["ids"] += choice.get("token_ids", [])
                one["finish"] = choice["finish_reason"]
        for one in out.values():
            one["logprobs"] = joined(one["logprobs"])
        return out, without_times(usage)


def response_items(response):
    """Items without their ids."""
    def bare(item):
        if item["type"] == "function_call":
            return item["type"], item["status"], item["name"], item["arguments"]
        return item["type"], item["status"], [(part["text"], part.get("logprobs")) for part in item["content"]]
    return [bare(item) for item in response["output"]], response["status"], without_times(response["usage"])


def response_deltas(all_events):
    """The same as the deltas tell it, without statuses and usage."""
    items = []
    for event in all_events:
        kind = event["type"]
        if kind == "response.output_item.added":
            items.append([event["item"]["type"], event["item"].get("name"), "", []])
        elif kind.endswith(".delta"):
            items[event["output_index"]][2] += event["delta"]
            items[event["output_index"]][3] += event.get("logprobs", [])
    return items


def message_blocks(message):
    blocks = []
    for block in message["content"]:
        text = block.get("text", block.get("thinking", ""))
        blocks.append((block["type"], block.get("name"), block["input"] if block["type"] == "tool_use" else text))
    return blocks, message["stop_reason"], message["stop_sequence"], message_usage(message["usage"])


def message_usage(usage):
    return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]


def message_events(all_events):
    blocks = []
    for event in all_events:
        if event["type"] == "content_block_start":
            blocks.append([event["content_block"]["type"], event["content_block"].get("name"), ""])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[event["index"]][2] += delta.get("text", delta.get("thinking", delta.get("partial_json", "")))
        elif event["type"] == "message_delta":
            end = event
    for block in blocks:
        if block[0] == "tool_use":
            try:
                block[2] = json.loads(block[2] or "{}")
            except ValueError:
                block[2] = {}  # cut off
    delta = end["delta"]
    return [tuple(block) for block in blocks], delta["stop_reason"], delta["stop_sequence"], message_usage(end["usage"])


def kept(mix, *left_out):
    own = {"thinks", "schema", "tools", "choice", "parallel", "messages", *left_out}
    return {key: value for key, value in mix.items() if key not in own}


class StreamedAndWhole(unittest.TestCase):
    def ask(self, path, body, streamed):
        """The whole answer, and the stream; both are refused alike."""
        (status, whole), (stream_status, stream) = post(path, body), post(path, {**body, "stream": True, **streamed})
        self.assertEqual(stream_status, status, (whole, stream))
        self.assertIn(status, (200, 400), whole)
        if status == 400:
            self.refused.append(json.loads(whole)["error"]["message"])
            self.assertEqual(json.loads(stream)["error"], json.loads(whole)["error"] if path != "/v1/messages" else json.loads(stream)["error"])
            return None, None
        return whole, stream

    def for_mixes(self, make, check):
        self.refused, asked = [], 0
        for number in range(MIXES):
            draw = random.Random(f"{SEED} {self.id()} {number}")
            mix = make(draw)
            with self.subTest(mix=mix, number=number):
                asked += 1
                check(draw, mix)
        self.assertLess(len(self.refused), asked / 2, self.refused)

    def openai(self, path, body, draw):
        usage = {"include_usage": True, "continuous_usage_stats": draw.random() < 0.2}
        whole, stream = self.ask(path, body, {"stream_options": usage})
        if whole is None:
            return None
        expected, chat = OpenAi.whole(whole, "chat" in path), "chat" in path
        self.assertEqual(OpenAi.streamed(stream, chat), expected)
        return expected

    def test_completions(self):
        def check(draw, mix):
            body = {"model": MODEL, "prompt": draw.choice(["Once upon", ["A fox", "The bridge"], [1, 58, 415]]), **mix}
            body |= draw.choice([{}, {"logprobs": draw.randint(0, 4)}, {"n": 3}, {"echo": True}, {"add_special_tokens": False},
                                 {"return_token_ids": True}, {"echo": True, "logprobs": 2}, {"guided_regex": "[a-z ]{3,12}"},
                                 {"logprobs": 1, "return_tokens_as_token_ids": True}])
            self.openai("/v1/completions", body, draw)
        self.for_mixes(draw_mix, check)

    def chat_body(self, mix):
        body = {"model": MODEL, "messages": mix["messages"], **kept(mix)}
        body["chat_template_kwargs"] = {"enable_thinking": mix["thinks"]}
        if "schema" in mix:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": mix["schema"]}}
        if "tools" in mix:
            body["tools"] = [{"type": "function", "function": {"name": name, "description": "It does.", "parameters": TOOLS[name]}}
                             for name in mix["tools"]]
            named = {"type": "function", "function": {"name": mix["tools"][0]}}
            body["tool_choice"] = named if mix["choice"] == "named" else mix["choice"]
            body["parallel_tool_calls"] = mix["parallel"]
        return body

    def test_chats(self):
        def check(draw, mix):
            body = self.chat_body(mix) | draw.choice([{}, {"n": 2}, {"logprobs": True, "top_logprobs": draw.randint(0, 3)},
                                                      {"return_token_ids": True}, {"include_reasoning": False}])
            self.openai("/v1/chat/completions", body, draw)
        self.for_mixes(draw_chat, check)

    def test_responses_and_messages_say_what_chats_say(self):
        def check(draw, mix):
            chat = self.openai("/v1/chat/completions", self.chat_body(mix), draw)
            response, message = self.response(draw, mix), self.message(mix)
            if chat is None:
                return
            said, usage = chat[0][0], chat[1]
            self.assertEqual("".join(part[0] for item in response[0] if item[0] == "message" for part in item[2]), said["text"])
            self.assertEqual("".join(part[0] for item in response[0] if item[0] == "reasoning" for part in item[2]), said["thought"])
            self.assertEqual([item[2:] for item in response[0] if item[0] == "function_call"], said["calls"])
            self.assertEqual(response[1], "incomplete" if said["finish"] == "length" else "completed")
            self.assertEqual((response[2]["input_tokens"], response[2]["output_tokens"]), (usage["prompt_tokens"], usage["completion_tokens"]))
            self.assertEqual("".join(block[2] for block in message[0] if block[0] == "text"), said["text"])
            self.assertEqual("".join(block[2] for block in message[0] if block[0] == "thinking"), said["thought"])
            self.assertEqual([block[1] for block in message[0] if block[0] == "tool_use"], [call[0] for call in said["calls"]])
            self.assertEqual(message[3], (usage["prompt_tokens"], usage["completion_tokens"]))
            ends = {"length": ["max_tokens"], "tool_calls": ["tool_use"], "stop": ["end_turn", "stop_sequence"]}
            self.assertIn(message[1], ends[said["finish"]])
        self.for_mixes(draw_chat, check)

    def response(self, draw, mix):
        body = {"model": MODEL, "input": mix["messages"], "max_output_tokens": mix["max_tokens"], "store": draw.random() < 0.5,
                **kept(mix, "max_tokens"), "chat_template_kwargs": {"enable_thinking": mix["thinks"]}}
        if "schema" in mix:
            body["text"] = {"format": {"type": "json_schema", "name": "person", "schema": mix["schema"]}}
        if "tools" in mix:
            body["tools"] = [{"type": "function", "name": name, "description": "It does.", "parameters": TOOLS[name]} for name in mix["tools"]]
            body["tool_choice"] = {"type": "function", "name": mix["tools"][0]} if mix["choice"] == "named" else mix["choice"]
            body["parallel_tool_calls"] = mix["parallel"]
        if draw.random() < 0.4:
            body |= {"include": ["message.output_text.logprobs"], "top_logprobs": draw.randint(0, 2)}
        whole, stream = self.ask("/v1/responses", body, {})
        if whole is None:
            return None
        expected, told = response_items(json.loads(whole)), events(stream)
        self.assertEqual([event["sequence_number"] for event in told], list(range(len(told))))
        self.assertEqual(response_items(told[-1]["response"]), expected)
        for item, (kind, name, text, logprobs) in zip(expected[0], response_deltas(told), strict=True):
            self.assertEqual(kind, item[0])
            self.assertEqual((name, text) if kind == "function_call" else text, item[2:] if kind == "function_call" else item[2][0][0])
            if kind == "message":
                self.assertEqual(logprobs, item[2][0][1])
        return expected

    def message(self, mix):
        body = {"model": MODEL, "max_tokens": mix["max_tokens"], "chat_template_kwargs": {"enable_thinking": mix["thinks"]},
                "messages": mix["messages"], **kept(mix, "max_tokens", "stop", "user")}
        if "stop" in mix:
            body["stop_sequences"] = mix["stop"]
        if "schema" in mix:
            body["output_config"] = {"format": {"type": "json_schema", "schema": mix["schema"]}}
        if "tools" in mix:
            body["tools"] = [{"name": name, "description": "It does.", "input_schema": TOOLS[name]} for name in mix["tools"]]
            kind = {"auto": "auto", "required": "any", "named": "tool", "none": "none"}[mix["choice"]]
            body["tool_choice"] = {"type": kind}
            if kind != "none":
                body["tool_choice"]["disable_parallel_tool_use"] = not mix["parallel"]
            if kind == "tool":
                body["tool_choice"]["name"] = mix["tools"][0]
        whole, stream = self.ask("/v1/messages", body, {})
        if whole is None:
            return None
        expected = message_blocks(json.loads(whole))
        told = message_events(events(stream))
        # In a stream, text after a call is in a separate block.
        for kind in ("text", "thinking"):
            self.assertEqual(*("".join(block[2] for block in side[0] if block[0] == kind) for side in (told, expected)))
        self.assertEqual(*([block for block in side[0] if block[0] == "tool_use"] for side in (told, expected)))
        self.assertEqual(told[1:], expected[1:])
        return expected


if __name__ == "__main__":
    binary, *rest = sys.argv[1:]
    MIXES, SEED = (int(each) for each in (rest + [MIXES, SEED][len(rest):]))
    SERVER = Served(binary, f"--chat-template={HERE}/templates/hermes.jinja")
    try:
        unittest.main(argv=sys.argv[:1])
    finally:
        SERVER.stop()
