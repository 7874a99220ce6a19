#!/usr/bin/env bash
# compile_kernel.sh RESOURCES NVCC ARGS...: runs nvcc and keeps what ptxas says of each kernel in RESOURCES; on failure shows it.
resources=$1
shift
if ! "$@" >"$resources" 2>&1; then
  cat "$resources" >&2
  exit 1
fi
