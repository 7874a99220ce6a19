#!/usr/bin/env bash
# Builds every libFuzzer target with clang and runs each for some seconds: scripts/run_fuzzers.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
cmake -S . -B build-fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DTANDEM_FUZZERS=ON -DTANDEM_SANITIZE=address,undefined --log-level=WARNING
mapfile -t fuzzers < <(sed -n 's/^ *tandem_fuzzer(\([a-z0-9_]*\).*/\1/p' tests/fuzz/CMakeLists.txt)
[ ${#fuzzers[@]} -gt 0 ] || { echo "run_fuzzers: tests/fuzz names no fuzzer" >&2; exit 1; }
cmake --build build-fuzz --target "${fuzzers[@]}"
for fuzzer in "${fuzzers[@]}"; do
  grown=build-fuzz/corpus/$fuzzer
  mkdir -p "$grown"
  echo "=== $fuzzer for $seconds s"
  build-fuzz/tests/"$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 "$grown" "tests/data/fuzz/$fuzzer"
done
