#!/usr/bin/env python3
"""Whether `--offload auto` ever loses: random deployments and loads on `tandem plan`, each from its number, and those where auto serves less than
the GPU alone or than NEO's published policy. Cells are drawn over profiles, models, CPU pools and speeds, lengths, traces and arrivals; a cell
that is listed replays alone with --cell. Standard library only; nothing is measured on a GPU."""
import argparse
import concurrent.futures
import json
import os
import random
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRACES = [os.path.join(ROOT, "tests/data/traces", name) for name in ("azure_code_lengths.csv", "openai_summaries_lengths.csv")]
# Model, GPUs that share a layer, and the profiles whose memory holds it.
DEPLOYMENTS = [("llama-2-7b", 1, ("t4", "a10g", "l4", "g5.2xlarge", "g5.16xlarge", "a100", "h100")),
               ("llama-3.1-8b", 1, ("a10g", "l4", "g5.2xlarge", "g5.4xlarge", "g5.16xlarge", "a100", "h100", "h200")),
               ("llama-3.1-70b", 2, ("a100", "h100", "hgx-h100", "h200")),
               ("llama-3.1-70b", 4, ("a100", "h100", "hgx-h100"))]
MODES = "off,neo,auto"
LEAST_OF_OFF, LEAST_OF_NEO = 0.99, 0.98
# Of the GPU's own throughput, the request rates of open loops.
LOADS = (0.5, 0.8, 0.95, 1.1, 1.5, 3)


def log_uniform(draw, low, high):
    return int(low * (high / low) ** draw.random())


def cell_flags(args, number):
    """Flags of the cell's deployment and load, and the load's rate as a share of the GPU's own throughput (None: no rate)."""
    draw = random.Random(number)
    model, gpus, profiles = draw.choice(DEPLOYMENTS)
    flags = ["--model", model, "--gpu", draw.choice(profiles), "--tensor-parallel-size", gpus,
             "--cpu-kv-size", draw.choice(("4GiB", "16GiB", "64GiB", "256GiB")), "--cpu-kv-dtype", draw.choice(("auto", "auto", "int8"))]
    if draw.random() < 0.4:
        flags += ["--cpu-bandwidth", log_uniform(draw, 8, 500)]
    if draw.random() < 0.25:
        flags += ["--gpu-kv-tokens", log_uniform(draw, 4500, 60000)]
    if draw.random() < 0.25:
        flags += ["--max-num-seqs", log_uniform(draw, 32, 1024)]
    if draw.random() < 0.25:
        flags += ["--max-num-batched-tokens", log_uniform(draw, 512, 8192)]
    requests = int(args.scale * log_uniform(draw, 100, 1500))
    if draw.random() < 0.4:
        flags += ["--trace", draw.choice(TRACES + args.trace), "--all-at-once"]
    else:
        flags += ["--prompt-len", log_uniform(draw, 16, 4000), "--output-len", log_uniform(draw, 4, 1200), "--length-spread", draw.choice((0, 0.1, 0.5))]
    flags += ["--requests", max(requests, 20)]
    arrival = draw.random()
    if arrival < 0.4:
        return flags, None
    if arrival < 0.55:
        return flags + ["--concurrency", log_uniform(draw, 8, 400)], None
    return flags, draw.choice(LOADS)


def plan(args, flags):
    """Result lines by mode and the command; None: the plan is impossible (a model that leaves no KV cache, say)."""
    command = [os.path.join(args.bin, "tandem"), "plan", *map(str, flags), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if "Internal" in done.stderr or done.returncode < 0:
            sys.exit(f"sweep_plan: exit status {done.returncode} of: {' '.join(command)}\n{done.stderr[-2000:]}")
        return None
    return {line["offload"]: line for line in map(json.loads, done.stdout.splitlines())}


def run_cell(args, number):
    flags, load = cell_flags(args, number)
    if load is not None:
        alone = plan(args, [*flags, "--offload", "off"])
        if alone is None or alone["off"]["completed"] == 0:
            return number, flags, None
        flags = [flag for flag in flags if flag != "--all-at-once"] + ["--rate", f"{load * alone['off']['requests_per_s']:.4g}"]
    lines = plan(args, [*flags, "--offload", MODES])
    # Where the device alone refuses prompts that are too long for it, it serves another load.
    same = lines and lines["off"]["completed"] > 0 and len({line["refused"] for line in lines.values()}) == 1
    return number, flags, lines if same else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs (default: %(default)s)")
    parser.add_argument("--cells", type=int, default=400, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default: %(default)s)")
    parser.add_argument("--cell", type=int, action="append", help="only this one (may repeat)")
    parser.add_argument("--trace", action="append", default=[], help="one more CSV of requests (may repeat; changes what numbers mean)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests of each run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cells at a time (default: one per core)")
    parser.add_argument("--all", action="store_true", help="list every cell, not only the losses")
    args = parser.parse_args()
    numbers = args.cell or range(args.first, args.first + args.cells)
    ran = losses = 0
    gains = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for number, flags, lines in pool.map(lambda number: run_cell(args, number), numbers):
            if lines is None:
                continue
            ran += 1
            rates = {mode: line["output_tokens_per_s"] for mode, line in lines.items()}
            latency = {mode: line["per_token_ms"]["mean"] for mode, line in lines.items()}
            gains.append(rates["auto"] / rates["off"])
            lost = [name for name, least in (("off", LEAST_OF_OFF), ("neo", LEAST_OF_NEO)) if rates["auto"] < least * rates[name]]
            losses += bool(lost)
            if lost or args.all:
                print(f"{number:6} auto/off {rates['auto'] / rates['off']:6.3f}  auto/neo {rates['auto'] / rates['neo']:6.3f}  "
                      f"time per token /off {latency['auto'] / max(latency['off'], 1e-9):5.2f} /neo {latency['auto'] / max(latency['neo'], 1e-9):5.2f}  "
                      f"{'LOST to ' + ','.join(lost) if lost else ''}  {' '.join(map(str, flags)).replace(ROOT + '/', '')}", flush=True)
    gains.sort()
    print(f"{ran} cells (of {len(numbers)}, the others impossible or too long for the device alone): {losses} where auto is below {LEAST_OF_OFF} of off or {LEAST_OF_NEO} of neo; "
          f"gain over off: lowest {gains[0]:.3f}, median {gains[len(gains) // 2]:.3f}, highest {gains[-1]:.2f}" if gains else "no cell could run")
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
