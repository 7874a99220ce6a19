#!/usr/bin/env python3
"""What the processes do besides serving: nothing while idle, and a log in which a request can be followed."""
import json
import pathlib
import time
import unittest

from harness import EXACT, PROCESSES, TINY, Stack, wait_until

PROMPT = [11, 40, 60, 90] * 8
SETTLE_S = 2
MEASURE_S = 4
MOST_OF_A_CORE = 0.01


def cpu_seconds(pid):
    """Time on a CPU of all threads, as the scheduler counts it in nanoseconds."""
    total = 0
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(path.read_text(encoding="ascii").split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # a thread that has just ended
    return total / 1e9


def log_lines(stack, process):
    return [json.loads(line) for line in (stack.run_dir / f"{process}.log").read_text(encoding="utf-8").splitlines() if line.startswith("{")]


class Idle(unittest.TestCase):
    def test_nobody_computes_without_work(self):
        with Stack(TINY, *EXACT, "--offload", "all-cpu") as stack:
            stack.greedy_together([PROMPT, PROMPT[:7]], 40)
            time.sleep(SETTLE_S)
            before = {name: cpu_seconds(stack.pid(name)) for name in PROCESSES}
            time.sleep(MEASURE_S)
            shares = {name: (cpu_seconds(stack.pid(name)) - before[name]) / MEASURE_S for name in PROCESSES}
            for name, share in shares.items():
                self.assertLess(share, MOST_OF_A_CORE, f"{name}: {shares}")


def region_kib(pid):
    """Size, resident and proportional size of the mapped region."""
    found, inside = {"Size": 0, "Rss": 0, "Pss": 0}, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split(" ")[0]:
            inside = "memfd:tandem" in line
        elif inside and name in found:
            found[name] += int(value.split()[0])
    return found


class Memory(unittest.TestCase):
    def test_the_cpu_pool_is_as_large_as_asked_for_and_there_once(self):
        with Stack(TINY, *EXACT, "--offload", "all-cpu") as stack:
            stack.greedy(PROMPT, 5)
            blocks = sum(stack.metric("tandem_worker_kv_blocks", pool="cpu", state=state) for state in ("free", "used", "cached"))
            wait_until(lambda: stack.metric("tandem_cpu_attention_extents_ready", "cpu_attention_worker") > 0, "the pool touched")
            sizes = [region_kib(stack.pid(name)) for name in ("gpu-worker", "cpu-attention-worker")]
            self.assertGreater(blocks, 0)
            for size in sizes:
                self.assertGreater(size["Size"], 63 * 1024, sizes)
                self.assertLess(size["Size"], 80 * 1024, sizes)  # beside the pool the rows of a step
            self.assertLessEqual(sum(size["Pss"] for size in sizes), sizes[0]["Size"], sizes)


class Log(unittest.TestCase):
    def test_a_request_is_followed_into_the_cpu_attention_worker(self):
        with Stack(TINY, *EXACT, "--offload", "all-cpu", "--log-level", "debug", "--log-format", "json") as stack:
            body = {"model": stack.model, "prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
            reply = stack.request("POST", "/v1/completions", body, headers={"X-Request-Id": "follow-me-1"})
            self.assertEqual(reply.status, 200)
            queued = [line for line in log_lines(stack, "gpu-worker") if line["message"] == "request queued"]
            self.assertEqual(len(queued), 1, queued)
            self.assertIn("follow-me-1", queued[0]["request_id"])

            def steps():
                return [line for line in log_lines(stack, "cpu-attention-worker") if line["message"] == "step served"]

            wait_until(lambda: len(steps()) >= 4, lambda: f"a line for each step: {steps()}")
            for i, line in enumerate(steps()[:4]):
                self.assertIn(f"a:{queued[0]['sequence_id']} follow-me-1", line["rows"])
                self.assertIn(f"({len(PROMPT) + 1 + i})", line["rows"])
                self.assertGreater(line["epoch"], 0)


if __name__ == "__main__":
    unittest.main()
