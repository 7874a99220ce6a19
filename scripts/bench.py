#!/usr/bin/env python3
"""Serving throughput of a model on this machine: `tandem bench serve` against a server of its own at several numbers of streams, with a
roomy device pool, and with one that holds two of the sequences, without and with the CPU tier. Standard library only."""
import argparse
import os
import subprocess
import tempfile

from demo import Server

PROMPT_TOKENS = 256
OUTPUT_TOKENS = 64
# Two sequences of 256 + 64 tokens in blocks of 16.
TIGHT = ("--num-gpu-blocks-override", "40")
# What is measured: name, flags of the server, numbers of streams.
CASES = [
    ("device only", ("--offload", "off"), (1, 8, 16)),
    ("tight pool, device only", ("--offload", "off", *TIGHT), (16,)),
    ("tight pool, both tiers", ("--offload", "auto", *TIGHT), (16,)),
]


def measure(args, flags, streams):
    """Runs one server and the load for each number of streams; prints the tables of the load generator."""
    tandem = os.path.join(args.bin, "tandem")
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as run_dir:
        server = Server(tandem, args.model, run_dir, ("--cpu-kv-size", "1GiB", *args.flag, *flags))
        try:
            url = server.wait_ready()["http"]
            for count in streams:
                subprocess.run([tandem, "bench", "serve", "--url", url, "--prompt-len", str(PROMPT_TOKENS), "--output-len", str(OUTPUT_TOKENS),
                                "--requests", str(4 * count), "--concurrency", str(count), "--table"], check=True)
        finally:
            server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs (default: %(default)s)")
    parser.add_argument("--model", required=True, help="a .gguf file or a Hugging Face folder")
    parser.add_argument("--flag", action="append", default=[], help="one more flag of the server, as --flag=--dtype=float32 (may repeat)")
    args = parser.parse_args()
    for name, flags, streams in CASES:
        print(f"== {name}", flush=True)
        measure(args, flags, streams)


if __name__ == "__main__":
    main()
