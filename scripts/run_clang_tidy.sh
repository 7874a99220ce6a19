#!/usr/bin/env bash
# clang-tidy over the sources that a build folder's compile commands name: scripts/run_clang_tidy.sh BUILD_DIR [JOBS] [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
jobs=${2:-$(nproc)}
shift $(($# < 2 ? $# : 2))
files=("$@")
# GCC's precompiled headers and options mean nothing to clang.
clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT
python3 - "$build/compile_commands.json" "$clean/compile_commands.json" > "$clean/files" <<'PYTHON'
import json
import os
import re
import sys

commands = json.load(open(sys.argv[1]))
for entry in commands:
    entry["command"] = re.sub(r"-Winvalid-pch|-Wno-maybe-uninitialized|-Wno-restrict|-Wno-stringop-\S+|-include \S*cmake_pch\.hxx|-fpch-\S+", "", entry["command"])
json.dump(commands, open(sys.argv[2], "w"))
for entry in commands:
    path = os.path.relpath(os.path.join(entry["directory"], entry["file"]))
    if not path.startswith(("tests/", "build", "..")):
        print(path)
PYTHON
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(sort -u "$clean/files")
fi
printf '%s\n' "${files[@]}" | xargs -r -n 4 -P "$jobs" clang-tidy --quiet -p "$clean" --warnings-as-errors='*'
