#!/usr/bin/env python3
"""A real model, SmolLM2-135M-Instruct as Q4_1 GGUF, where scripts/get_demo_model.sh has put it: golden answers in float32, and bfloat16."""
import unittest

from harness import DEMO_MODEL, Stack, golden

CASES = ("completion_short", "completion_code", "chat_simple", "chat_unicode_emoji")


@unittest.skipUnless(DEMO_MODEL.exists(), f"{DEMO_MODEL} is not there; scripts/get_demo_model.sh fetches it")
class DemoModel(unittest.TestCase):
    def setUp(self):
        self.golden = golden("smollm2")
        self.cases = [case for case in self.golden["cases"] if case["name"] in CASES]
        self.assertEqual(len(self.cases), len(CASES))

    def test_float32_with_both_tiers(self):
        with Stack(DEMO_MODEL, "--dtype", "float32", "--cpu-kv-size", "256MiB", "--offload", "unified") as stack:
            for case in self.cases:
                choice = stack.complete(prompt=case["prompt_token_ids"], max_tokens=len(case["token_ids"]), temperature=0, logprobs=0,
                                        return_token_ids=True)["choices"][0]
                sure = case["tokens_until_margin"]
                self.assertEqual(choice["token_ids"][:sure], case["token_ids"][:sure], case["name"])
                for got, want in zip(choice["logprobs"]["token_logprobs"][:sure], case["logprobs"]):
                    self.assertAlmostEqual(got, want, delta=1e-3, msg=case["name"])
            for case in self.golden["tokenizer_cases"]:
                self.assertEqual(stack.post("/tokenize", {"prompt": case["text"]}).body["tokens"], case["token_ids"], case["text"])
            for case in self.golden["chat_cases"]:
                reply = stack.post("/tokenize", {"messages": case["messages"], **case.get("options", {})})
                self.assertEqual(reply.body.get("tokens"), case["token_ids"], case["messages"])

    def test_bfloat16(self):
        """Teacher forcing: the mean difference of the golden tokens' logprobs is within twice the reference's own."""
        limit = 2 * self.golden["tolerance"]["bf16 weights and activations"]["mean_abs_logprob_diff"]
        with Stack(DEMO_MODEL, "--dtype", "bfloat16", "--cpu-kv-size", "256MiB") as stack:
            differences = []
            for case in self.cases:
                ids = case["prompt_token_ids"] + case["token_ids"]
                entries = stack.complete(prompt=ids, max_tokens=1, temperature=0, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
                got = [next(iter(entry.values()))["logprob"] for entry in entries[len(case["prompt_token_ids"]):]]
                differences += [abs(a - b) for a, b in zip(got, case["logprobs"], strict=True)]
            self.assertLessEqual(sum(differences) / len(differences), limit)


if __name__ == "__main__":
    unittest.main(verbosity=2)
