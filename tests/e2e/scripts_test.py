#!/usr/bin/env python3
"""The measuring scripts on a tiny model: they start what they need, print and write what they promise, and say what is missing."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from harness import BIN, GOLDENS, ROOT, environment

MODEL = str(GOLDENS / "llama3-like")


def script(name, *args):
    return subprocess.run([sys.executable, ROOT / "scripts" / name, "--bin", BIN, "--model", MODEL, *args], cwd=ROOT, env=environment(), text=True,
                          capture_output=True, timeout=120, check=False)


class Scripts(unittest.TestCase):
    def test_bench_host_measures_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.json"
            done = script("bench_host.py", "--engines", "tandem", "--streams", "1,2", "--rounds", "2", "--requests-per-stream", "2", "--prompt-len", "32",
                          "--output-len", "8", "--flag=--cpu-kv-size=64MiB", "--json", str(path))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            tandem = json.loads(path.read_text())["tandem"]
        self.assertEqual(set(tandem["streams"]), {"1", "2"})
        for result in tandem["streams"].values():
            self.assertGreater(result["tokens_per_s"], 0)
            self.assertGreater(result["ttft_ms"], 0)
        self.assertGreater(tandem["ready_s"], 0)
        self.assertGreater(tandem["peak_mib"], 10)

    @unittest.skipIf((ROOT / ".cache/tandem/peers/vllm").exists(), "vLLM is installed")
    def test_bench_host_says_how_to_get_a_missing_peer(self):
        done = script("bench_host.py", "--engines", "tandem,vllm")
        self.assertEqual(done.returncode, 1)
        self.assertIn("bench_host.py --install vllm", done.stderr)
        self.assertEqual(script("bench_host.py", "--engines", "nobody").returncode, 1)

    def test_perplexity_of_every_kv_type(self):
        done = script("perplexity.py", "--tokens", "400", "--window", "200", "--chunk", "48", "--cpu-kv-size", "64MiB", "--limit", "5")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = {line.split()[1]: line.split() for line in done.stdout.splitlines() if line.startswith("float32 ")}
        self.assertEqual(list(rows), ["float32", "bfloat16", "int8", "fp8_e4m3"])
        moved = [float(row[6]) for row in rows.values()]
        self.assertEqual(moved, sorted(moved), "wider types move the logprobs less")
        self.assertEqual((moved[0], moved[1] > 0), (0, True))
        done = script("perplexity.py", "--tokens", "200", "--kv", "int8", "--cpu-kv-size", "64MiB", "--limit", "-100")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
