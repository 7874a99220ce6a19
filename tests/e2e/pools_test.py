#!/usr/bin/env python3
"""More load than the pools hold: everything accepted is answered, with the tokens that a roomy pool gives, and no block stays behind."""
import unittest

from harness import TINY, Stack

PROMPTS = [[7 + i] * (40 + 9 * i) for i in range(12)]
TOKENS = 96


class SmallPools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Stack(TINY, "--dtype", "float32", "--offload", "off") as stack:
            cls.reference = stack.greedy_together(PROMPTS, TOKENS)

    def serve(self, *flags):
        with Stack(TINY, "--dtype", "float32", *flags) as stack:
            self.assertEqual(stack.greedy_together(PROMPTS, TOKENS), self.reference)
            stack.wait_no_blocks()
            return {"cpu": stack.metric("tandem_worker_decode_tokens_total", tier="cpu"),
                    "moves": stack.metric("tandem_worker_moves_total", kind="swap_out"),
                    "recomputes": stack.metric("tandem_worker_moves_total", kind="recompute")}

    def test_small_device_pool(self):
        self.serve("--num-gpu-blocks-override", "40", "--cpu-kv-size", "64MiB")

    def test_small_device_pool_without_offloading(self):
        self.assertEqual(self.serve("--num-gpu-blocks-override", "40", "--offload", "off")["cpu"], 0)

    def test_both_pools_small(self):
        self.serve("--num-gpu-blocks-override", "24", "--cpu-kv-size", "4MiB", "--max-num-batched-tokens", "64")

    def test_no_cpu_pool(self):
        self.assertEqual(self.serve("--num-gpu-blocks-override", "40", "--cpu-kv-size", "0")["cpu"], 0)

    def test_forced_modes_with_small_pools(self):
        for mode in ("unified", "asymmetric", "all-cpu"):
            with self.subTest(mode):
                seen = self.serve("--offload", mode, "--num-gpu-blocks-override", "40", "--cpu-kv-size", "8MiB", "--max-num-batched-tokens", "96")
                self.assertGreater(seen["cpu"], 0)

    def test_one_that_fits_only_the_cpu_pool(self):
        prompt = [5 + i % 200 for i in range(900)]
        with Stack(TINY, "--dtype", "float32", "--offload", "off") as stack:
            want = stack.greedy(prompt, 20)
        with Stack(TINY, "--dtype", "float32", "--num-gpu-blocks-override", "16", "--cpu-kv-size", "64MiB", "--max-num-batched-tokens", "128") as stack:
            self.assertEqual(stack.greedy(prompt, 20), want)
            self.assertGreater(stack.metric("tandem_worker_decode_tokens_total", tier="cpu"), 0)
            stack.wait_no_blocks()

    def test_one_that_fits_neither_is_refused(self):
        with Stack(TINY, "--dtype", "float32", "--num-gpu-blocks-override", "16", "--offload", "off") as stack:
            reply = stack.post("/v1/completions", {"prompt": [5] * 600, "max_tokens": 20})
            self.assertEqual(reply.status, 400, reply.body)
            self.assertEqual(set(reply.body["error"]), {"message", "type", "param", "code"})
            self.assertEqual(len(stack.greedy([5] * 20, 8)), 8)


if __name__ == "__main__":
    unittest.main(verbosity=2)
