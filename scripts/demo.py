#!/usr/bin/env python3
"""The demo: `tandem serve` with a device pool that is too small for the load, several questions streamed at once, and how many decode
tokens each tier attended. Standard library only."""
import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

QUESTIONS = [
    "What is the capital of France? Answer in one sentence.",
    "Why is the sky blue? Answer in two sentences.",
    "Write a short poem about the sea.",
    "Name three animals that live near water, and say why.",
    "Explain to a child what a computer's memory is.",
    "Give me a recipe for a simple vegetable soup.",
]
MAX_TOKENS = 96
READY_TIMEOUT_S = 180
ANSWER_TIMEOUT_S = 300
STOP_TIMEOUT_S = 60
# Six prompts with their answers need about 50 blocks of 16 tokens; 20 hold two of them.
DEVICE_BLOCKS = 20


class Server:
    """A running `tandem serve`; stop() ends it as SIGTERM from an operator would."""

    def __init__(self, program, model, run_dir, flags):
        self.run_dir = run_dir
        self.log_path = os.path.join(run_dir, "serve.out")
        command = [program, "serve", model, "--port", "0", "--run-dir", run_dir, "--router-metrics-port", "0",
                   "--worker-metrics-port", "0", "--cpu-attention-metrics-port", "0", *flags]
        print("$", " ".join(command), flush=True)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def wait_ready(self):
        """Returns the endpoints once all three processes are ready."""
        path = os.path.join(self.run_dir, "endpoints.json")
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not os.path.exists(path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(self.log_path, errors="replace") as log:
                    sys.exit(f"demo: tandem serve did not become ready:\n{log.read()[-3000:]}")
            time.sleep(0.05)
        with open(path) as file:
            return json.load(file)

    def stop(self):
        """Returns the exit status; None when it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


class Answer(threading.Thread):
    """Streams one chat answer; prints its lines, marked with their question's number, as they are complete."""

    def __init__(self, url, number, question, print_lock):
        super().__init__(daemon=True)
        self.host = url.split("//")[1]
        self.number, self.question, self.print_lock = number, question, print_lock
        self.tokens, self.complete, self.line = 0, False, ""

    def run(self):
        connection = http.client.HTTPConnection(self.host, timeout=ANSWER_TIMEOUT_S)
        body = {"messages": [{"role": "user", "content": self.question}], "max_tokens": MAX_TOKENS, "temperature": 0,
                "stream": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            self.show(f"error {response.status}: {response.read(500)!r}")
            return
        for raw in response:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                self.complete = True
            elif line.startswith("data:"):
                self.take(json.loads(line[5:]))
        if self.line:
            self.show(self.line)
        connection.close()

    def take(self, event):
        for choice in event.get("choices", []):
            piece = choice["delta"].get("content") or ""
            self.tokens += bool(piece)
            *whole, self.line = (self.line + piece).split("\n")
            if len(self.line) > 90 and " " in self.line:
                head, self.line = self.line.rsplit(" ", 1)
                whole.append(head)
            for text in whole:
                self.show(text)

    def show(self, text):
        if text.strip():
            with self.print_lock:
                print(f"  [{self.number}] {text}", flush=True)


def metric(url, name, **labels):
    """The sum of the samples of `name` that carry `labels`."""
    with urllib.request.urlopen(url, timeout=30) as response:
        text = response.read().decode()
    total = 0.0
    for found in re.finditer(rf"^{name}(?:\{{(.*)\}})? (\S+)", text, re.MULTILINE):
        have = dict(re.findall(r'(\w+)="([^"]*)"', found[1] or ""))
        if all(have.get(key) == value for key, value in labels.items()):
            total += float(found[2])
    return total


def ask(endpoints):
    """Streams all questions at once; returns whether every answer came whole."""
    print_lock = threading.Lock()
    for number, question in enumerate(QUESTIONS, 1):
        print(f"  [{number}] {question}")
    print("answers, as they stream in:", flush=True)
    started = time.monotonic()
    answers = [Answer(endpoints["http"], number, question, print_lock) for number, question in enumerate(QUESTIONS, 1)]
    for answer in answers:
        answer.start()
    for answer in answers:
        answer.join(ANSWER_TIMEOUT_S)
    seconds = time.monotonic() - started
    pieces = sum(answer.tokens for answer in answers)
    print(f"{sum(a.complete for a in answers)} of {len(answers)} answers complete: {pieces} pieces of text in {seconds:.1f} s")
    return all(answer.complete for answer in answers)


def report(endpoints):
    """Prints what each tier did; returns whether both worked."""
    url = endpoints["metrics"]["gpu_worker"]
    tiers = {tier: metric(url, "tandem_worker_decode_tokens_total", tier=tier) for tier in ("gpu", "cpu")}
    steps = {mode: metric(url, "tandem_worker_steps_total", mode=mode) for mode in ("gpu_only", "unified", "asymmetric")}
    print("decode tokens attended on the device: {gpu:.0f}, on the CPU beside its KV cache: {cpu:.0f}".format(**tiers))
    print("steps: " + ", ".join(f"{count:.0f} {mode}" for mode, count in steps.items()), flush=True)
    return all(count > 0 for count in tiers.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/bin", help="folder of the programs (default: %(default)s)")
    parser.add_argument("--model", required=True, help="a .gguf file or a Hugging Face folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as run_dir:
        flags = ("--cpu-kv-size", "256MiB", "--num-gpu-blocks-override", str(DEVICE_BLOCKS), "--max-model-len", "320")
        server = Server(os.path.join(args.bin, "tandem"), args.model, run_dir, flags)
        try:
            endpoints = server.wait_ready()
            print(f"ready at {endpoints['http']}; a device pool of {DEVICE_BLOCKS} blocks of 16 tokens. Questions:")
            complete = ask(endpoints)
            both = report(endpoints)
        finally:
            status = server.stop()
        if status != 0:
            with open(server.log_path, errors="replace") as log:
                print(log.read()[-3000:])
            sys.exit(f"demo: tandem serve ended with status {status}")
    if not complete:
        sys.exit("demo: an answer is missing or was cut")
    if not both:
        sys.exit("demo: one of the tiers attended nothing")
    print("stopped cleanly")


if __name__ == "__main__":
    main()
