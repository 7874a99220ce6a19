#!/usr/bin/env bash
# Builds the attention kernels for 64-bit ARM and runs their tests under qemu-user. Abseil for arm64 is unpacked into .cache/tandem/aarch64 from
# Debian's packages; nothing foreign is installed on this system but the compiler and the emulator.
#   scripts/check_aarch64.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${1:-$(nproc)}
tools=(g++-aarch64-linux-gnu qemu-user-static googletest)
libraries=(libabsl-dev libabsl20220623)
work=$PWD/.cache/tandem/aarch64
sysroot=$work/sysroot

say() { printf 'check_aarch64: %s\n' "$*"; }

install_tools() {
  local missing=() package
  for package in "${tools[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  say "apt-get install ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# With lists and state of its own, as if this were an arm64 system.
fill_sysroot() {
  [ "$(cat "$work/installed.txt" 2>/dev/null)" != "${libraries[*]}" ] || return 0
  say "unpacking ${libraries[*]} for arm64"
  rm -rf "$work"
  mkdir -p "$work"/state/lists/partial "$work"/cache/archives/partial "$work"/packages "$sysroot"
  : >"$work/status"
  cat >"$work/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
CONF
  APT_CONFIG=$work/apt.conf apt-get update -qq
  (cd "$work/packages" && APT_CONFIG=$work/apt.conf apt-get download -qq "${libraries[@]}")
  local package
  for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$sysroot"
  done
  echo "${libraries[*]}" >"$work/installed.txt"
}

install_tools
fill_sysroot
cmake --preset aarch64 -DTANDEM_AARCH64_SYSROOT="$sysroot" --log-level=WARNING
cmake --build --preset aarch64 --parallel "$jobs"
ctest --preset aarch64 --parallel "$jobs" --output-on-failure
