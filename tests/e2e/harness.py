"""A running Tandem for the tests of this folder: starts `tandem serve` on free ports, talks HTTP to it, reads its metrics, kills its
processes. Standard library only. TANDEM_BIN: folder of the programs; TANDEM_TEST_DATA: tests/data."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_BIN", ROOT / "build/bin"))
DATA = pathlib.Path(os.environ.get("TANDEM_TEST_DATA", ROOT / "tests/data"))
GOLDENS = DATA / "goldens"
DEMO_MODEL = ROOT / ".cache/tandem/demo/SmolLM2-135M-Instruct.Q4_1.gguf"
TINY = GOLDENS / "llama3-like"
PROCESSES = ("router", "gpu-worker", "cpu-attention-worker")
EXACT = ("--dtype", "float32", "--cpu-kv-size", "64MiB")
READY_S = 120
POLL_S = 0.02


def environment(extra=None):
    """Ours without variables that would set flags and without GPUs (fakes of a driver do not mind), and with `extra`."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}, "CUDA_VISIBLE_DEVICES": "", **(extra or {})}


def golden(name):
    with open(GOLDENS / name / "goldens.json", encoding="utf-8") as file:
        return json.load(file)


def wait_until(condition, what, timeout_s=30):
    """Polls `condition` until it gives something true, and returns that."""
    deadline = time.monotonic() + timeout_s
    while True:
        if result := condition():
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what() if callable(what) else what}")
        time.sleep(POLL_S)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run_program(*args, env=None, timeout_s=60):
    """Runs a program of ours to its end; returns (exit status, stdout, stderr)."""
    done = subprocess.run([BIN / args[0], *args[1:]], capture_output=True, text=True, timeout=timeout_s, check=False,
                          env=environment(env), stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


class Sample(NamedTuple):
    name: str
    labels: dict
    value: float


def parse_metrics(text):
    samples = []
    for line in text.splitlines():
        if match := re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?", line):
            labels = {k: v for k, v in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")}
            samples.append(Sample(match[1], labels, float(match[3])))
    return samples


class Reply(NamedTuple):
    status: int
    headers: dict  # names in lower case
    body: object  # parsed JSON, or text


class Stack:
    """The three processes under their supervisor; a context manager. When the body raises, the ends of the logs are shown."""

    def __init__(self, model, *flags, env=None):
        self.run_dir = pathlib.Path(tempfile.mkdtemp(prefix="tandem-e2e-"))
        self.command = [str(BIN / "tandem"), "serve", str(model), "--port", "0", "--run-dir", str(self.run_dir), "--router-metrics-port", "0",
                        "--worker-metrics-port", "0", "--cpu-attention-metrics-port", "0", "--cost-tables", "off", *flags]
        with open(self.run_dir / "serve.out", "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            env=environment(env))
        try:
            self._wait_ready()
        except BaseException:
            self._show_logs()
            self._end()
            raise

    def _wait_ready(self):
        path = self.run_dir / "endpoints.json"

        def there():
            if self.process.poll() is not None:
                raise AssertionError(f"tandem serve ended with {self.process.returncode} before it was ready: {' '.join(self.command)}")
            return path.exists()

        wait_until(there, f"ready: {' '.join(self.command)}", READY_S)
        self.endpoints = json.loads(path.read_text())
        self.address = urllib.parse.urlsplit(self.endpoints["http"]).netloc
        reply = self.get("/v1/models")
        self.model = reply.body["data"][0]["id"] if reply.status == 200 else None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._show_logs()
        self._end()

    def _end(self):
        self.stop(signal.SIGTERM)
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def _show_logs(self):
        for path in sorted(self.run_dir.glob("*.log")) + [self.run_dir / "serve.out"]:
            if path.exists():
                print(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}", flush=True)

    def stop(self, sig, timeout_s=60):
        """Sends `sig`; the exit status, or None for one that had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return None
        return self.process.returncode

    def pid(self, name):
        return int((self.run_dir / f"{name}.pid").read_text())

    def kill(self, name):
        """SIGKILL; returns once that process is gone. Waits first while it is just being restarted."""

        def running():
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid = self.pid(name)
                return pid if alive(pid) else None

        pid = wait_until(running, f"{name} to be running")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), f"{name} to be gone")
        return pid

    # HTTP ---------------------------------------------------------------------------------------------------------------------

    def request(self, method, path, body=None, headers=None, address=None):
        connection = http.client.HTTPConnection(address or self.address, timeout=180)
        with contextlib.closing(connection):
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            raw = response.read().decode(errors="replace")
            names = {name.lower(): value for name, value in response.getheaders()}
        try:
            return Reply(response.status, names, json.loads(raw))
        except ValueError:
            return Reply(response.status, names, raw)

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        if isinstance(body, dict):
            body = {"model": self.model, **body}
        return self.request("POST", path, body, **kw)

    def complete(self, **body):
        """A completion that must succeed: the body of the answer."""
        reply = self.post("/v1/completions", body)
        if reply.status != 200:
            raise AssertionError(f"/v1/completions: {reply.status} {reply.body}")
        return reply.body

    def greedy(self, prompt, count, **extra):
        """`count` token ids, the end token ignored."""
        choice = self.complete(prompt=prompt, max_tokens=count, temperature=0, ignore_eos=True, return_token_ids=True, **extra)["choices"][0]
        if len(choice["token_ids"]) != count:
            raise AssertionError(f"{len(choice['token_ids'])} tokens instead of {count}")
        return choice["token_ids"]

    def greedy_together(self, prompts, count):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.greedy(prompt, count), prompts))

    # Metrics ------------------------------------------------------------------------------------------------------------------

    def metrics(self, process):
        url = urllib.parse.urlsplit(self.endpoints["metrics"][process])
        reply = self.request("GET", url.path, address=url.netloc)
        if reply.status != 200:
            raise AssertionError(f"metrics of {process}: {reply.status}")
        return parse_metrics(reply.body)

    def metric(self, name, process="gpu_worker", **labels):
        """Sum of the samples that carry `labels`; None when there is none."""
        found = [s.value for s in self.metrics(process) if s.name == name and labels.items() <= s.labels.items()]
        return sum(found) if found else None

    def used_blocks(self):
        return {pool: self.metric("tandem_worker_kv_blocks", pool=pool, state="used") for pool in ("gpu", "cpu")}

    def wait_no_blocks(self, timeout_s=10):
        wait_until(lambda: not any(self.used_blocks().values()), lambda: f"all blocks free: {self.used_blocks()}", timeout_s)


class Stream:
    """One streamed call. Iterating gives parsed events; `done` says whether [DONE] came. close() leaves like a client that goes away."""

    def __init__(self, stack, path, body):
        self.connection = http.client.HTTPConnection(stack.address, timeout=180)
        self.connection.request("POST", path, json.dumps({"model": stack.model, "stream": True, **body}), {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.error, self.done = None, False
        if self.status != 200:
            self.error = self.response.read().decode(errors="replace")

    def __iter__(self):
        kind = "message"
        for raw in self.response if self.status == 200 else ():
            line = raw.decode().rstrip("\r\n")
            if line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                data = line[5:].strip()
                if data == "[DONE]":
                    self.done = True
                    return
                event = json.loads(data)
                if kind == "error" or "error" in event:
                    self.error = event
                    return
                yield event
            elif not line:
                kind = "message"

    def close(self):
        self.response.close()
        self.connection.close()


class TokenStream(threading.Thread):
    """A greedy stream of `count` tokens read in the background; `tokens` holds what has come."""

    def __init__(self, stack, prompt, count):
        super().__init__(daemon=True)
        self.stack, self.prompt, self.count = stack, prompt, count
        self.tokens, self.done, self.failure = [], False, None
        self.start()

    def run(self):
        body = {"prompt": self.prompt, "max_tokens": self.count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        try:
            stream = Stream(self.stack, "/v1/completions", body)
            for event in stream:
                for choice in event["choices"]:
                    self.tokens += choice.get("token_ids") or []
            self.done, self.failure = stream.done, stream.error
            stream.close()
        except (OSError, http.client.HTTPException) as error:
            self.failure = repr(error)

    def wait_more(self, count, timeout_s=60):
        """Waits for `count` more tokens, or for the end."""
        goal = len(self.tokens) + count
        wait_until(lambda: len(self.tokens) >= goal or not self.is_alive(), lambda: f"{len(self.tokens)} tokens, waiting for {goal}", timeout_s)

    def finish(self, timeout_s=180):
        self.join(timeout_s)
        if self.is_alive():
            raise AssertionError(f"the stream hangs after {len(self.tokens)} tokens")
        return self
