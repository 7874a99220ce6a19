"""What may lie where: the top level, the folders of tests/, and mirrors of the sources in tests/."""
from sources import CPP, Finding, PRODUCTION, files_ending, project_files, read

TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "Makefile", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md",
             "LICENSE", "proto", "common", "router", "gpu_worker", "cpu_attention_worker", "cli", "deploy", "docker", "docs", "tests", "cmake",
             "scripts"}
TESTS = {"fakes", "contract", "e2e", "fuzz", "bench", "gpu", "tidy", "data", "common", "router", "gpu_worker", "cpu_attention_worker", "cli"}
TESTS_FILES = {"CMakeLists.txt", "tsan.supp", "lsan.supp"}


def check_paths(paths):
    findings = []
    for path in paths:
        parts = path.split("/")
        if parts[0] not in TOP_LEVEL and not parts[0].startswith("."):
            findings.append(Finding(path, 1, f"{parts[0]} is not in the agreed top level"))
        if parts[0] == "tests" and parts[1] not in (TESTS if len(parts) > 2 else TESTS_FILES):
            findings.append(Finding(path, 1, f"tests/ has no place for {parts[1]}"))
    return findings


def check_headers():
    """Every header is guarded."""
    return [Finding(path, 1, "a header starts with #pragma once (after its comment)") for path in files_ending(".h", ".cuh", under=PRODUCTION)
            if "#pragma once" not in read(path) and not path.endswith("-inl.h")]


def check_mirrors():
    """A `x/y/name_test.cc` tests something of `x/y`."""
    folders = {path.rsplit("/", 1)[0] for path in files_ending(*CPP, under=PRODUCTION)}
    findings = []
    for path in files_ending("_test.cc", under=tuple("tests/" + area for area in PRODUCTION)):
        folder = path[len("tests/"):].rsplit("/", 1)[0]
        if folder not in folders and not any(f.startswith(folder + "/") for f in folders):
            findings.append(Finding(path, 1, f"there is no folder {folder} that this could test"))
    return findings


def check():
    return check_paths(project_files()) + check_headers() + check_mirrors()
