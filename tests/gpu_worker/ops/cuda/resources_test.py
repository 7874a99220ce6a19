#!/usr/bin/env python3
"""What each GPU kernel of this build takes, as ptxas says: prints registers, spills and shared memory by architecture, and fails past the bounds.
Usage: resources_test.py FOLDER (of the build's *.fatbin.resources)."""
import pathlib
import re
import sys

MOST_REGISTERS = 255
MOST_SPILLED_BYTES = 64  # a few words at the edges of attention kernels cost less than smaller tiles
MOST_STATIC_SHARED_BYTES = 48 << 10

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def kernels(text):
    """(kernel, architecture) -> [registers, spilled bytes, static shared bytes]."""
    found, entry = {}, None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            entry = match.groups()
            found.setdefault(entry, [0, 0, 0])
        elif entry and (match := SPILLS.search(line)):
            found[entry][1] = max(found[entry][1], int(match[1]) + int(match[2]))
        elif entry and (match := USED.search(line)):
            found[entry][0] = int(match[1])
            shared = SHARED.search(line)
            found[entry][2] = int(shared[1]) if shared else 0
    return found


def main():
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.fatbin.resources"))
    if not files:
        sys.exit(f"no *.fatbin.resources in {sys.argv[1]}")
    bad = 0
    print(f"{'kernel':40} {'arch':6} registers  spilled  static shared")
    for file in files:
        for (name, architecture), (registers, spilled, shared) in sorted(kernels(file.read_text()).items()):
            over = registers > MOST_REGISTERS or spilled > MOST_SPILLED_BYTES or shared > MOST_STATIC_SHARED_BYTES
            bad += over
            print(f"{name:40} {architecture:6} {registers:9} {spilled:8} {shared:14}{'  <-- past the bound' if over else ''}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
