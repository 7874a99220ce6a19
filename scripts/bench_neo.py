#!/usr/bin/env python3
"""What the CPU tier is worth, end to end: the real three processes with an emulated GPU (`--device paced:t4`, Llama-2-7B's shape, 864 tokens
of device KV cache) and real CPU attention, under NEO's workload (arXiv 2411.01142), with offloading off, all on the CPU, as NEO published it,
and as Tandem decides. Prints a table and how far `tandem plan` foresaw it. Standard library only; takes below 20 minutes and 13 GiB."""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from demo import Server

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRACE = os.path.join(ROOT, "tests/data/traces/openai_summaries_lengths.csv")
LLAMA_2_7B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
              "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
              "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
              "hidden_act": "silu", "torch_dtype": "float16", "bos_token_id": 1, "eos_token_id": 2}
GPU = "t4"
GPU_BLOCKS, BLOCK_TOKENS = 54, 16
POOLS = {"bfloat16": "12GiB", "int8": "8GiB"}
GOALS = {"bfloat16": 2.2, "int8": 3.5}  # auto's output tokens per second over those of the GPU alone, summaries in a closed loop
MODES = ("off", "neo", "auto", "all-cpu")
BEST_MARGIN = 0.02
DRIFT = 1.1  # of the memory's read rate between servers, from which on they can hardly be compared
PLAN_SHARE = 0.9
LOAD_REQUESTS = 100_000  # more than a window can take: loads are ended, not awaited
# The GPU alone runs one or two sequences at a time: it takes longer to see a steady mean.
OFF_WINDOWS = 2
PLAN_REQUESTS = 1000  # so many that filling and draining do not count


class Scenario:
    """A load: flags of `tandem bench serve`, what `tandem plan` is told for the same, seconds of warming up and of measuring, and the tokens that a
    decode reads on average in that window: CPU attention reads short contexts more slowly."""

    context = 400

    def __init__(self, name, load, plan, warm_s, window_s):
        self.name, self.load, self.plan, self.warm_s, self.window_s = name, load, plan, warm_s, window_s

    def reading(self, context):
        self.context = context
        return self


def scenarios(args):
    lengths = ("--trace", TRACE)
    short = ("--prompt-len", "370", "--output-len", "8")
    decode = ("--prompt-len", "16", "--output-len", "400")

    def closed(name, shape, streams, warm_s, window_s):
        load = (*shape, "--concurrency", str(streams))
        return Scenario(name, (*load, "--requests", str(LOAD_REQUESTS)), (*load, "--requests", str(PLAN_REQUESTS)), warm_s, window_s)

    poisson = (*lengths, "--rate", str(args.rate))
    return [
        closed("summaries", lengths, 128, 25, args.window),
        Scenario("poisson", (*poisson, "--requests", str(LOAD_REQUESTS)), (*poisson, "--requests", str(PLAN_REQUESTS)), 15, args.window),
        closed("short outputs", short, 64, 8, args.window * 2 // 3),
        closed("pure decode", decode, 64, 12, args.window * 2 // 3).reading(16 + 90),
    ]


class Metrics:
    """One process's /metrics at one time."""

    def __init__(self, url):
        with urllib.request.urlopen(url, timeout=30) as response:
            self.time_s, text = time.monotonic(), response.read().decode()
        self.samples = [(name, dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value))
                        for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)]

    def sum(self, name, **labels):
        return sum(value for sample, have, value in self.samples if sample == name and labels.items() <= have.items())

    def buckets(self, name):
        """Cumulative counts by upper bound, all label sets together."""
        counts = {}
        for sample, have, value in self.samples:
            if sample == name + "_bucket":
                counts[float(have["le"])] = counts.get(float(have["le"]), 0) + value
        return counts


def quantile_ms(before, after, name, share):
    """Of a histogram of seconds, what was observed between two scrapes; linear inside a bucket. None: nothing."""
    old, new = before.buckets(name), after.buckets(name)
    bounds = sorted(new)
    counts = [new[bound] - old.get(bound, 0) for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    wanted, low, below = share * counts[-1], 0.0, 0.0
    for bound, count in zip(bounds, counts):
        if count >= wanted:
            return 1e3 * (low if bound == float("inf") else low + (bound - low) * (wanted - below) / max(count - below, 1))
        low, below = bound, count
    return None


class Stack:
    """A server of one mode."""

    def __init__(self, args, model, mode, dtype, run_dir):
        self.args, self.windows = args, OFF_WINDOWS if mode == "off" else 1
        flags = ["--device", f"paced:{GPU}", "--load-format", "dummy", "--num-gpu-blocks-override", str(GPU_BLOCKS), "--block-size",
                 str(BLOCK_TOKENS), "--offload", mode, "--max-model-len", "1024", "--cpu-attention-threads", str(args.threads)]
        flags += ["--cpu-kv-size", "0"] if mode == "off" else ["--cpu-kv-size", args.pool or POOLS[dtype], "--cpu-kv-dtype", dtype]
        if args.trace_steps:
            flags += ["--trace-steps", os.path.join(args.trace_steps, f"{mode}-{dtype}.json")]
        self.server = Server(os.path.join(args.bin, "tandem"), model, run_dir, flags + args.flag)
        self.endpoints = self.server.wait_ready()

    def metrics(self, process="gpu_worker"):
        return Metrics(self.endpoints["metrics"][process])

    def wait_for_pool(self):
        """The CPU pool comes in pieces while it is touched: until all of it is there."""
        last = None
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            blocks = self.metrics().sum("tandem_worker_kv_blocks", pool="cpu")
            if blocks == last:
                return
            last = blocks
            time.sleep(2)

    def wait_for_costs(self):
        """The worker measures the costs that it plans with while nothing else is to do, and keeps them: until it has, or a minute."""
        log = os.path.join(self.server.run_dir, "gpu-worker.log")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with open(log, encoding="utf-8", errors="replace") as file:
                if re.search("cost tables (?:read|measured)|costs could not be measured", file.read()):
                    return
            time.sleep(0.5)

    def measure(self, scenario):
        """Numbers of one window in the middle of a load that goes on."""
        command = [os.path.join(self.args.bin, "tandem"), "bench", "serve", "--url", self.endpoints["http"], *scenario.load]
        load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            time.sleep(scenario.warm_s)
            if load.poll() is not None:
                sys.exit(f"bench_neo: {' '.join(command)} ended: {load.stderr.read().decode()[-2000:]}")
            before = {process: self.metrics(process) for process in self.endpoints["metrics"]}
            time.sleep(scenario.window_s * self.windows)
            after = {process: self.metrics(process) for process in self.endpoints["metrics"]}
        finally:
            load.send_signal(signal.SIGTERM)
            load.wait()
        self.wait_idle()
        return result(before, after)

    def wait_idle(self):
        deadline = time.monotonic() + 60
        while self.metrics().sum("tandem_worker_kv_blocks", state="used") > 0:
            if time.monotonic() > deadline:
                sys.exit("bench_neo: the server still holds sequences a minute after their client left")
            time.sleep(0.2)


def result(before, after):
    worker, router, cpu = ((before[name], after[name]) for name in ("gpu_worker", "router", "cpu_attention_worker"))

    def delta(pair, name, **labels):
        return pair[1].sum(name, **labels) - pair[0].sum(name, **labels)

    seconds = worker[1].time_s - worker[0].time_s
    steps = {mode: delta(worker, "tandem_worker_steps_total", mode=mode) for mode in ("gpu_only", "unified", "asymmetric")}
    all_steps = max(sum(steps.values()), 1)
    decodes = {tier: delta(worker, "tandem_worker_decode_tokens_total", tier=tier) for tier in ("gpu", "cpu")}
    itl, ttft = "tandem_router_inter_token_latency_seconds", "tandem_router_time_to_first_token_seconds"
    busy_s = delta(cpu, "tandem_cpu_attention_compute_seconds_sum")
    return {
        "tokens_per_s": delta(worker, "tandem_worker_tokens_total", kind="generated") / seconds,
        "itl_mean_ms": 1e3 * delta(router, itl + "_sum") / max(delta(router, itl + "_count"), 1),
        "itl_p50_ms": quantile_ms(*router, itl, 0.5),
        "itl_p99_ms": quantile_ms(*router, itl, 0.99),
        "ttft_p50_ms": quantile_ms(*router, ttft, 0.5),
        "mode_share": {mode: count / all_steps for mode, count in steps.items()},
        "step_ms": 1e3 * seconds / all_steps,
        "cpu_token_share": decodes["cpu"] / max(sum(decodes.values()), 1),
        "cpu_busy": busy_s / seconds,
        "cpu_gb_per_s": delta(cpu, "tandem_cpu_attention_read_bytes_total") / max(busy_s, 1e-9) * 1e-9,
    }


def json_lines(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench_neo: {' '.join(command)}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def shown(value, form="8.1f"):
    return format(value, form) if value is not None else " " * (int(form.split(".")[0]) - 1) + "-"


def show_row(row):
    share, found = row["result"]["mode_share"], row["result"]
    modes = "/".join(f"{100 * share[mode]:.0f}" for mode in ("gpu_only", "unified", "asymmetric"))
    of_plan, of_read = (f"{found['tokens_per_s'] / row[name]:.2f}" if row.get(name) else "-" for name in ("plan", "plan_as_read"))
    print(f"{row['scenario']:<14} {row['dtype']:<9} {row['mode']:<8} {found['tokens_per_s']:8.1f} {of_plan:>6} {of_read:>6} {shown(found['ttft_p50_ms'])} "
          f"{found['itl_mean_ms']:8.1f} {shown(found['itl_p99_ms'])} {found['step_ms']:8.1f} {modes:>12} {100 * found['cpu_token_share']:5.0f} "
          f"{100 * found['cpu_busy']:5.0f} {found['cpu_gb_per_s']:6.1f}", flush=True)


def show_head():
    print(f"{'scenario':<14} {'CPU KV':<9} {'offload':<8} {'tokens/s':>8} {'/plan':>6} {'/read':>6} {'ttft p50':>8} {'itl mean':>8} {'itl p99':>8} "
          f"{'step ms':>8} {'gpu/uni/asy%':>12} {'cpu%':>5} {'busy%':>5} {'GB/s':>6}", flush=True)


def verdicts(rows):
    """What was to be reached and what was: (text, reached)."""
    found = {(row["scenario"], row["dtype"], row["mode"]): row for row in rows}

    def rate(scenario, dtype, mode):
        row = found.get((scenario, dtype, mode))
        return row["result"]["tokens_per_s"] if row else None

    for (scenario, dtype, mode), row in sorted(found.items()):
        if mode != "auto":
            continue
        mine, alone = rate(scenario, dtype, "auto"), rate(scenario, "-", "off")
        if scenario == "summaries" and alone:
            yield f"{scenario}, {dtype}: auto is {mine / alone:.2f} x GPU only (goal {GOALS[dtype]})", mine >= GOALS[dtype] * alone
        others = {name: value for name in MODES if name != "auto" if (value := rate(scenario, "-" if name == "off" else dtype, name))}
        if others:
            best = max(others, key=others.get)
            yield (f"{scenario}, {dtype}: auto {mine:.1f} against the best other, {best} {others[best]:.1f}",
                   mine >= (1 - BEST_MARGIN) * others[best])
        neo = found.get((scenario, dtype, "neo"))
        if neo:
            mine_ms, neo_ms = row["result"]["itl_mean_ms"], neo["result"]["itl_mean_ms"]
            yield f"{scenario}, {dtype}: mean inter-token latency {mine_ms:.0f} ms, neo's {neo_ms:.0f} ms", mine_ms <= neo_ms * (1 + BEST_MARGIN)
        if row.get("plan"):
            yield f"{scenario}, {dtype}: {mine / row['plan']:.2f} of the plan (goal {PLAN_SHARE})", mine >= PLAN_SHARE * row["plan"]


class Bench:
    """What all servers of one run share, and what was found."""

    def __init__(self, args, model):
        self.args, self.model, self.rows, self.memory_gb_per_s = args, model, [], []
        self.tandem = os.path.join(args.bin, "tandem")

    def cpu_rate(self, dtype, context):
        """GB/s of KV that this machine's CPU attention reaches, by itself, over contexts so long. Asked before each server: neighbours come and go."""
        line = json_lines([self.tandem, "bench", "attention", "--q-heads", "32", "--kv-heads", "32", "--head-dim", "128", "--batch", "56",
                           "--context", str(context), "--kv-dtype", dtype, "--threads", str(self.args.threads)])[0]
        print(f"CPU attention over {dtype} KV, {context} tokens each: {line['kv_gb_per_s']:.1f} GB/s on {self.args.threads} threads (memory: {line['read_gb_per_s']:.1f})",
              flush=True)
        self.memory_gb_per_s.append(line["read_gb_per_s"])
        return line["kv_gb_per_s"]

    def warn_of_drift(self):
        """Servers run one after the other: what the machine's memory did meanwhile is no merit of theirs."""
        if self.memory_gb_per_s and max(self.memory_gb_per_s) > DRIFT * min(self.memory_gb_per_s):
            print(f"warning: the memory's read rate was between {min(self.memory_gb_per_s):.1f} and {max(self.memory_gb_per_s):.1f} GB/s during this "
                  "run; compare servers by their ratio to the plan, which knows the rate before each of them")

    def plan(self, scenario, mode, dtype, gb_per_s, windows):
        """Output tokens per second that are foreseen for the same window of the same load."""
        command = [self.tandem, "plan", "--model", self.model, "--gpu", GPU, "--gpu-kv-tokens", str(GPU_BLOCKS * BLOCK_TOKENS), "--cpu-kv-size",
                   self.args.pool or POOLS[dtype], "--cpu-kv-dtype", dtype, "--cpu-bandwidth", f"{gb_per_s:.3f}", "--max-model-len",
                   "1024", "--offload", mode, "--measure-from", str(scenario.warm_s), "--measure-for", str(scenario.window_s * windows), *scenario.plan]
        return json_lines(command)[0]["output_tokens_per_s"]

    def run_mode(self, mode, dtype):
        """All scenarios on one server."""
        no_cpu = 1.0  # the plan wants a number
        wanted = [scenario for scenario in scenarios(self.args) if not self.args.scenario or scenario.name in self.args.scenario]
        contexts = () if self.args.no_plan else sorted({scenario.context for scenario in wanted})
        rates = {context: no_cpu if mode == "off" else self.cpu_rate(dtype, context) for context in contexts}
        with tempfile.TemporaryDirectory(prefix="tandem-bench-neo-") as run_dir:
            stack = Stack(self.args, self.model, mode, dtype, run_dir)
            try:
                stack.wait_for_pool()
                stack.wait_for_costs()
                for scenario in wanted:
                    row = {"scenario": scenario.name, "dtype": "-" if mode == "off" else dtype, "mode": mode, "result": stack.measure(scenario)}
                    if rates:
                        row["plan"] = self.plan(scenario, mode, dtype, rates[scenario.context], stack.windows)
                        found = row["result"]["cpu_gb_per_s"]
                        row["plan_as_read"] = self.plan(scenario, mode, dtype, found, stack.windows) if found > 0 else row["plan"]
                    self.rows.append(row)
                    show_row(row)
            finally:
                if stack.server.stop() != 0:
                    print("bench_neo: the server did not stop cleanly", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs (default: %(default)s)")
    parser.add_argument("--mode", action="append", choices=MODES, help="only these (may repeat)")
    parser.add_argument("--dtype", action="append", choices=list(POOLS), help="only these types of the CPU KV cache (may repeat)")
    parser.add_argument("--scenario", action="append", help="only these (may repeat)")
    parser.add_argument("--window", type=int, default=20, help="seconds that are measured per load (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1.2, help="requests per second of the Poisson load (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU attention threads (default: %(default)s)")
    parser.add_argument("--pool", help="size of the CPU KV pool, instead of " + ", ".join(f"{size} of {name}" for name, size in POOLS.items()))
    parser.add_argument("--no-plan", action="store_true", help="leave out the comparison with `tandem plan`")
    parser.add_argument("--trace-steps", metavar="FOLDER", help="write the timelines of all steps there")
    parser.add_argument("--flag", action="append", default=[], help="one more flag of the servers, as --flag=--max-num-seqs=64 (may repeat)")
    parser.add_argument("--out", help="file for the results as JSON")
    args = parser.parse_args()
    modes, dtypes, started = args.mode or MODES, args.dtype or list(POOLS), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tandem-bench-neo-") as folder:
        model = os.path.join(folder, "llama-2-7b")
        os.mkdir(model)
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
            json.dump(LLAMA_2_7B, file)
        bench = Bench(args, model)
        show_head()
        for number, dtype in enumerate(dtypes):
            for mode in modes:
                if mode != "off" or number == 0:
                    bench.run_mode(mode, dtype)
    print()
    show_head()
    for row in sorted(bench.rows, key=lambda row: (row["scenario"], row["dtype"], -row["result"]["tokens_per_s"])):
        show_row(row)
    bench.warn_of_drift()
    for text, reached in verdicts(bench.rows):
        print(f"{'ok    ' if reached else 'missed'} {text}")
    print(f"{time.monotonic() - started:.0f} s")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(bench.rows, file, indent=1)


if __name__ == "__main__":
    main()
