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

    def test_greedy_tokens_are_chosen_on_the_device(self):
        model = golden("llama3-like")
        with Stack(TINY, *CUDA, "--offload", "off", env=DRIVER) as stack:
            for case in model["cases"]:
                choice = stack.complete(prompt=case["prompt_token_ids"], max_tokens=len(case["token_ids"]), temperature=0, ignore_eos=model["ignore_eos"],
                                        return_token_ids=True)["choices"][0]
                self.assertEqual(choice["token_ids"], case["token_ids"], case["name"])

    def test_auto_takes_the_gpu(self):
        with Stack(GOLDENS / "qwen2-like", "--dtype", "float32", "--offload", "off", env=DRIVER) as stack:
            self.answers(stack, "qwen2-like")
            self.assertIn("fake GPU of the tests", (stack.run_dir / "gpu-worker.log").read_text())

    def test_doorbells_without_stream_memory_operations(self):
        with Stack(TINY, *CUDA, "--offload", "unified", env={**DRIVER, "FAKE_CUDA_NO_WORDS": "1"}) as stack:
            self.answers(stack, "llama3-like")

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

    def test_one_gpu_only(self):
        status, _, error = run_program("tandem-gpu-worker", "--model", str(TINY), "--tensor-parallel-size", "2")
        self.assertEqual(status, 2)
        self.assertIn("--tensor-parallel-size", error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
