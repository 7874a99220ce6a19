#!/usr/bin/env python3
"""KV heads shared out over several NUMA nodes: one CPU attention worker and one region each, the same answers. The nodes are made up by hwloc."""
import unittest

from harness import EXACT, TINY, Stack, TokenStream, run_program, wait_until

PROMPTS = [[11 + i, 40, 60 + 3 * i, 90] * 8 for i in range(4)]
TOKENS = 300
TWO_NODES = {"HWLOC_SYNTHETIC": "numa:2 core:1 pu:1"}
SHARDED = ("--numa-node", "0,1")


def reference():
    with Stack(TINY, *EXACT, "--offload", "all-cpu") as stack:
        tokens = stack.greedy_together(PROMPTS, TOKENS)
        return tokens, stack.metric("tandem_cpu_attention_read_bytes_total", "cpu_attention_worker")


class Sharded(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.want, cls.read_bytes = reference()

    def sharded(self, *flags):
        return Stack(TINY, *EXACT, *SHARDED, *flags, env=TWO_NODES)

    def test_the_answers_and_the_work_are_the_same(self):
        for mode in ("all-cpu", "unified", "asymmetric"):
            with self.subTest(mode), self.sharded("--offload", mode) as stack:
                wait_until(lambda: stack.metric("tandem_worker_cpu_attention_up") == 1, "both attached")
                self.assertEqual(stack.greedy_together(PROMPTS, TOKENS), self.want)
                read = [stack.metric("tandem_cpu_attention_read_bytes_total", f"cpu_attention_worker{i}") for i in ("", "_1")]
                self.assertGreater(min(read), 0)
                if mode == "all-cpu":
                    self.assertAlmostEqual(sum(read) / self.read_bytes, 1, delta=0.05)

    def test_either_may_die(self):
        with self.sharded("--offload", "all-cpu") as stack:
            for name in ("cpu-attention-worker-1", "cpu-attention-worker"):
                wait_until(lambda: stack.metric("tandem_worker_cpu_attention_up") == 1, "both attached")
                streams = [TokenStream(stack, prompt, TOKENS) for prompt in PROMPTS]
                for stream in streams:
                    stream.wait_more(5)
                stack.kill(name)
                for stream, want in zip(streams, self.want):
                    self.assertEqual(stream.finish().tokens, want)
                    self.assertTrue(stream.done, stream.failure)
            stack.wait_no_blocks()

    def test_prompts_move_to_and_from_both(self):
        flags = ("--num-gpu-blocks-override", "24", "--max-num-batched-tokens", "64")
        with self.sharded(*flags) as stack:
            wait_until(lambda: stack.metric("tandem_worker_cpu_attention_up") == 1, "both attached")
            self.assertEqual(stack.greedy_together(PROMPTS, TOKENS), self.want)
            self.assertGreater(stack.metric("tandem_worker_decode_tokens_total", tier="cpu"), 0)


class Refused(unittest.TestCase):
    def test_nodes_that_are_not_there_or_do_not_fit(self):
        for nodes, message in (("0,7", "--numa-node 7"), ("0,0", "twice"), ("0,x", "allowed")):
            status, _, errors = run_program("tandem", "serve", str(TINY), "--port", "0", "--numa-node", nodes, env=TWO_NODES)
            self.assertEqual(status, 2, errors)
            self.assertIn(message, errors)


if __name__ == "__main__":
    unittest.main()
