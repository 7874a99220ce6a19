#!/usr/bin/env python3
"""Serves a model with --device cuda and a capped KV pool, runs `tandem bench serve` against it, and writes its figures with the GPU worker's steps by mode."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

STEPS = "tandem_worker_steps_total"
GRAPHS = "tandem_worker_graph_steps_total"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--offload", default="auto")
    parser.add_argument("--blocks", default="2000", help="device KV blocks of 16 tokens")
    for name, default in (("prompt-len", "512"), ("output-len", "128"), ("requests", "256"), ("concurrency", "128")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--trace", required=True, help="file for the timelines of steps")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    with tempfile.TemporaryDirectory(prefix="tandem-gpu-") as folder:
        command = [args.bin / "tandem", "serve", args.model, "--device", "cuda", "--port", "0", "--run-dir", folder, "--router-metrics-port", "0",
                   "--worker-metrics-port", "0", "--cpu-attention-metrics-port", "0", "--offload", args.offload, "--num-gpu-blocks-override", args.blocks,
                   "--trace-steps", args.trace]
        server = subprocess.Popen(command, env=environment)
        try:
            endpoints = pathlib.Path(folder) / "endpoints.json"
            deadline = time.monotonic() + 60
            while not endpoints.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the server did not become ready")
                time.sleep(0.1)
            urls = json.loads(endpoints.read_text())
            bench = subprocess.run([args.bin / "tandem", "bench", "serve", "--url", urls["http"], "--prompt-len", args.prompt_len, "--output-len", args.output_len,
                                    "--requests", args.requests, "--concurrency", args.concurrency], env=environment, capture_output=True, text=True, check=True)
            with urllib.request.urlopen(urls["metrics"]["gpu_worker"]) as reply:
                metrics = reply.read().decode().splitlines()
            steps = [line for line in metrics if line.startswith(STEPS)]
            graphs = sum(float(line.split()[-1]) for line in metrics if line.startswith(GRAPHS))
        finally:
            server.terminate()
            server.wait(60)
    result = {"offload": args.offload, "bench": json.loads(bench.stdout.splitlines()[-1]), "steps": steps, "graph_steps": int(graphs)}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
