#!/usr/bin/env python3
"""A paced device: an emulated GPU behind the real three processes, a model of which there is only config.json, and traces of its steps."""
import concurrent.futures
import json
import pathlib
import shutil
import signal
import tempfile
import unittest

from harness import Stack, Stream, run_program, wait_until

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "eos_token_id": 2}
PROFILE = "extends: t4\nname: slow\ngpu:\n  memory_gb_per_s: 10\n"
PROMPT = list(range(10, 60))
PACED = ("--load-format", "dummy", "--cpu-kv-size", "64MiB")


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-paced-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.model = self.folder / "shape-only"
        self.write_config(CONFIG)

    def write_config(self, config):
        self.model.mkdir(exist_ok=True)
        (self.model / "config.json").write_text(json.dumps(config))

    def body(self, **extra):
        return {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True, **extra}


class Serving(Folder):
    def test_token_ids_are_served_from_a_config_alone(self):
        profile = self.folder / "slow.yaml"
        profile.write_text(PROFILE)
        with Stack(self.model, "--device", f"paced:{profile}", *PACED) as stack:
            first = stack.complete(**self.body(seed=7))
            self.assertTrue(first["system_fingerprint"].startswith("paced-slow"), first)
            tokens = first["choices"][0]["token_ids"]
            self.assertEqual(len(tokens), 24)
            self.assertGreater(len(set(tokens)), 10)
            self.assertTrue(all(0 <= token < CONFIG["vocab_size"] for token in tokens))
            self.assertEqual(stack.complete(**self.body(seed=7))["choices"][0]["token_ids"], tokens)
            self.assertNotEqual(stack.complete(**self.body(seed=8))["choices"][0]["token_ids"], tokens)
            stream = Stream(stack, "/v1/completions", self.body())
            for event in stream:
                self.assertTrue(event["system_fingerprint"].startswith("paced-"), event)
            stream.close()
            for path, body in (("/v1/completions", {"prompt": "text"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
                reply = stack.post(path, body)
                self.assertEqual(reply.status, 400, reply.body)
                self.assertEqual(reply.body["error"]["type"], "invalid_request_error")
            status, out, err = run_program("tandem", "bench", "serve", "--url", stack.endpoints["http"], "--prompt-len", "40", "--output-len", "8",
                                           "--requests", "6", "--concurrency", "3")
            self.assertEqual(status, 0, err)
            self.assertEqual(json.loads(out)["errors"], 0)

    def test_both_tiers_attend_and_steps_are_traced(self):
        for mode in ("unified", "asymmetric"):
            with self.subTest(mode):
                trace = self.folder / f"{mode}.json"
                with Stack(self.model, "--device", "paced:t4", *PACED, "--offload", mode, "--trace-steps", str(trace)) as stack:
                    with concurrent.futures.ThreadPoolExecutor(8) as pool:
                        replies = list(pool.map(lambda seed: stack.complete(**self.body(seed=seed)), range(8)))
                    self.assertTrue(all(len(reply["choices"][0]["token_ids"]) == 24 for reply in replies))
                    for tier in ("gpu", "cpu"):
                        self.assertGreater(stack.metric("tandem_worker_decode_tokens_total", tier=tier), 0)
                    stack.wait_no_blocks()
                    self.check_trace(trace, mode)  # while the worker still writes to it
                    self.assertEqual(stack.stop(signal.SIGTERM), 0)
                self.check_trace(trace, mode)

    def check_trace(self, path, mode):
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
        tracks = {event["tid"]: [] for event in events}
        for event in events:
            tracks[event["tid"]].append(event)
        steps = tracks[0]
        self.assertTrue(any(step["name"] == mode and step["args"]["cpu_rows_a"] + step["args"]["cpu_rows_b"] > 0 for step in steps))
        names = {event["name"].split()[0] for event in events}
        self.assertLessEqual({"pre", "post", "send", "join", "decode", "sample", "attention"}, names)
        for spans in tracks.values():
            spans.sort(key=lambda span: span["ts"])
            for before, after in zip(spans, spans[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.2, (before, after))
        for event in events:
            self.assertTrue(any(step["ts"] <= event["ts"] and event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 1 for step in steps), event)

    def test_a_killed_worker_leaves_a_valid_trace(self):
        trace = self.folder / "killed.json"
        with Stack(self.model, "--device", "paced:t4", *PACED, "--trace-steps", str(trace)) as stack:
            stack.complete(**self.body())
            before = json.loads(trace.read_text())["traceEvents"]
            self.assertGreater(len(before), 100)
            stack.kill("gpu-worker")
            json.loads(trace.read_text())
            # The router's readiness may still be that of the dead one.
            wait_until(lambda: stack.post("/v1/completions", self.body()).status == 200, "an answer again")
            json.loads(trace.read_text())


class Refused(Folder):
    def refuse(self, *flags):
        status, _, err = run_program("tandem-gpu-worker", "--model", str(self.model), "--listen", f"unix:{self.folder}/s", "--worker-metrics-port",
                                     "0", "--load-format", "dummy", *flags)
        self.assertNotEqual(status, 0)
        return status, err

    def test_unknown_and_broken_profiles_are_named(self):
        status, err = self.refuse("--device", "paced:t5")
        self.assertEqual(status, 2, err)
        self.assertIn("a100", err)
        broken = self.folder / "broken.yaml"
        broken.write_text("extends: t4\nname: broken\ngpu:\n  memory_gb_per_s: fast\n")
        status, err = self.refuse("--device", f"paced:{broken}")
        self.assertEqual(status, 2, err)
        self.assertIn("memory_gb_per_s", err)

    def test_what_the_gpu_cannot_hold_is_refused(self):
        status, err = self.refuse("--device", "paced:t4", "--dtype", "bfloat16")
        self.assertEqual(status, 2, err)
        self.assertIn("float16", err)
        _, err = self.refuse("--device", "paced:t4", "--num-gpu-blocks-override", "100000000")
        self.assertIn("--num-gpu-blocks-override", err)
        self.write_config({**CONFIG, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64})
        _, err = self.refuse("--device", "paced:t4")
        self.assertIn("weights", err)
        self.assertIn("paced:t4", err)

    def test_a_trace_that_cannot_be_written_is_refused(self):
        _, err = self.refuse("--device", "paced:t4", "--trace-steps", str(self.folder / "no/such/folder.json"))
        self.assertIn("--trace-steps", err)


if __name__ == "__main__":
    unittest.main()
