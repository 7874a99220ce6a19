#!/usr/bin/env python3
"""Structured output over the running stack. The model is random, so whatever comes out right comes from the grammar."""
import concurrent.futures
import json
import os
import re
import unittest

from harness import BIN, EXACT, TINY, Stack, Stream

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 120},
                                           "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
MESSAGES = [{"role": "user", "content": "Describe a person."}]


def available():
    """True also where XGrammar has to be there: then a build without it fails here instead of being skipped."""
    required = "CI" in os.environ or "TANDEM_REQUIRE_XGRAMMAR" in os.environ
    return required or os.path.exists(os.path.join(BIN, "..", "lib", "libxgrammar_bindings.so"))


@unittest.skipUnless(available(), "reason: this build has no XGrammar")
class StructuredOutput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = Stack(TINY, *EXACT)
        cls.addClassCleanup(cls.stack.__exit__, None, None, None)

    def check(self, text):
        value = json.loads(text)
        self.assertEqual(list(value), ["name", "age", "tags"])
        self.assertIsInstance(value["name"], str)
        self.assertLessEqual(len(value["name"]), 8)
        self.assertIn(value["age"], range(1, 121))
        self.assertLessEqual(len(value["tags"]), 2)
        self.assertLessEqual(set(value["tags"]), {"red", "green"})

    def chat(self, seed, **extra):
        reply = self.stack.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 400, "temperature": 1, "seed": seed, **extra})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.body["choices"]

    def test_a_schema_holds_whatever_the_sampling(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for choices in pool.map(lambda seed: self.chat(seed, response_format=FORMAT), range(16)):
                self.assertEqual(choices[0]["finish_reason"], "stop")
                self.check(choices[0]["message"]["content"])
        self.check(self.chat(1, response_format=FORMAT, temperature=0)[0]["message"]["content"])
        self.check(self.chat(1, response_format=FORMAT, ignore_eos=True, min_tokens=300)[0]["message"]["content"])
        for choice in self.chat(2, response_format=FORMAT, n=3):
            self.check(choice["message"]["content"])

    def test_streams_and_neighbours(self):
        body = {"messages": MESSAGES, "max_tokens": 400, "temperature": 1, "seed": 5, "response_format": FORMAT}
        free = {"prompt": "The forest", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        alone = self.stack.complete(**free)["choices"][0]["text"]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            beside = pool.submit(self.stack.complete, **free)
            events = list(Stream(self.stack, "/v1/chat/completions", body))
            self.assertEqual(beside.result()["choices"][0]["text"], alone, "another sequence changed")
        text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
        self.check(text)
        self.assertEqual(text, self.chat(5, response_format=FORMAT)[0]["message"]["content"])

    def test_other_grammars(self):
        cases = [({"structured_outputs": {"regex": "[a-c]{3}-\\d{2}"}}, r"[a-c]{3}-\d{2}"),
                 ({"guided_regex": "x{1,9}y"}, r"x{1,9}y"),
                 ({"structured_outputs": {"choice": ["yes", "no"]}}, r"yes|no"),
                 ({"guided_choice": ["up", "down"]}, r"up|down"),
                 ({"structured_outputs": {"grammar": "root ::= \"a\" [0-9] | \"b\""}}, r"a[0-9]|b")]
        for extra, pattern in cases:
            text = self.stack.complete(prompt="Say", max_tokens=200, temperature=1, seed=3, **extra)["choices"][0]["text"]
            self.assertRegex(text, re.compile(f"^(?:{pattern})$"), extra)
        text = self.stack.complete(prompt="Say", max_tokens=100, temperature=0, guided_json=json.dumps({"type": "boolean"}))["choices"][0]["text"]
        self.assertIn(json.loads(text), (True, False))

    def test_what_cannot_be_followed_is_refused(self):
        def refusal(extra, param, word):
            reply = self.stack.post("/v1/completions", {"prompt": "x", "max_tokens": 5, **extra})
            self.assertEqual((reply.status, reply.body["error"]["param"]), (400, param), reply.body)
            self.assertIn(word, reply.body["error"]["message"])

        refusal({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array", "contains": {}}}}}, "response_format", "contains")
        refusal({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs", "lookahead")
        refusal({"guided_grammar": "root ::= nothing"}, "guided_grammar", "nothing")
        refusal({"guided_json": {"type": "integer", "minimum": 2, "maximum": 1}}, "guided_json", "no value")
        reply = self.stack.post("/v1/completions", {"prompt": "x", "max_tokens": 5})
        self.assertEqual(reply.status, 200)


if __name__ == "__main__":
    unittest.main()
