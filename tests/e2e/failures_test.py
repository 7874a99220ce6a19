#!/usr/bin/env python3
"""Deaths of the workers in the middle of streams: no request is lost or changed, and service returns by itself."""
import os
import signal
import time
import unittest

from harness import EXACT, PROCESSES, TINY, Stack, TokenStream, wait_until

PROMPTS = [[11 + i, 40, 60 + 3 * i, 90] * 8 for i in range(4)]
LONG = 2000


class CpuAttentionWorkerDies(unittest.TestCase):
    def deaths(self, mode, kills):
        with Stack(TINY, *EXACT, "--offload", mode) as stack:
            reference = [s.finish().tokens for s in [TokenStream(stack, prompt, LONG) for prompt in PROMPTS]]
            self.assertEqual([len(tokens) for tokens in reference], [LONG] * len(PROMPTS))
            streams = [TokenStream(stack, prompt, LONG) for prompt in PROMPTS]
            killed = 0
            for _ in range(kills):
                for stream in streams:
                    stream.wait_more(5)
                if any(stream.is_alive() for stream in streams):
                    stack.kill("cpu-attention-worker")
                    killed += 1
            for stream, want in zip(streams, reference):
                stream.finish()
                self.assertTrue(stream.done, stream.failure)
                self.assertEqual(stream.tokens, want)
            self.assertGreaterEqual(killed, 1, "the streams were over before a death")
            wait_until(lambda: stack.metric("tandem_worker_cpu_attention_up") == 1, "attached again")
            stack.wait_no_blocks()
            self.assertEqual(stack.greedy(PROMPTS[0], 50), reference[0][:50])

    def test_all_cpu(self):
        self.deaths("all-cpu", 3)

    def test_asymmetric(self):
        self.deaths("asymmetric", 1)

    def test_device_sequences_go_on_meanwhile(self):
        with Stack(TINY, *EXACT) as stack:
            want = stack.greedy(PROMPTS[0], LONG)
            wait_until(lambda: stack.metric("tandem_worker_cpu_attention_up") == 1, "attached")
            stream = TokenStream(stack, PROMPTS[0], LONG)
            stream.wait_more(5)
            stack.kill("cpu-attention-worker")
            self.assertEqual(stream.finish().tokens, want)
            self.assertTrue(stream.done)
            self.assertEqual(stack.metric("tandem_worker_decode_tokens_total", tier="cpu"), 0)
            wait_until(lambda: stack.metric("tandem_worker_cpu_attention_up") == 1, "attached again")


class Stopped(unittest.TestCase):
    """A process that stands still for longer than its peers wait for an answer, and then goes on."""

    def stopped(self, name, seconds):
        with Stack(TINY, *EXACT, "--offload", "all-cpu") as stack:
            want = stack.greedy(PROMPTS[0], LONG)
            pids = {process: stack.pid(process) for process in PROCESSES}
            stream = TokenStream(stack, PROMPTS[0], LONG)
            stream.wait_more(5)
            os.kill(pids[name], signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pids[name], signal.SIGCONT)
            self.assertEqual(stream.finish().tokens, want)
            self.assertTrue(stream.done, stream.failure)
            self.assertEqual({process: stack.pid(process) for process in PROCESSES}, pids, "somebody was restarted")
            stack.wait_no_blocks()

    def test_the_cpu_attention_worker_past_a_layers_deadline(self):
        self.stopped("cpu-attention-worker", 7)

    def test_the_gpu_worker_past_the_heartbeats_deadline(self):
        self.stopped("gpu-worker", 12)


class GpuWorkerDies(unittest.TestCase):
    def test_a_stream_is_resumed_or_ends_with_an_error(self):
        with Stack(TINY, *EXACT) as stack:
            reference = [stack.greedy(prompt, LONG) for prompt in PROMPTS[:2]]
            streams = [TokenStream(stack, prompt, LONG) for prompt in PROMPTS[:2]]
            for stream in streams:
                stream.wait_more(5)
            self.assertTrue(any(stream.is_alive() for stream in streams), "the streams were over before the death")
            stack.kill("gpu-worker")
            for stream, want in zip(streams, reference):
                stream.finish()
                self.assertEqual(stream.tokens, want if stream.done else want[:len(stream.tokens)])
                self.assertTrue(stream.done or stream.failure, "cut without an error")
            wait_until(lambda: stack.get("/ready").status == 200, "ready again", 60)
            self.assertEqual(stack.greedy(PROMPTS[0], 60), reference[0][:60])
            self.assertEqual(stack.metric("tandem_worker_cpu_attention_up"), 1)

    def test_requests_while_it_is_away_wait_or_are_told_to_retry(self):
        with Stack(TINY, *EXACT) as stack:
            want = stack.greedy(PROMPTS[0], 8)
            stack.kill("gpu-worker")
            statuses = set()

            def served():
                reply = stack.post("/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True})
                statuses.add(reply.status)
                if reply.status == 503:
                    self.assertIn("retry-after", reply.headers)
                return reply.status == 200 and reply.body["choices"][0]["token_ids"] == want

            wait_until(served, "served again", 60)
            self.assertLessEqual(statuses, {200, 502, 503})


class RouterDies(unittest.TestCase):
    def test_it_comes_back_on_the_same_address_and_the_blocks_are_freed(self):
        with Stack(TINY, *EXACT) as stack:
            stream = TokenStream(stack, PROMPTS[0], LONG)
            stream.wait_more(5)
            stack.kill("router")
            stream.finish()

            def served():
                try:
                    return stack.get("/ready").status == 200
                except OSError:
                    return False

            wait_until(served, "the router to be back", 60)
            stack.wait_no_blocks()
            self.assertEqual(len(stack.greedy(PROMPTS[0], 20)), 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
