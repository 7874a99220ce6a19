#!/usr/bin/env python3
"""Two tiny models through the three processes: tokens and logprobs of an independent implementation in every way of running a step."""
import concurrent.futures
import unittest

from harness import GOLDENS, Stack, golden

MODES = {
    "off": ("--offload", "off"),
    "unified": ("--offload", "unified"),
    "asymmetric": ("--offload", "asymmetric"),
    "all_cpu": ("--offload", "all-cpu"),
    "auto_tight": ("--offload", "auto", "--num-gpu-blocks-override", "80", "--max-num-batched-tokens", "64"),
}
LOGPROB = 1e-3  # float32; see tests/data/goldens/README.md


class Goldens:
    """The tests of one model; the classes below name it."""

    name = ""

    def setUp(self):
        self.golden = golden(self.name)

    def case(self, stack, case):
        want = case["token_ids"]
        choice = stack.complete(prompt=case["prompt_token_ids"], max_tokens=len(want), temperature=0, ignore_eos=self.golden["ignore_eos"],
                                logprobs=5, return_token_ids=True, return_tokens_as_token_ids=True)["choices"][0]
        self.assertEqual(choice["token_ids"], want, case["name"])
        self.assertEqual(choice["text"], case["text"], case["name"])
        for got, expected in zip(choice["logprobs"]["token_logprobs"], case["logprobs"], strict=True):
            self.assertAlmostEqual(got, expected, delta=LOGPROB, msg=case["name"])
        for top, ids, values in zip(choice["logprobs"]["top_logprobs"], case["top5_ids"], case["top5_logprobs"], strict=True):
            for token, value in list(zip(ids, values))[:3]:
                self.assertAlmostEqual(top[f"token_id:{token}"], value, delta=LOGPROB, msg=case["name"])

    def exact(self, mode):
        with Stack(GOLDENS / self.name, "--dtype", "float32", "--cpu-kv-size", "64MiB", *MODES[mode]) as stack:
            with concurrent.futures.ThreadPoolExecutor(len(self.golden["cases"])) as pool:
                list(pool.map(lambda case: self.case(stack, case), self.golden["cases"]))
            steps = {m: stack.metric("tandem_worker_steps_total", mode=m) for m in ("gpu_only", "unified", "asymmetric")}
            on_cpu = stack.metric("tandem_worker_decode_tokens_total", tier="cpu")
            if mode == "off":
                self.assertEqual((on_cpu, steps["unified"], steps["asymmetric"]), (0, 0, 0))
            elif mode != "auto_tight":
                self.assertGreater(on_cpu, 0)
                self.assertGreater(steps["asymmetric" if mode == "asymmetric" else "unified"], 0)
            stack.wait_no_blocks()

    def test_off(self):
        self.exact("off")

    def test_unified(self):
        self.exact("unified")

    def test_asymmetric(self):
        self.exact("asymmetric")

    def test_all_cpu(self):
        self.exact("all_cpu")

    def test_auto_with_a_tight_pool(self):
        self.exact("auto_tight")

    def test_prompt_logprobs_and_tokenizer(self):
        with Stack(GOLDENS / self.name, "--dtype", "float32", "--cpu-kv-size", "64MiB") as stack:
            for case in self.golden["cases"]:
                if "prompt_logprobs" not in case:
                    continue
                choice = stack.complete(prompt=case["prompt_token_ids"], max_tokens=1, temperature=0, prompt_logprobs=0)["choices"][0]
                got = [next(iter(entry.values()))["logprob"] if entry else None for entry in choice["prompt_logprobs"]]
                self.assertIsNone(got[0])
                for value, expected in zip(got[1:], case["prompt_logprobs"][1:], strict=True):
                    self.assertAlmostEqual(value, expected, delta=LOGPROB)
            for case in self.golden["tokenizer_cases"]:
                self.assertEqual(stack.post("/tokenize", {"prompt": case["text"]}).body["tokens"], case["token_ids"], case["text"])
            for case in self.golden["chat_cases"]:
                reply = stack.post("/tokenize", {"messages": case["messages"], **case.get("options", {})})
                self.assertEqual(reply.body.get("tokens"), case["token_ids"], case["messages"])


class Llama3Like(Goldens, unittest.TestCase):
    name = "llama3-like"


class Qwen3Like(Goldens, unittest.TestCase):
    name = "qwen3-like"


if __name__ == "__main__":
    unittest.main(verbosity=2)
