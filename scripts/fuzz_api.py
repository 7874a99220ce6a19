#!/usr/bin/env python3
"""schemathesis (PyPI) against a running router, from the router's own /openapi.json: no answer may be a 500, an undocumented status or a body
that its schema does not allow; what the schema forbids must be refused. Installs schemathesis into .cache/tandem/schemathesis when it is not there.
Behind the router is a worker that computes nothing, or the server at --url. Exits 1 when it finds something."""
import argparse
import contextlib
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
VENV = ROOT / ".cache/tandem/schemathesis"
PACKAGE = "schemathesis==4.32.5"
MODEL = ROOT / "tests/data/goldens/llama3-like"
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")
START_S = 30
# A schema cannot say that a named tool must be among the tools, that min_tokens is at most max_tokens or how many tokens a prompt has: a
# request that it allows may still be a 400.
CONFIG = """[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 429]
"""


def install():
    program = VENV / "bin/schemathesis"
    stamp = VENV / "installed.txt"
    if not stamp.exists() or stamp.read_text() != PACKAGE:
        print(f"fuzz_api: {PACKAGE} into {VENV}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run([VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE], check=True)
        stamp.write_text(PACKAGE)
    return program


def wait_for(condition, what):
    deadline = time.monotonic() + START_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            sys.exit(f"fuzz_api: {what} not within {START_S} s")
        time.sleep(0.02)
    return value


def is_ready(url):
    try:
        with urllib.request.urlopen(url + "/ready", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def server(build, folder):
    """A fake worker and a router in front of it; gives the router's URL."""
    (folder / "template.jinja").write_text(TEMPLATE)
    processes = []

    def start(name, *command):
        with open(folder / f"{name}.log", "wb") as log:
            processes.append(subprocess.Popen([*command, "--port-file", folder / name], stdout=log, stderr=log))
        return wait_for(lambda: (folder / name).exists() and (folder / name).read_text().split(), f"{name} did not start")

    try:
        worker = start("worker", build / "tests/fake-worker", "--listen", "127.0.0.1:0", "--tokenizer", MODEL, "--max-model-len", "4096")[0]
        port = start("router", build / "bin/tandem-router", "--listen", "127.0.0.1:0", "--worker", f"127.0.0.1:{worker}",
                     "--router-metrics-port", "0", "--chat-template", folder / "template.jinja")[1]
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: is_ready(url), "the router is not ready")
        yield url
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build folder (default: build)")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--examples", type=int, default=50, help="requests of each kind and endpoint (default 50)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    args = parser.parse_args()
    program = install()
    print(f"fuzz_api: --examples {args.examples} --seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder)
        config = folder / "schemathesis.toml"
        config.write_text(CONFIG)
        url = args.url or stack.enter_context(server(args.build.resolve(), folder))
        return subprocess.run([program, "--config-file", config, "run", url + "/openapi.json", "--max-examples", str(args.examples), "--seed",
                               str(args.seed), "--request-timeout", "30", "--report-dir", folder, "--continue-on-failure"], cwd=folder,
                              check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
