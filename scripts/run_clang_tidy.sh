#!/usr/bin/env bash
# clang-tidy over the sources that a build folder's compile commands name: scripts/run_clang_tidy.sh BUILD_DIR [JOBS] [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
jobs=${2:-$(nproc)}
shift $(($# < 2 ? $# : 2))
if [ $# -eq 0 ]; then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.cc' ':!tests')
else
  files=("$@")
fi
# GCC's precompiled headers and options mean nothing to clang.
clean=$(mktemp -d)
trap 'rm -rf "$clean"' EXIT
python3 - "$build/compile_commands.json" "$clean/compile_commands.json" <<'PYTHON'
import json
import re
import sys

commands = json.load(open(sys.argv[1]))
for entry in commands:
    entry["command"] = re.sub(r"-Winvalid-pch|-Wno-maybe-uninitialized|-include \S*cmake_pch\.hxx|-fpch-\S+", "", entry["command"])
json.dump(commands, open(sys.argv[2], "w"))
PYTHON
printf '%s\n' "${files[@]}" | xargs -r -n 4 -P "$jobs" clang-tidy --quiet -p "$clean" --warnings-as-errors='*'
