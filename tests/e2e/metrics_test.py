#!/usr/bin/env python3
"""Every promised metric and label value is there from the start, moves as it should, and the dashboard asks for nothing else."""
import json
import re
import unittest

from harness import EXACT, ROOT, TINY, Stack, wait_until

LATENCY = ("_bucket", "_sum", "_count")
# process -> {metric: {label: listed values}}; a label with an empty tuple has open values.
PROMISED = {
    "router": {
        "tandem_router_requests_total": {"endpoint": (), "code": ()},
        "tandem_router_request_duration_seconds": {"model": ()},
        "tandem_router_time_to_first_token_seconds": {"model": ()},
        "tandem_router_inter_token_latency_seconds": {"model": ()},
        "tandem_router_inflight_requests": {"worker": ()},
        "tandem_router_queue_depth": {"worker": ()},
        "tandem_router_worker_ready": {"worker": ()},
        "tandem_router_retries_total": {"reason": ()},
        "tandem_router_resumes_total": {"reason": ()},
    },
    "gpu_worker": {
        "tandem_worker_steps_total": {"mode": ("gpu_only", "unified", "asymmetric")},
        "tandem_worker_step_duration_seconds": {"mode": ("gpu_only", "unified", "asymmetric")},
        "tandem_worker_sequences": {"state": ("waiting", "prefill", "gpu_decode", "cpu_decode", "moving")},
        "tandem_worker_kv_blocks": {"pool": ("gpu", "cpu"), "state": ("free", "used", "cached")},
        "tandem_worker_tokens_total": {"kind": ("prompt", "cached", "generated")},
        "tandem_worker_decode_tokens_total": {"tier": ("gpu", "cpu")},
        "tandem_worker_moves_total": {"kind": ("swap_out", "swap_in", "recompute")},
        "tandem_worker_aborted_steps_total": {"reason": ()},
        "tandem_worker_cpu_attention_up": {},
        "tandem_worker_offload_enabled": {},
        "tandem_worker_prediction_ratio": {"term": ()},
    },
    "cpu_attention_worker": {
        "tandem_cpu_attention_batches_total": {},
        "tandem_cpu_attention_read_bytes_total": {},
        "tandem_cpu_attention_compute_seconds": {},
        "tandem_cpu_attention_wait_seconds": {},
    },
}
HISTOGRAMS = {"tandem_router_request_duration_seconds", "tandem_router_time_to_first_token_seconds", "tandem_router_inter_token_latency_seconds",
              "tandem_worker_step_duration_seconds", "tandem_worker_prediction_ratio", "tandem_cpu_attention_compute_seconds",
              "tandem_cpu_attention_wait_seconds"}


class Metrics(unittest.TestCase):
    def check_promised(self, stack):
        for process, metrics in PROMISED.items():
            samples = stack.metrics(process)
            for name, labels in metrics.items():
                for suffix in LATENCY if name in HISTOGRAMS else ("",):
                    found = [s for s in samples if s.name == name + suffix]
                    self.assertTrue(found, f"{process} lacks {name}{suffix}")
                    for label, values in labels.items():
                        have = {s.labels.get(label) for s in found}
                        self.assertNotIn(None, have, f"{name}{suffix} without the label {label}")
                        self.assertLessEqual(set(values), have, f"{name}{suffix}")
                        if values:
                            self.assertEqual(have, set(values), f"{name}{suffix} has label values that nobody listed")

    def test_from_the_start_in_every_mode(self):
        for flags in (("--offload", "auto"), ("--offload", "off"), ("--cpu-kv-size", "0")):
            with self.subTest(" ".join(flags)), Stack(TINY, "--dtype", "float32", *flags) as stack:
                self.check_promised(stack)
                if flags != ("--offload", "auto"):
                    self.assertEqual(stack.metric("tandem_worker_offload_enabled"), 0)

    def test_they_move(self):
        with Stack(TINY, *EXACT, "--offload", "all-cpu") as stack:
            for pool in ("gpu", "cpu"):  # the CPU pool's blocks are handed out as they become ready
                wait_until(lambda p=pool: stack.metric("tandem_worker_kv_blocks", pool=p, state="free") > 0, f"free {pool} blocks")
            stack.greedy([5] * 50, 20)
            self.assertEqual(stack.post("/v1/completions", {"prompt": "x", "max_tokens": -1}).status, 400)
            self.assertEqual(stack.metric("tandem_worker_tokens_total", kind="prompt"), 50)
            self.assertEqual(stack.metric("tandem_worker_tokens_total", kind="generated"), 20)
            # The prefill gives the first token; each further one is a decode.
            self.assertEqual(stack.metric("tandem_worker_decode_tokens_total", tier="cpu"), 19)
            self.assertEqual(stack.metric("tandem_worker_decode_tokens_total", tier="gpu"), 0)
            self.assertGreaterEqual(stack.metric("tandem_worker_steps_total", mode="unified"), 19)
            self.assertGreater(stack.metric("tandem_cpu_attention_batches_total", "cpu_attention_worker"), 0)
            self.assertGreater(stack.metric("tandem_cpu_attention_read_bytes_total", "cpu_attention_worker"), 0)
            self.assertEqual(stack.metric("tandem_router_requests_total", "router", code="400"), 1)
            self.assertGreaterEqual(stack.metric("tandem_router_requests_total", "router", code="200"), 1)
            self.assertEqual(stack.metric("tandem_router_worker_ready", "router"), 1)
            self.check_promised(stack)
            samples = {s.name for process in PROMISED for s in stack.metrics(process)}
        with open(ROOT / "deploy/grafana/dashboard.json", encoding="utf-8") as file:
            board = json.load(file)
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                for name in re.findall(r"\btandem_\w+", target["expr"]):
                    self.assertIn(name, samples, panel["title"])

    def test_label_values_are_bounded(self):
        with Stack(TINY, *EXACT) as stack:
            for i in range(20):
                stack.get(f"/no/such/path/{i}")
                stack.post("/v1/completions", {"prompt": "x", "model": f"model-{i}"})
            for sample in stack.metrics("router"):
                for value in sample.labels.values():
                    self.assertNotRegex(value, r"no/such|model-\d")


if __name__ == "__main__":
    unittest.main(verbosity=2)
