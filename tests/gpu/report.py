#!/usr/bin/env python3
"""What the parts of tests/gpu/run gave: OUT/summary.json, and OUT/page.md for docs/gpu.md."""
import json
import pathlib
import re
import statistics
import sys

PROFILES = pathlib.Path(__file__).parents[2] / "gpu_worker/cost_model/profiles"
GOALS = {"decode_attention": 0.85, "prefill_attention": 0.5, "launch_gap": 0.02}
DEVICE_TRACK = "device"


def limits_of(name):
    """(GB/s, TFLOP/s at 16 bit) of the GPU's datasheet, where there is a profile of it."""
    for path in sorted(PROFILES.glob("*.yaml")):
        if re.search(rf"\b{path.stem}\b", name.lower().replace("tesla ", "")):
            text = path.read_text()
            bandwidth = re.search(r"^\s+memory_gb_per_s: ([\d.]+)", text, re.M)
            flops = re.search(r"^\s+float16: ([\d.]+)", text, re.M)
            if bandwidth and flops:
                return float(bandwidth[1]), float(flops[1])
    return None


def json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")] if path.exists() else []


def kernels(out, limits):
    rows = json_lines(out / "kernels.log")
    for row in rows:
        if limits:
            row["of_limit"] = round(row["gb_per_s"] / limits[0] if "gb_per_s" in row else row["tflop_per_s"] / limits[1], 3)
    return rows


def timeline(path):
    """Of each mode: steps, median length, and the share of it in which the device had nothing to do although the step was on it."""
    if not path.exists():
        return {}
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    steps = {}
    current = None
    for event in (e for e in events if e["ph"] == "X"):
        if tracks[event["tid"]] == "step":
            current = {"us": event["dur"], "spans": []}
            steps.setdefault(event["name"], []).append(current)
        elif tracks[event["tid"]] == DEVICE_TRACK and current is not None:
            current["spans"].append((event["ts"], event["ts"] + event["dur"]))
    result = {}
    for mode, all_steps in steps.items():
        gaps = []
        for step in all_steps:
            spans = sorted(step["spans"])
            idle = sum(max(0.0, after[0] - before[1]) for before, after in zip(spans, spans[1:]))
            gaps.append(idle / step["us"] if step["us"] > 0 else 0.0)
        result[mode] = {"steps": len(all_steps), "median_us": round(statistics.median(s["us"] for s in all_steps), 1),
                        "device_idle_share": round(statistics.median(gaps), 4)}
    return result


def page(summary):
    lines = [f"### {summary['gpu']}", "", "`tests/gpu/run`. Parts: " +
             ", ".join(f"{p['part']} {'passed' if p['status'] == 0 else 'FAILED'} ({p['seconds']} s)" for p in summary["parts"]) + ".", "",
             "| kernel | heads (q, kv, dim) | rows | context | us | rate | of the limit |", "|---|---|---|---|---|---|---|"]
    for row in summary["kernels"]:
        rate = f"{row['gb_per_s']} GB/s" if "gb_per_s" in row else f"{row['tflop_per_s']} TFLOP/s"
        lines.append(f"| {row['kernel']} | {row['q_heads']}, {row['kv_heads']}, {row['head_dim']} | {row['rows']} | {row['context']} | {row['us']} | {rate} | "
                     f"{row.get('of_limit', 'unknown')} |")
    lines += ["", "| `--offload` | mode | steps | median us | device idle between its stages |", "|---|---|---|---|---|"]
    for offload, modes in summary["timelines"].items():
        lines += [f"| {offload} | {mode} | {t['steps']} | {t['median_us']} | {100 * t['device_idle_share']:.1f}% |" for mode, t in modes.items()]
    lines += ["", "| `--offload` | output tokens/s | requests/s | steps that ran as graphs |", "|---|---|---|---|"]
    for offload, served in summary["serving"].items():
        lines.append(f"| {offload} | {served['bench']['output_tokens_per_s']} | {served['bench']['requests_per_s']} | {served['graph_steps']} |")
    lines += ["", f"Goals: decode attention at {GOALS['decode_attention']} of the memory's rate, prefill attention at {GOALS['prefill_attention']} of the tensor cores', idle "
              f"time of a graphed step below {100 * GOALS['launch_gap']:.0f}% of it."]
    return "\n".join(lines) + "\n"


def main():
    out = pathlib.Path(sys.argv[1])
    gpu = (out / "gpu.txt").read_text().splitlines()[0]
    parts = {row["part"]: row for row in json_lines(out / "results.json")}  # the newest try of each
    summary = {"gpu": gpu, "parts": list(parts.values()), "kernels": kernels(out, limits_of(gpu.split(",")[0])),
               "timelines": {mode: timeline(out / f"steps_{mode}.json") for mode in ("off", "auto")},
               "serving": {mode: json.loads((out / f"serve_{mode}.json").read_text()) for mode in ("off", "auto") if (out / f"serve_{mode}.json").exists()}}
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (out / "page.md").write_text(page(summary))
    print((out / "page.md").read_text())


if __name__ == "__main__":
    main()
