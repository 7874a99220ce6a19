#!/usr/bin/env python3
"""The figures of the NEO paper (arXiv 2411.01142) by `tandem plan`: ours beside theirs, as Markdown tables and pages with plots. Standard
library only. Everything runs in the simulator with the production scheduler; nothing is measured on a GPU."""
import argparse
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CODE = os.path.join(ROOT, "tests/data/traces/azure_code_lengths.csv")
SUMMARIES = os.path.join(ROOT, "tests/data/traces/openai_summaries_lengths.csv")

# The paper's testbeds: model, profile of GPU and host, KV pools. The band is of the host's memory bandwidth, GB/s, which the paper does not
# print: half to one and a half of what the profile assumes.
T4 = {"name": "T4, Llama-2-7B", "args": ["--model", "llama-2-7b", "--gpu", "g4dn.4xlarge", "--gpu-kv-tokens", "864", "--cpu-kv-tokens", "40960"],
      "trace": SUMMARIES, "target": 1, "paper_load": 6.63, "band": (34, 51, 68, 102), "inputs": (50, 100, 200, 500), "outputs": (10, 20, 50, 100, 200, 300),
      "paper_peak": 7.5}
A10G = {"name": "A10G, Llama-3.1-8B", "args": ["--model", "llama-3.1-8b", "--gpu", "g5.8xlarge", "--cpu-kv-size", "64GiB"],
        "trace": CODE, "target": 2, "paper_load": 1.064, "band": (43, 65, 87, 130), "inputs": (50, 200, 500, 1000, 2000),
        "outputs": (10, 20, 50, 100, 200, 400, 1000), "paper_peak": 1.26}
H100 = {"name": "2 x H100, Llama-3.1-70B", "args": ["--model", "llama-3.1-70b", "--gpu", "hgx-h100", "--tensor-parallel-size", "2", "--cpu-kv-size", "256GiB"],
        "trace": CODE, "target": 2, "paper_load": 1.143, "band": (245, 368, 491, 737), "inputs": (50, 200, 500, 1000, 2000),
        "outputs": (10, 20, 50, 100, 200, 400, 1000), "paper_peak": 1.14}
TESTBEDS = (T4, A10G, H100)
# The hosts of figure 10 with their assumed memory bandwidth relative to the smallest, and the paper's gains.
FIGURE10 = (("g5.2xlarge", 1, 1.122), ("g5.4xlarge", 2, 1.133), ("g5.8xlarge", 4, 1.297), ("g5.16xlarge", 8, 1.793))
FIGURE10_OUTPUTS = (50, 100, 150, 200, 250, 300, 350, 400)
# Their figure 9 shows no gain below this as one.
AREA_GAIN = 1.05
LOWEST_GAIN = 0.99


class Planner:
    """Runs `tandem plan` and keeps the command lines for the report."""

    def __init__(self, args):
        self.args = args
        self.commands = []

    def run(self, *flags, html=None):
        """The JSON lines of one run."""
        command = [os.path.join(self.args.bin, "tandem"), "plan", *map(str, flags)]
        shown = " ".join(command[1:]).replace(ROOT + "/", "")
        self.commands.append("tandem " + shown)
        if html:
            command += ["--html", os.path.join(self.args.out, html)]
        if self.args.jobs:
            command += ["--jobs", str(self.args.jobs)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"reproduce.py: exit status {done.returncode} of: {shown}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def count(self, number):
        """Requests of a run."""
        return max(int(number * self.args.scale), 20)


def comma(values):
    return ",".join(str(value) for value in values)


def table(head, rows):
    lines = ["| " + " | ".join(str(cell) for cell in head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def times(value):
    return f"{value:.2f}x"


def by_mode(lines, field="sustained_rate"):
    return {line["offload"]: line[field] for line in lines}


def prefill_rate(plan, bed, load):
    """Requests per second when each asks for one token only: what the prompts alone allow, with or without a CPU tier."""
    path = os.path.join(plan.args.out, "one_token_" + os.path.basename(bed["trace"]))
    with open(bed["trace"], encoding="utf-8") as trace, open(path, "w", encoding="utf-8") as out:
        out.write(trace.readline())
        out.writelines(line.split(",")[0] + ",1\n" for line in trace)
    one_token = [path if flag == bed["trace"] else flag for flag in load]
    return plan.run(*bed["args"], *one_token, "--offload", "off")[0]["requests_per_s"]


def figure6(plan):
    """Load against latency: the highest rate at the paper's latency, and the curves."""
    out, band_rows, rows = [], [], []
    for bed in TESTBEDS:
        load = ["--trace", bed["trace"], "--requests", plan.count(1000), "--all-at-once"]
        search = [*bed["args"], *load, "--find-rate", "--max-per-token-latency", bed["target"]]
        rates = by_mode(plan.run(*search, "--offload", "off,neo,auto"))
        eager = by_mode(plan.run(*search, "--offload", "off,neo", "--launch", "eager"))
        int8 = by_mode(plan.run(*search, "--offload", "auto", "--cpu-kv-dtype", "int8"))
        off = rates["off"]
        rows.append((bed["name"], f"{bed['target']} s", f"{prefill_rate(plan, bed, load):.3f}", f"{off:.3f}", f"{eager['off']:.3f}", times(rates["neo"] / off), times(eager["neo"] / eager["off"]),
                     times(rates["auto"] / off), times(int8["auto"] / off), times(bed["paper_load"])))
        for bandwidth in bed["band"]:
            banded = by_mode(plan.run(*search, "--offload", "neo,auto", "--cpu-bandwidth", bandwidth))
            band_rows.append((bed["name"], bandwidth, times(banded["neo"] / off), times(banded["auto"] / off)))
        curve = comma(f"{off * factor:.4g}" for factor in (0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 8)[:12 if bed is T4 else 8])
        plan.run(*bed["args"], *load, "--offload", "off,all-cpu,neo,auto", "--rates", curve, html=f"figure6-{bed['args'][3]}.html")
    out.append(table(("testbed", "s per token", "prompts alone, req/s", "off, req/s", "off eager, req/s", "neo", "neo eager over off eager", "auto", "auto, int8 CPU KV", "paper"), rows))
    out.append("The same with the CPU attention bandwidth as a band:\n")
    out.append(table(("testbed", "KV GB/s", "neo", "auto"), band_rows))
    return "\n".join(out)


def figure8(plan):
    """Against full offload as outputs grow."""
    outputs = (20, 50, 100, 200, 400)
    rows = []
    for bed, prompt in ((A10G, 500), (H100, 500)):
        lines = plan.run(*bed["args"], "--prompt-len", prompt, "--output-len", comma(outputs), "--requests", plan.count(1000), "--length-spread", 0.1,
                         "--offload", "off,all-cpu,neo,auto", html=f"figure8-{bed['args'][3]}.html")
        tokens = {(line["offload"], line["output_len"]): line["output_tokens_per_s"] for line in lines}
        for output in outputs:
            base = tokens["off", output]
            rows.append((bed["name"], f"{prompt} / {output}", f"{base:.0f}", *(f"{tokens[mode, output] / base:.3f}" for mode in ("all-cpu", "neo", "auto"))))
    return table(("testbed", "input / output", "off, tokens/s", "all-cpu", "neo", "auto"), rows)


def gains(plan, bed, *flags, modes="off,neo,auto", html=None):
    """{(mode, input, output): gain over off} of a testbed's grid."""
    inputs, outputs = bed["inputs"], bed["outputs"]
    found = {}
    for prompt in inputs:
        lines = plan.run(*bed["args"], "--prompt-len", prompt, "--output-len", comma(outputs), "--requests", plan.count(800), "--length-spread", 0.1,
                         "--offload", modes, *flags, html=html and f"{html}-{prompt}.html")
        tokens = {(line["offload"], line["output_len"]): line["output_tokens_per_s"] for line in lines}
        for (mode, output), value in tokens.items():
            found[mode, prompt, output] = value / tokens["off", output]
    return found


def figure9(plan):
    """Gain over GPU only against output length, on a grid of inputs and outputs."""
    out, summary = [], []
    for bed in TESTBEDS:
        bf16 = gains(plan, bed, html=f"figure9-{bed['args'][3]}")
        int8 = gains(plan, bed, "--cpu-kv-dtype", "int8", modes="off,auto")
        cells = [(prompt, output) for prompt in bed["inputs"] for output in bed["outputs"]]
        grid = [("neo", {cell: bf16["neo", *cell] for cell in cells}), ("auto", {cell: bf16["auto", *cell] for cell in cells}),
                ("auto, int8", {cell: int8["auto", *cell] for cell in cells})]
        out.append(f"{bed['name']}: gain over GPU only (neo / auto / auto with int8 CPU KV)\n")
        out.append(table(("input \\ output", *bed["outputs"]),
                         [(prompt, *(" / ".join(f"{values[prompt, output]:.2f}" for _, values in grid) for output in bed["outputs"]))
                          for prompt in bed["inputs"]]))
        for name, values in grid:
            peak = max(values, key=values.get)
            summary.append((bed["name"], name, f"{min(values.values()):.3f}", f"{values[peak]:.2f} at {peak[0]} / {peak[1]}",
                            f"{sum(value > AREA_GAIN for value in values.values())} of {len(cells)}", f"{bed['paper_peak']:.2f}"))
    out.insert(0, table(("testbed", "mode", "lowest gain", "highest gain", f"points above {AREA_GAIN}", "paper's highest"), summary))
    return "\n".join(out)


def figure10(plan):
    """A10G hosts with more and more CPU memory bandwidth."""
    rows = []
    for host, factor, paper in FIGURE10:
        base = ["--model", "llama-3.1-8b", "--gpu", host, "--cpu-kv-size", "64GiB", "--prompt-len", 1000, "--output-len", comma(FIGURE10_OUTPUTS),
                "--requests", plan.count(1500), "--length-spread", 0.1]
        lines = plan.run(*base, "--offload", "off,neo,auto", html=f"figure10-{host}.html")
        int8 = plan.run(*base, "--offload", "auto", "--cpu-kv-dtype", "int8")
        off = {line["output_len"]: line["output_tokens_per_s"] for line in lines if line["offload"] == "off"}
        best = {mode: max((line["output_tokens_per_s"] / off[line["output_len"]], line["output_len"]) for line in chosen if line["offload"] == mode.split(",")[0])
                for mode, chosen in (("neo", lines), ("auto", lines), ("auto, int8", int8))}
        lowest = min(line["output_tokens_per_s"] / off[line["output_len"]] for line in lines if line["offload"] == "auto")
        rows.append((host, f"{factor}x, {25.6 * factor:.1f} GB/s", *(f"{gain:.3f} at {output}" for gain, output in best.values()), f"{lowest:.3f}", f"{paper:.3f}"))
    return table(("host", "memory bandwidth (assumed)", "neo, highest", "auto, highest", "auto int8, highest", "auto, lowest", "paper's highest"), rows)


# Of our additions to the published method: the name, and how a run gets it alone.
ADDITIONS = ("unified", "chunk-balancing", "guard")


# Stands for a CPU pool that holds a block or two: `auto` is then the device alone at its best pace of prefill.
NO_CPU_TIER = ("no-cpu-tier",)


def without_cpu_tier(flags, variant):
    """The flags of a run; NO_CPU_TIER in the variant takes the place of the pool's size."""
    both = [*flags, *(flag for flag in variant if flag not in NO_CPU_TIER)]
    if variant[-1:] == list(NO_CPU_TIER):
        size = "--cpu-kv-tokens" if "--cpu-kv-tokens" in both else "--cpu-kv-size"
        both += [size, "128" if size == "--cpu-kv-tokens" else "40MiB"]
    return both


def ablation(plan):
    """Each addition alone and all of them together, as output tokens per second over GPU only."""
    scenarios = [
        ("T4, summaries", [*T4["args"], "--trace", SUMMARIES, "--requests", plan.count(1000)]),
        ("A10G, 1000 / 50", [*A10G["args"], "--prompt-len", 1000, "--output-len", 50, "--requests", plan.count(1500), "--length-spread", 0.1]),
        ("A10G, 1000 / 200", [*A10G["args"], "--prompt-len", 1000, "--output-len", 200, "--requests", plan.count(1500), "--length-spread", 0.1]),
        ("A10G, 1000 / 200, CPU 6x slower after 30 s",
         [*A10G["args"], "--prompt-len", 1000, "--output-len", 200, "--requests", plan.count(1500), "--length-spread", 0.1, "--cpu-slowdown", 6,
          "--cpu-slowdown-from", 30]),
        ("2 x H100, 1000 / 200", [*H100["args"], "--prompt-len", 1000, "--output-len", 200, "--requests", plan.count(1500), "--length-spread", 0.1]),
    ]
    variants = [("neo", ["--offload", "neo"]), ("none of them", ["--offload", "auto", "--without", comma(ADDITIONS)])]
    variants += [(f"{name} alone", ["--offload", "auto", "--without", comma(other for other in ADDITIONS if other != name)]) for name in ADDITIONS]
    variants += [("int8 CPU KV alone", ["--offload", "auto", "--cpu-kv-dtype", "int8", "--without", comma(ADDITIONS)]),
                 ("all but int8", ["--offload", "auto"]), ("all", ["--offload", "auto", "--cpu-kv-dtype", "int8"]),
                 ("all, but no CPU tier to speak of", ["--offload", "auto", *NO_CPU_TIER])]
    columns = []
    for _, flags in scenarios:
        base = plan.run(*flags, "--offload", "off")[0]["output_tokens_per_s"]
        columns.append([plan.run(*without_cpu_tier(flags, variant))[0]["output_tokens_per_s"] / base for _, variant in variants])
    return table(("", *(name for name, _ in scenarios)),
                 [(name, *(f"{column[i]:.3f}" for column in columns)) for i, (name, _) in enumerate(variants)])


FIGURES = {"figure6": figure6, "figure8": figure8, "figure9": figure9, "figure10": figure10, "ablation": ablation}


def update(path, name, text):
    """Puts `text` between the marks of `name` in the document."""
    with open(path, encoding="utf-8") as file:
        document = file.read()
    pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(document):
        sys.exit(f"reproduce.py: {path} has no marks of {name}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(pattern.sub(lambda match: match[1] + "\n" + text + "\n" + match[2], document))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)} (default: all)")
    parser.add_argument("--bin", default="build/bin", help="folder of the programs (default: %(default)s)")
    parser.add_argument("--out", default="build/reproduce", help="folder of tables and pages (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=0, help="simulations at a time (default: one per core)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests of each run, for a quick look")
    parser.add_argument("--update", metavar="FILE", help="also put the tables into this document")
    args = parser.parse_args()
    unknown = [name for name in args.figures if name not in FIGURES]
    if unknown:
        parser.error(f"unknown figure {unknown[0]}; allowed: {', '.join(FIGURES)}")
    os.makedirs(args.out, exist_ok=True)
    for name in args.figures or FIGURES:
        started = time.monotonic()
        plan = Planner(args)
        text = FIGURES[name](plan)
        commands = "\n".join(plan.commands)
        with open(os.path.join(args.out, name + ".md"), "w", encoding="utf-8") as file:
            file.write(f"{text}\n```\n{commands}\n```\n")
        print(f"== {name} ({time.monotonic() - started:.0f} s)\n\n{text}", flush=True)
        if args.update:
            update(args.update, name, text)


if __name__ == "__main__":
    main()
