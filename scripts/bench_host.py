#!/usr/bin/env python3
"""Serving on a CPU alone, side by side: Tandem's host device, llama.cpp's server and vLLM's CPU build with the same bfloat16 weights, prompts and
streams. The engines run at the same time but are asked in turns, so that a slow minute of the machine hits all of them; each figure is the
median of its rounds. Standard library only.

  scripts/bench_host.py --install llama     fetches and builds a peer under .cache/tandem/peers (llama, vllm, guidellm, aiperf)
  scripts/bench_host.py --model FILE.gguf   measures Tandem and the peers that are installed"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import peers

READY_S = 900
STOP_S = 60
IDLE_SHARE = 0.05  # of a core; more disturbs the others
# At least so many times the better peer's output tokens per second.
GOALS = {1: 1.0, 8: 1.2, 16: 1.2}
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def get(url, timeout=10):
    with urllib.request.urlopen(url, timeout=timeout) as response:
        return response.read()


class Running:
    """One started engine, with its whole tree of processes."""

    def __init__(self, engine, run_dir):
        self.engine, self.name = engine, engine.name
        self.folder = pathlib.Path(run_dir) / engine.name
        self.folder.mkdir()
        self.log_path = self.folder / "engine.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = engine.command(self.port, str(self.folder))
        print("$", " ".join(command), flush=True)
        self.started = time.monotonic()
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                            env={**os.environ, **engine.environment()})
        self.ready_s = self.peak_mib = 0.0
        self.model = None

    def wait_ready(self):
        while True:
            if self.process.poll() is not None or time.monotonic() - self.started > READY_S:
                sys.exit(f"bench_host: {self.name} did not become ready:\n{self.log_path.read_text(errors='replace')[-3000:]}")
            with contextlib.suppress(urllib.error.URLError, OSError):
                get(self.url + self.engine.ready_path)
                break
            time.sleep(0.01)
        self.ready_s = time.monotonic() - self.started
        self.model = json.loads(get(self.url + "/v1/models"))["data"][0]["id"]

    def processes(self):
        """Process ids of the tree; a process that is ending may be missing."""
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            with contextlib.suppress(OSError):
                for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
                    todo += [int(child) for child in path.read_text().split()]
        return found

    def cpu_seconds(self):
        total = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                total += int(fields[11]) + int(fields[12])
        return total / CLOCK_TICKS

    def note_memory(self):
        """After each run; memory that two processes share counts once."""
        total = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1])
        self.peak_mib = max(self.peak_mib, total / 1024)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)  # its own session
                self.process.wait()


def lean_load(args, running, streams, seed):
    """One run of our own load generator, which takes little of the cores that are measured."""
    command = [os.path.join(args.bin, "tandem"), "bench", "serve", "--url", running.url, "--prompt-len", str(args.prompt_len), "--output-len",
               str(args.output_len), "--requests", str(streams * args.requests_per_stream), "--concurrency", str(streams), "--seed", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench_host: the load on {running.name} failed: {' '.join(command)}")
    report = json.loads(done.stdout)
    if report["errors"]:
        sys.exit(f"bench_host: {report['errors']} requests to {running.name} failed: {' '.join(command)}")
    return {"tokens_per_s": report["output_tokens_per_s"], "ttft_ms": report["ttft_ms"]["p50"], "itl_ms": report["itl_ms"]["p99"]}


def guidellm_report(folder):
    metrics = json.loads(next(folder.rglob("benchmark*.json")).read_text())["benchmarks"][0]["metrics"]
    times = {name: metrics[f"{name}_ms"]["successful"]["percentiles"] for name in ("time_to_first_token", "inter_token_latency")}
    return {"tokens_per_s": metrics["output_tokens_per_second"]["successful"]["mean"], "ttft_ms": times["time_to_first_token"]["p50"],
            "itl_ms": times["inter_token_latency"]["p99"]}


def aiperf_report(folder):
    report = json.loads(next(folder.rglob("profile_export_aiperf.json")).read_text())
    report = report.get("records", report)
    return {"tokens_per_s": report["output_token_throughput"]["avg"], "ttft_ms": report["time_to_first_token"]["p50"],
            "itl_ms": report["inter_token_latency"]["p99"]}


REPORTS = {"guidellm": guidellm_report, "aiperf": aiperf_report}


def public_load(args, running, streams, generator):
    with tempfile.TemporaryDirectory(prefix="tandem-load-") as folder:
        load = {"url": running.url, "model": running.model, "streams": streams, "requests": streams * args.requests_per_stream, "folder": folder}
        command, environment = peers.generator_command(generator, args, load)
        done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"bench_host: {generator} failed on {running.name}: {' '.join(command)}\n{done.stdout[-3000:]}")
        return REPORTS[generator](pathlib.Path(folder))


def one_run(args, engines, current, streams, run_number):
    """Loads one engine while the others are idle, and says when they were not."""
    idle = {other.name: other.cpu_seconds() for other in engines if other is not current}
    started = time.monotonic()
    if args.generator == "lean":
        result = lean_load(args, current, streams, run_number)
    else:
        result = public_load(args, current, streams, args.generator)
    seconds = time.monotonic() - started
    for other in engines:
        share = (other.cpu_seconds() - idle[other.name]) / seconds if other is not current else 0
        if share > IDLE_SHARE:
            print(f"bench_host: idle {other.name} took {share:.2f} of a core meanwhile: this run is not to be trusted", flush=True)
    current.note_memory()
    print(f"  {current.name:8} {streams:3} streams {result['tokens_per_s']:9.1f} tokens/s, first token {result['ttft_ms']:8.0f} ms, between tokens p99 "
          f"{result['itl_ms']:7.0f} ms", flush=True)
    return result


def measure(args, engines):
    """results[name][streams]: the medians of all rounds."""
    runs, number = {}, 1
    for engine in engines:
        one_run(args, engines, engine, 1, 0)  # warm-up, thrown away
    for round_number in range(args.rounds):
        for streams in args.streams:
            turn = (round_number + args.streams.index(streams)) % len(engines)
            number += 1  # one seed for all engines of a turn; new prompts each time, so that no prefix cache helps
            for engine in engines[turn:] + engines[:turn]:
                runs.setdefault((engine.name, streams), []).append(one_run(args, engines, engine, streams, number))
    return {engine.name: {streams: {key: statistics.median(run[key] for run in runs[engine.name, streams]) for key in ("tokens_per_s", "ttft_ms", "itl_ms")}
                          for streams in args.streams} for engine in engines}


def print_tables(args, engines, results):
    print(f"\n{args.prompt_len} prompt tokens, {args.output_len} output tokens, bfloat16, {os.cpu_count()} cores, load by {args.generator}, median of {args.rounds}")
    print(f"{'engine':8} {'streams':>7} {'tokens/s':>9} {'first token p50':>16} {'between p99':>12}")
    for engine in engines:
        for streams, result in results[engine.name].items():
            print(f"{engine.name:8} {streams:7} {result['tokens_per_s']:9.1f} {result['ttft_ms']:13.0f} ms {result['itl_ms']:9.0f} ms")
    print(f"\n{'engine':8} {'start to ready':>14} {'peak memory':>12}")
    for engine in engines:
        print(f"{engine.name:8} {engine.ready_s:12.2f} s {engine.peak_mib:8.0f} MiB")
    others = [name for name in results if name != "tandem"]
    if "tandem" not in results or not others:
        return
    print()
    for streams, ours in results["tandem"].items():
        best = max(others, key=lambda name: results[name][streams]["tokens_per_s"])
        ratio = ours["tokens_per_s"] / results[best][streams]["tokens_per_s"]
        first = ours["ttft_ms"] / min(results[name][streams]["ttft_ms"] for name in others)
        print(f"{streams:3} streams: {ratio:.2f} times the tokens/s of {best} (goal {GOALS.get(streams, 1.0)}), {first:.2f} times the best first token (goal 1)")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", nargs="+", choices=sorted(peers.PACKAGES), help="fetch these, and build what must be built; nothing is measured")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of such a build (default: %(default)s)")
    parser.add_argument("--bin", default="build/bin", help="folder of Tandem's programs (default: %(default)s)")
    parser.add_argument("--model", help="a .gguf file")
    parser.add_argument("--engines", default="", help="comma list of tandem, llama, vllm (default: tandem and the peers that are installed)")
    parser.add_argument("--generator", default="lean", choices=["lean", "guidellm", "aiperf"], help="lean: tandem bench serve (default)")
    parser.add_argument("--streams", default="1,8,16", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests-per-stream", type=int, default=3)
    parser.add_argument("--prompt-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--flag", action="append", default=[], help="one more flag of tandem serve, as --flag=--offload=off (may repeat)")
    parser.add_argument("--json", help="file that gets the results")
    args = parser.parse_args()
    if not args.install and not args.model:
        parser.error("--model is missing: a .gguf file")
    return args


def choose(args):
    wanted = args.engines.split(",") if args.engines else list(peers.ENGINES)
    for name in wanted:
        if name not in peers.ENGINES:
            sys.exit(f"bench_host: --engines: {name}; allowed: {', '.join(peers.ENGINES)}")
    chosen = []
    for engine in [peers.ENGINES[name](args) for name in wanted]:
        if why := engine.missing():
            if args.engines or engine.name == "tandem":
                sys.exit(f"bench_host: {why}")
            print(f"bench_host: left out: {why}", flush=True)
            continue
        chosen.append(engine)
    # Tandem last: it reads the bfloat16 file that a peer's preparation makes.
    for engine in sorted(chosen, key=lambda engine: engine.name == "tandem"):
        engine.prepare()
    return chosen


def main():
    args = parse()
    if args.install:
        for name in args.install:
            peers.install(name, args.jobs)
        return
    chosen, engines = choose(args), []
    with tempfile.TemporaryDirectory(prefix="tandem-bench-host-") as run_dir:
        try:
            for engine in chosen:
                engines.append(Running(engine, run_dir))
                engines[-1].wait_ready()
            results = measure(args, engines)
        finally:
            for running in engines:
                running.stop()
    print_tables(args, engines, results)
    if args.json:
        about = {running.name: {"ready_s": running.ready_s, "peak_mib": running.peak_mib, "streams": results[running.name]} for running in engines}
        pathlib.Path(args.json).write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
