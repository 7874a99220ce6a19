#!/usr/bin/env python3
"""Markdown table of CPU decode attention over common shapes, each against the streaming read limit of the same run.

Runs `tandem bench attention` once per line; stop everything else on the machine first. The default takes about ten minutes;
--shapes picks lines, so that the table can be made in pieces (--no-header for all pieces but the first).
"""
import argparse
import csv
import json
import pathlib
import random
import subprocess
import sys
import time
from typing import NamedTuple, Optional

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


class Shape(NamedTuple):
    q_heads: int
    kv_heads: int
    head_dim: int
    batch: int
    context: Optional[int]  # None: ragged
    threads: int = 0  # 0: one per core
    layers: int = 0  # 0: so many that K and V are far larger than the caches
    kv_dtypes: tuple = ("bfloat16", "int8")


LLAMA3, LLAMA2, QWEN, SMOLLM2 = (32, 8, 128), (32, 32, 128), (28, 4, 128), (9, 3, 64)
IN_CACHE_LAYERS = 2  # 1 MiB: stays in the second-level caches
ONLY_BF16 = ("bfloat16",)
SHAPES = {
    "llama3-8b-16x1024": Shape(*LLAMA3, 16, 1024),
    "llama3-8b-4x8192": Shape(*LLAMA3, 4, 8192),
    "llama3-8b-1x32768": Shape(*LLAMA3, 1, 32768),
    "llama3-8b-64x256": Shape(*LLAMA3, 64, 256),
    "llama2-7b-8x1024": Shape(*LLAMA2, 8, 1024),
    "qwen2.5-7b-16x1024": Shape(*QWEN, 16, 1024),
    "smollm2-16x1024": Shape(*SMOLLM2, 16, 1024),
    "llama3-8b-ragged": Shape(*LLAMA3, 24, None),
    "llama3-8b-16x1024-1t": Shape(*LLAMA3, 16, 1024, threads=1, kv_dtypes=ONLY_BF16),
    "llama2-7b-8x1024-1t": Shape(*LLAMA2, 8, 1024, threads=1, kv_dtypes=ONLY_BF16),
    "qwen2.5-7b-16x1024-1t": Shape(*QWEN, 16, 1024, threads=1, kv_dtypes=ONLY_BF16),
    "smollm2-16x1024-1t": Shape(*SMOLLM2, 16, 1024, threads=1, kv_dtypes=ONLY_BF16),
    "llama3-8b-1x128-in-cache": Shape(*LLAMA3, 1, 128, layers=IN_CACHE_LAYERS),
    "llama3-8b-1x128-in-cache-1t": Shape(*LLAMA3, 1, 128, threads=1, layers=IN_CACHE_LAYERS),
}
IN_CACHE_ROUNDS = 301  # a round takes microseconds
COLUMNS = ("shape", "KV dtype", "isa", "threads", "us/layer", "KV GB/s", "read GB/s", "ratio", "of bfloat16's time")


def ragged_contexts(count):
    """Prompt lengths drawn from the Azure code trace of the tests; the same in every run."""
    with open(REPOSITORY / "tests/data/traces/azure_code_lengths.csv", newline="") as file:
        lengths = [int(row["prompt_tokens"]) for row in csv.DictReader(file)]
    return random.Random(4).sample([length for length in lengths if length > 0], count)


def measure(args, shape, kv_dtype):
    command = [str(args.bin / "tandem"), "bench", "attention", "--q-heads", str(shape.q_heads), "--kv-heads", str(shape.kv_heads),
               "--head-dim", str(shape.head_dim), "--kv-dtype", kv_dtype, "--isa", args.isa]
    command += ["--rounds", str(IN_CACHE_ROUNDS if shape.layers else args.rounds)]
    if shape.context is None:
        command += ["--contexts", ",".join(map(str, ragged_contexts(shape.batch)))]
    else:
        command += ["--batch", str(shape.batch), "--context", str(shape.context)]
    if shape.layers:
        command += ["--layers", str(shape.layers)]
    threads = args.threads or shape.threads
    if threads:
        command += ["--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def notes(shape, line):
    found = []
    if line["huge_page_share"] < 0.99:
        found.append(f"only {line['huge_page_share']:.0%} on 2 MiB pages")
    if not shape.layers and line["working_set_bytes"] < 8 * line["llc_bytes"]:
        found.append(f"working set {line['working_set_bytes'] / line['llc_bytes']:.1f} times the cache")
    return "".join(f"; {note}" for note in found)


def row(name, shape, kv_dtype, line, bf16_us):
    share = f"{line['us_per_layer'] / bf16_us:.2f}" if bf16_us and kv_dtype != "bfloat16" else ""
    # In a cache the memory's read limit says nothing.
    limit = ("", "") if shape.layers else (f"{line['read_gb_per_s']:.1f}", f"{line['ratio']:.2f}")
    cells = (name + notes(shape, line), kv_dtype, line["isa"], line["threads"], f"{line['us_per_layer']:.1f}" if shape.layers else f"{line['us_per_layer']:.0f}",
             f"{line['kv_gb_per_s']:.1f}", *limit, share)
    return "| " + " | ".join(map(str, cells)) + " |"


def print_header(args, line):
    print(f"{line['cpu']}, last-level cache {line['llc_bytes'] / 2**20:.0f} MiB; medians of {args.rounds} rounds ({IN_CACHE_ROUNDS} in the cache), "
          f"in turns with the read limit; contexts of the ragged batch: {sum(ragged_contexts(24)) / 24:.0f} tokens in the mean\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/bin"), help="folder of the programs")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names with commas between (default: all): " + ", ".join(SHAPES))
    parser.add_argument("--kv-dtypes", default="bfloat16,int8", help="of these, what a line has")
    parser.add_argument("--threads", type=int, default=0, help="instead of each line's own")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--no-header", action="store_true", help="rows alone")
    parser.add_argument("--json", action="store_true", help="the lines of the benchmark instead of a table")
    args = parser.parse_args()
    names = args.shapes.split(",")
    for name in names:
        if name not in SHAPES:
            parser.error(f"--shapes: {name}; allowed: {', '.join(SHAPES)}")
    header = not args.no_header
    started = time.monotonic()
    for name in names:
        shape, bf16_us = SHAPES[name], None
        for kv_dtype in args.kv_dtypes.split(","):
            # Picked dtypes that no line has (fp8_e4m3, float32) are measured for all lines.
            if kv_dtype not in shape.kv_dtypes and kv_dtype in ("bfloat16", "int8"):
                continue
            line = measure(args, shape, kv_dtype)
            if args.json:
                print(json.dumps({"shape": name, **line}), flush=True)
                continue
            if header:
                print_header(args, line)
                header = False
            bf16_us = line["us_per_layer"] if kv_dtype == "bfloat16" else bf16_us
            print(row(name, shape, kv_dtype, line, bf16_us), flush=True)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
