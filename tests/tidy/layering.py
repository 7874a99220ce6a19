"""Dependency directions: which folder may include what, which library stays where, and what pure parts may not use."""
import re

from sources import CPP, Finding, PRODUCTION, files_ending, matches_in, read

PROCESSES = ("router", "gpu_worker", "cpu_attention_worker")

# Top-level folder -> top-level folders whose headers it may include.
TOP_LEVEL = {
    "common": {"common"},
    "router": {"router", "common"},
    "gpu_worker": {"gpu_worker", "common"},
    "cpu_attention_worker": {"cpu_attention_worker", "common"},
    "cli": {"cli", "common", "router", "gpu_worker"},
}

# Inside gpu_worker: folder -> folders below it. service is where the process is put together.
GPU_WORKER = {
    "device": set(),
    "ops": {"device"},
    "model": {"ops", "device"},
    "pipeline": {"model", "ops", "device"},
    "kv": set(),
    "cost_model": set(),
    "scheduler": {"kv", "cost_model"},
    "engine": {"scheduler", "kv", "cost_model", "pipeline"},
    "service": {"engine", "scheduler", "kv", "cost_model", "pipeline", "model", "ops", "device"},
}
# Plain values and interfaces that the planning side shares with the running side.
SHARED_VALUES = {"gpu_worker/pipeline/step_mode.h", "gpu_worker/pipeline/step_io.h", "gpu_worker/pipeline/stage_program.h",
                 "gpu_worker/cost_model/device_profile.h"}

# Inside router: folder -> folders it may use.
ROUTER = {
    "router_core": set(),
    "policy": {"router_core"},
    "fleet": {"policy", "router_core"},
    "upstream": {"fleet", "policy", "router_core"},
    "frontend": {"fleet", "policy", "router_core", "upstream"},
}

# What is included -> where it may be (in production code) and what to use instead.
LIBRARIES = [
    (r"cuda.*\.(?:h|cuh|hpp)$|cublas.*\.h$|nvrtc\.h$", r"gpu_worker/device/cuda/|gpu_worker/ops/\w+_cuda\.cu$", "CUDA stays in the CUDA device"),
    (r"\w*intrin\.h$|arm_neon\.h$|cpuid\.h$", r"common/attention_kernels/isa|.*-inl\.h$", "intrinsics stay in common/attention_kernels/isa and -inl.h files"),
    (r"hwloc(?:/|\.h$)", r"common/topology/", "hwloc stays in common/topology"),
    (r"prometheus/", r"common/telemetry/", "use common/telemetry/metrics.h"),
    (r"grpcpp/|grpc\+\+/|grpc/|google/protobuf/|tandem/v1/",
     r"common/rpc/|gpu_worker/service/|cpu_attention_worker/server/|router/upstream/|router/frontend/",
     "gRPC and protobuf stop at service, server, upstream, frontend and rpc"),
    (r"dnnl(?:\.h|\.hpp|_\w+\.h)$|omp\.h$", r"gpu_worker/(?:ops|device)/", "oneDNN stays in the host device and its ops"),
    (r"sentencepiece_|pcre2\.h$", r"common/tokenizer/", "tokenizer libraries stay in common/tokenizer"),
    (r"spdlog/", r"common/base/", "use common/base/log.h"),
    (r"yaml-cpp/", r"common/base/|gpu_worker/device/", "configuration is read in common/base"),
    (r"tests/|g(?:test|mock)/", r"$^", "production code includes no test code"),
]

# Value-only parts: no clock, thread, socket, file, environment, GPU, gRPC, protobuf, metrics or randomness.
PURE = re.compile(r"gpu_worker/scheduler/|gpu_worker/kv/|gpu_worker/cost_model/(?!\w*profil)|gpu_worker/engine/engine_core\w*\.|"
                  r"gpu_worker/pipeline/stage_program\w*\.|router/router_core/|router/policy/|cpu_attention_worker/batch/|"
                  r"common/kv_layout/|common/exchange/layout\w*\.|common/topology/\w*placement\w*\.")
IMPURE_HEADERS = re.compile(r"(?:thread|mutex|shared_mutex|condition_variable|future|semaphore|chrono|ctime|time\.h|random|fstream|filesystem|"
                            r"iostream|unistd\.h|fcntl\.h|sys/.*|netinet/.*|boost/.*|absl/(?:time|synchronization|random)/.*|common/base/log\.h|"
                            r"common/shm/.*|common/telemetry/.*|common/rpc/.*)$")
IMPURE_CALLS = r"\b(?:getenv|std::rand|::rand|random_device|fopen|NowUs|UnixUs|SystemClock)\s*\("
CLOCKS = r"\b(?:steady_clock|system_clock|high_resolution_clock)::now\b|\bclock_gettime\s*\(|\bgettimeofday\s*\(|\babsl::Now\b|\bstd::time\s*\("
MMAP = r"(?<![\w.>])(?:::)?(?:mmap|memfd_create|shm_open)\s*\("
CLOCK_HOME = "common/base/clock.cc"


def includes(path, text=None):
    """(line number, header) of each include."""
    found = matches_in(path, r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', read(path) if text is None else text)
    return [(line, match[1]) for line, match in found]


def _inside(table, prefix, path, header):
    """Message when `path` includes `header` of a folder of the same process that it may not use."""
    if not path.startswith(prefix) or not header.startswith(prefix) or header in SHARED_VALUES:
        return None
    source, target = path[len(prefix):].split("/")[0], header[len(prefix):].split("/")[0]
    if source == target or source not in table or target not in table:
        return None
    return None if target in table[source] else f"{prefix}{source} must not use {prefix}{target} ({header})"


def include_finding(path, header):
    """What is wrong with `path` including `header`, or None."""
    top, target = path.split("/")[0], header.split("/")[0]
    if target in TOP_LEVEL and target not in TOP_LEVEL[top]:
        return f"{top} must not use {target} ({header})"
    if message := _inside(GPU_WORKER, "gpu_worker/", path, header) or _inside(ROUTER, "router/", path, header):
        return message
    for what, where, instead in LIBRARIES:
        if re.match(what, header) and not re.match(where, path):
            return f"{header}: {instead}"
    if PURE.match(path) and IMPURE_HEADERS.match(header):
        return f"{header}: this part is pure; times, randomness and the like come as arguments"
    return None


def check():
    findings = []
    for path in files_ending(*CPP, under=PRODUCTION):
        for line, header in includes(path):
            if message := include_finding(path, header):
                findings.append(Finding(path, line, message))
        if path != CLOCK_HOME:
            findings += [Finding(path, line, f"{match[0]}: the only clock is common/base/clock.h") for line, match in matches_in(path, CLOCKS)]
        if not path.startswith("common/shm/"):
            findings += [Finding(path, line, f"{match[0].strip()}): mmap stays in common/shm") for line, match in matches_in(path, MMAP)]
        if PURE.match(path):
            findings += [Finding(path, line, f"{match[0]}: this part is pure") for line, match in matches_in(path, IMPURE_CALLS)]
    return findings
