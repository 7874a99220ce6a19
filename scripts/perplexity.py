#!/usr/bin/env python3
"""What rounding the CPU KV pool costs: the perplexity of a text for each type of the pool, through the HTTP API. Every sequence lives in the CPU
pool (--offload all-cpu) and its prompt runs in chunks, so that a token attends to what the pool holds: rounded K and V, read back from it for
everything before its own chunk. Ends with 1 when int8 raises the perplexity by --limit per cent or more. Standard library only."""
import argparse
import http.client
import json
import math
import os
import pathlib
import sys
import tempfile
import time

from demo import Server, metric

ROOT = pathlib.Path(__file__).resolve().parents[1]
# English of our own, about 15,000 tokens.
DEFAULT_TEXT = ("ARCHITECTURE.md", "docs/decisions/*.md", "CONTRIBUTING.md", "gpu_worker/scheduler/DESIGN.md", "docs/kv_layout.md", "docs/user_guide.md")
ANSWER_TIMEOUT_S = 600


def post(url, path, body):
    connection = http.client.HTTPConnection(url.split("//")[1], timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read().decode(errors="replace")
    finally:
        connection.close()
    if response.status != 200:
        sys.exit(f"perplexity: {path} answers {response.status}: {answer[:500]}")
    return json.loads(answer)


def logprobs(url, tokens, window):
    """The logprob of each token given those before it in its window; a window's first has none."""
    found = []
    for first in range(0, len(tokens), window):
        # The second token to generate is a decode, which says where the sequence lives.
        body = {"prompt": tokens[first:first + window], "max_tokens": 2, "temperature": 0, "ignore_eos": True, "prompt_logprobs": 0}
        entries = post(url, "/v1/completions", body)["choices"][0]["prompt_logprobs"]
        found += [next(iter(entry.values()))["logprob"] for entry in entries[1:]]
    return found


def measure(args, dtype, kv):
    """Logprobs of the text with a pool of one type."""
    flags = ("--dtype", dtype, "--cpu-kv-dtype", kv, "--cpu-kv-size", args.cpu_kv_size, "--offload", "all-cpu", "--max-num-batched-tokens",
             str(args.chunk), *args.flag)
    with tempfile.TemporaryDirectory(prefix="tandem-perplexity-") as run_dir:
        server = Server(os.path.join(args.bin, "tandem"), args.model, run_dir, flags)
        try:
            endpoints = server.wait_ready()
            tokens = post(endpoints["http"], "/tokenize", {"prompt": args.text})["tokens"][:args.tokens]
            started = time.monotonic()
            found = logprobs(endpoints["http"], tokens, args.window)
            tiers = [metric(endpoints["metrics"]["gpu_worker"], "tandem_worker_decode_tokens_total", tier=tier) for tier in ("gpu", "cpu")]
        finally:
            server.stop()
    if tiers[0] or not tiers[1]:
        sys.exit(f"perplexity: the sequences did not live in the CPU pool: {tiers[0]:.0f} decodes on the device, {tiers[1]:.0f} on the CPU")
    return found, time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs (default: %(default)s)")
    parser.add_argument("--model", required=True, help="a .gguf file or a Hugging Face folder")
    parser.add_argument("--text", help="a text file (default: this project's documentation)")
    parser.add_argument("--tokens", type=int, default=10_000, help="how much of the text (default: %(default)s)")
    parser.add_argument("--window", type=int, default=2_000, help="tokens that are one sequence (default: %(default)s)")
    parser.add_argument("--chunk", type=int, default=128, help="prompt tokens per step (default: %(default)s)")
    parser.add_argument("--dtype", action="append", help="compute type (default: float32; may repeat)")
    parser.add_argument("--kv", default="bfloat16,int8,fp8_e4m3", help="types of the pool to compare with the compute type's own (default: %(default)s)")
    parser.add_argument("--cpu-kv-size", default="512MiB")
    parser.add_argument("--limit", type=float, default=0.5, help="per cent that int8 must stay below (default: %(default)s)")
    parser.add_argument("--flag", action="append", default=[], help="one more flag of the server, as --flag=--seed=1 (may repeat)")
    args = parser.parse_args()
    sources = [args.text] if args.text else [path for name in DEFAULT_TEXT for path in sorted(ROOT.glob(name))]
    args.text = "\n\n".join(pathlib.Path(source).read_text(encoding="utf-8") for source in sources)
    failed = False
    print(f"{'compute':9} {'CPU KV':9} {'tokens':>6} {'perplexity':>11} {'rise':>11} {'mean |move|':>12} {'seconds':>8}", flush=True)
    for dtype in args.dtype or ["float32"]:
        base = None
        for kv in [dtype] + [kv for kv in args.kv.split(",") if kv != dtype]:
            found, seconds = measure(args, dtype, kv)
            perplexity = math.exp(-sum(found) / len(found))
            base = base or (perplexity, found)
            rise = 100 * (perplexity / base[0] - 1)
            moved = sum(abs(a - b) for a, b in zip(found, base[1])) / len(found)
            print(f"{dtype:9} {kv:9} {len(found):6} {perplexity:11.4f} {rise:+9.3f} % {moved:12.5f} {seconds:8.1f}", flush=True)
            failed = failed or (kv == "int8" and rise >= args.limit)
    if failed:
        sys.exit(f"perplexity: int8 raises it by {args.limit} % or more")


if __name__ == "__main__":
    main()
