#!/usr/bin/env python3
"""The worker with --device cuda on the tests' CUDA driver (tests/fakes/cuda), whose kernels are ours, compiled for the CPU: goldens in every way of
running a step, the death of the CPU attention worker while the device waits for it, and what is said where there is no driver."""
import concurrent.futures
import os
import pathlib
import unittest

from harness import BIN, EXACT, GOLDENS, TINY, Stack, golden, run_program, wait_until

FAKES = pathlib.Path(os.environ.get("FAKE_CUDA", BIN.parent / "tests/fakes/cuda"))
DRIVER = {"LD_LIBRARY_PATH": str(FAKES)}
CUDA = ("--device", "cuda", *EXACT)
MODES = {
    "off": ("--offload", "off"),
    "unified": ("--offload", "unified"),
    "asymmetric": ("--offload", "asymmetric"),
    "all_cpu": ("--offload", "all-cpu"),
    "auto_tight": ("--offload", "auto", "--num-gpu-blocks-override", "80", "--max-num-batched-tokens", "64"),
}
LOGPROB = 1e-3  # float32; see tests/data/goldens/README.md


@unittest.skipUnless((FAKES / "libcuda.so.1").exists(), "this build has no CUDA device: there was no CUDA toolkit")
class CudaTest(unittest.TestCase):
    def case(self, stack, case, ignore_eos):
        want = case["token_ids"]
        choice = stack.complete(prompt=case["prompt_token_ids"], max_tokens=len(want), temperature=0, ignore_eos=ignore_eos, logprobs=5,
                                return_token_ids=True)["choices"][0]
        self.assertEqual(choice["token_ids"], want, case["name"])
        for got, expected in zip(choice["logprobs"]["token_logprobs"], case["logprobs"], strict=True):
            self.assertAlmostEqual(got, expected, delta=LOGPROB, msg=case["name"])

    def answers(self, stack, name):
        model = golden(name)
        with concurrent.futures.ThreadPoolExecutor(len(model["cases"])) as pool:
            list(pool.map(lambda case: self.case(stack, case, model["ignore_eos"]), model["cases"]))

    def test_goldens_in_all_modes(self):
        for seed, (mode, flags) in enumerate(MODES.items()):
            with self.subTest(mode=mode), Stack(TINY, *CUDA, *flags, env={**DRIVER, "FAKE_CUDA_SEED": str(seed)}) as stack:
                self.answers(stack, "llama3-like")
                on_cpu = stack.metric("tandem_worker_decode_tokens_total", tier="cpu")
                if mode == "off":
                    self.assertEqual(on_cpu, 0)
                elif mode != "auto_tight":
                    self.assertGreater(on_cpu, 0)
                stack.wait_no_blocks()

    def sampled(self, device, **environment):
        """Tokens and logprobs of requests that want everything that sampling has, several of them in each step."""
        prompts = [case["prompt_token_ids"] for case in golden("llama3-like")["cases"][:6]]
        wishes = [
            {"temperature": 0.9, "seed": 7},
            {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "seed": 8, "logprobs": 3},
            {"temperature": 1.3, "min_p": 0.02, "seed": 9, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
            {"temperature": 0, "logit_bias": {"5": 4.0, "9": -50.0}, "min_tokens": 6, "logprobs": 0},
            {"temperature": 0.8, "seed": 11, "guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "logprobs": 2},
            {"temperature": 0, "prompt_logprobs": 2},
        ]
        with Stack(TINY, "--device", device, *EXACT, "--offload", "off", env=environment) as stack:
            def ask(prompt, wish):
                return stack.complete(prompt=prompt, max_tokens=16, return_token_ids=True, **wish)["choices"][0]

            with concurrent.futures.ThreadPoolExecutor(len(wishes)) as pool:
                return list(pool.map(ask, prompts, wishes))

    def test_sampling_on_the_device_is_the_hosts(self):
        for got, want in zip(self.sampled("cuda", **DRIVER), self.sampled("host"), strict=True):
            self.assertEqual(got["token_ids"], want["token_ids"])
            self.assertEqual(got["finish_reason"], want["finish_reason"])
            if want.get("logprobs"):
                for mine, theirs in zip(got["logprobs"]["token_logprobs"], want["logprobs"]["token_logprobs"], strict=True):
                    self.assertAlmostEqual(mine, theirs, delta=LOGPROB)
                self.assertEqual([list(top) for top in got["logprobs"]["top_logprobs"]], [list(top) for top in want["logprobs"]["top_logprobs"]])
            self.assertEqual(len(got.get("prompt_logprobs") or []), len(want.get("prompt_logprobs") or []))

    def test_auto_takes_the_gpu(self):
        with Stack(GOLDENS / "qwen2-like", "--dtype", "float32", "--offload", "off", env=DRIVER) as stack:
            self.answers(stack, "qwen2-like")
            self.assertIn("fake GPU of the tests", (stack.run_dir / "gpu-worker.log").read_text())

    def test_two_gpus_share_out_the_model(self):
        two = {**DRIVER, "FAKE_CUDA_DEVICES": "2"}
        flags = ("--device", "auto", "--tensor-parallel-size", "2", *EXACT)
        for mode in ("auto_tight", "all_cpu"):
            with self.subTest(mode=mode), Stack(TINY, *flags, *MODES[mode], env=two) as stack:
                self.answers(stack, "llama3-like")
                self.assertIn("2 x cuda: fake GPU of the tests", (stack.run_dir / "gpu-worker.log").read_text())
                stack.wait_no_blocks()

    def test_models_and_hosts_that_several_gpus_do_not_fit(self):
        for model, devices, words in (("llama2-like", "2", "num_attention_heads of 3"), ("llama3-like", "1", "2 GPUs: the CUDA driver sees 1 device")):
            status, _, error = run_program("tandem-gpu-worker", "--model", str(GOLDENS / model), "--tensor-parallel-size", "2",
                                           env={**DRIVER, "FAKE_CUDA_DEVICES": devices})
            self.assertEqual(status, 2, error)
            self.assertIn(words, error)

    def test_doorbells_without_stream_memory_operations(self):
        for variable in ("FAKE_CUDA_NO_WORDS", "FAKE_CUDA_NO_GRAPH_WORDS"):
            with self.subTest(variable), Stack(TINY, *CUDA, "--offload", "unified", env={**DRIVER, variable: "1"}) as stack:
                self.answers(stack, "llama3-like")
                self.assertGreater(stack.metric("tandem_worker_graph_steps_total"), 0)

    def test_without_graphs(self):
        with Stack(TINY, *CUDA, "--offload", "asymmetric", "--enforce-eager", env=DRIVER) as stack:
            self.answers(stack, "llama3-like")
            self.assertEqual(stack.metric("tandem_worker_graph_steps_total"), 0)

    def test_the_cpu_attention_worker_dies_while_the_device_waits(self):
        case = golden("llama3-like")["cases"][0]
        with Stack(TINY, *CUDA, "--offload", "all-cpu", env=DRIVER) as stack:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                running = pool.submit(stack.complete, prompt=case["prompt_token_ids"], max_tokens=200, temperature=0, ignore_eos=True)
                wait_until(lambda: stack.metric("tandem_worker_decode_tokens_total", tier="cpu") > 5, "decodes on the CPU")
                stack.kill("cpu-attention-worker")
                self.assertEqual(running.result()["usage"]["completion_tokens"], 200)
            self.answers(stack, "llama3-like")


class NoDriverTest(unittest.TestCase):
    def test_says_why_cuda_is_unavailable(self):
        status, _, error = run_program("tandem-gpu-worker", "--model", str(TINY), "--device", "cuda")
        self.assertEqual(status, 2)
        self.assertRegex(error, "--device cuda: (there is no CUDA driver|this build has no CUDA device|no CUDA device|the CUDA driver sees no device)")

    def test_several_gpus_need_a_driver(self):
        status, _, error = run_program("tandem-gpu-worker", "--model", str(TINY), "--tensor-parallel-size", "2")
        self.assertEqual(status, 2)
        self.assertIn("--tensor-parallel-size: 2 GPUs: ", error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
