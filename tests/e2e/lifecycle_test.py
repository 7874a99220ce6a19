#!/usr/bin/env python3
"""Start, stop and leaving: what the supervisor owns, clients that go away, draining."""
import signal
import unittest

from harness import EXACT, PROCESSES, TINY, Stack, Stream, TokenStream, alive, wait_until

PROMPT = [11, 40, 60, 90] * 8
LONG = 3000


class Processes(unittest.TestCase):
    def test_three_processes_share_a_region_and_end_together(self):
        with Stack(TINY, *EXACT) as stack:
            pids = {name: stack.pid(name) for name in PROCESSES}
            self.assertEqual(len(set(pids.values())), 3)
            for name in PROCESSES:
                with open(f"/proc/{pids[name]}/maps", encoding="utf-8") as maps:
                    self.assertEqual("memfd:tandem" in maps.read(), name != "router", name)
            self.assertEqual(set(stack.endpoints["metrics"]), {"router", "gpu_worker", "cpu_attention_worker"})
            self.assertEqual(stack.stop(signal.SIGTERM), 0)
            for name, pid in pids.items():
                self.assertFalse(alive(pid), f"{name} outlives the supervisor")
            left = [p.name for p in stack.run_dir.iterdir() if p.suffix in (".sock", ".pid", ".fd") or p.name == "endpoints.json"]
            self.assertEqual(left, [])

    def test_an_address_other_than_loopback(self):
        for flags, metrics in (((), "127.0.0.1"), (("--metrics-host", "127.0.0.3"), "127.0.0.3")):
            with Stack(TINY, *EXACT, "--host", "127.0.0.2", *flags) as stack:
                self.assertTrue(stack.endpoints["http"].startswith("http://127.0.0.2:"), stack.endpoints)
                for url in stack.endpoints["metrics"].values():
                    self.assertTrue(url.startswith(f"http://{metrics}:"), stack.endpoints)
                self.assertEqual(len(stack.greedy(PROMPT, 4)), 4)
                self.assertEqual(stack.metric("tandem_worker_tokens_total", kind="generated"), 4)

    def test_sigint_stops_too(self):
        with Stack(TINY, *EXACT) as stack:
            self.assertEqual(stack.stop(signal.SIGINT), 0)

    def test_children_die_with_a_killed_supervisor(self):
        with Stack(TINY, *EXACT) as stack:
            pids = [stack.pid(name) for name in PROCESSES]
            stack.process.kill()
            stack.process.wait()
            wait_until(lambda: not any(alive(pid) for pid in pids), "children outlive a killed supervisor", 10)


class Clients(unittest.TestCase):
    def leave(self, mode, pool):
        with Stack(TINY, *EXACT, "--offload", mode) as stack:
            stream = Stream(stack, "/v1/completions", {"prompt": PROMPT, "max_tokens": LONG, "temperature": 0, "ignore_eos": True})
            events = iter(stream)
            for _ in range(5):
                next(events)
            self.assertGreater(stack.used_blocks()[pool], 0)
            stream.close()
            stack.wait_no_blocks(5)
            self.assertLess(stack.metric("tandem_worker_tokens_total", kind="generated"), LONG)
            self.assertEqual(len(stack.greedy(PROMPT, 8)), 8)

    def test_a_client_leaves_a_device_sequence(self):
        self.leave("off", "gpu")

    def test_a_client_leaves_a_cpu_sequence(self):
        self.leave("all-cpu", "cpu")


class Drain(unittest.TestCase):
    def test_a_running_stream_ends_whole(self):
        with Stack(TINY, *EXACT) as stack:
            stream = TokenStream(stack, PROMPT, LONG)
            stream.wait_more(5)
            self.assertTrue(stream.is_alive(), "the stream was over before the drain")
            self.assertEqual(stack.stop(signal.SIGTERM, timeout_s=120), 0)
            stream.finish(10)
            self.assertTrue(stream.done, stream.failure)
            self.assertEqual(len(stream.tokens), LONG)


if __name__ == "__main__":
    unittest.main(verbosity=2)
