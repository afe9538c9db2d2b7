# shellcheck shell=bash
# What the scripts share: pinned versions, messages, Debian packages, the wheels of .deps/venv, job counts.
# Sourced, never run. Every function can be called again at once and then has nothing to do.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.deps/venv"
BUILD="$ROOT/build"

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# pin KEY: the value of KEY in versions.env.
pin() {
  local value
  value="$(sed -n "s/^$1=//p" "$ROOT/versions.env")"
  [[ -n "$value" ]] || die "versions.env has no $1"
  printf '%s' "$value"
}

# as_root COMMAND…: runs it as root, directly or through a sudo that asks for no password.
can_be_root() { [[ "$(id -u)" == 0 ]] || sudo -n true 2>/dev/null; }
as_root() { if [[ "$(id -u)" == 0 ]]; then "$@"; else sudo -n "$@"; fi; }

# need_packages KEY…: installs what is missing of the package lists under these keys of versions.env.
need_packages() {
  command -v dpkg-query >/dev/null ||
    die "this script installs Debian packages and finds no dpkg; on another system install what versions.env lists (APT_…), then use cmake --preset release"
  local key package wanted=() missing=()
  for key in "$@"; do
    read -ra packages <<<"$(pin "$key")"
    wanted+=("${packages[@]}")
  done
  for package in "${wanted[@]}"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
      missing+=("$package")
  done
  if [[ ${#missing[@]} == 0 ]]; then return; fi
  can_be_root || die "missing Debian packages, and no right to install them. Run this once, then start again:
  sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends ${missing[*]}'"
  say "installing Debian packages: ${missing[*]}"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  # An install that was interrupted leaves packages half configured; apt refuses to work until they are done.
  if [[ -n "$(dpkg --audit)" ]]; then as_root env DEBIAN_FRONTEND=noninteractive dpkg --configure -a; fi
  as_root "${apt[@]}" update
  as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
}

has_nvidia_driver() { [[ -e /dev/nvidiactl ]] || command -v nvidia-smi >/dev/null; }

# wheel_spec small|whole: the pip arguments of that set. `small` is what a C++ build for CPUs needs of the torch
# wheel (1.5 GB); `whole` adds what Python and GPU code need (4.6 GB).
wheel_spec() {
  local torch
  torch="torch==$(pin TORCH_VERSION)"
  case "$1" in
    small) echo "--no-deps $torch nvidia-cuda-runtime==$(pin NVIDIA_CUDA_RUNTIME_VERSION)" \
      "nvidia-cuda-cupti==$(pin NVIDIA_CUDA_CUPTI_VERSION) nvidia-nccl-cu13==$(pin NVIDIA_NCCL_VERSION)" ;;
    whole) echo "$torch nvidia-nccl-cu13==$(pin NVIDIA_NCCL_VERSION)" \
      "numpy==$(pin NUMPY_VERSION) safetensors==$(pin SAFETENSORS_VERSION)" ;;
  esac
}

# need_wheels small|whole: makes .deps/venv hold at least that set. The stamp names the set that is known to be
# complete; without it each installed file is checked, and a venv that an interruption left broken is made anew.
need_wheels() {
  local kind="$1" stamp="$VENV/ddprun-wheels" spec
  spec="$(wheel_spec "$kind")"
  if [[ -f "$stamp" ]] && "$VENV/bin/python" -c '' 2>/dev/null; then
    case "$(cat "$stamp")" in "$spec" | "$(wheel_spec whole)") return ;; esac
  fi
  mkdir -p "$ROOT/.deps"
  (
    flock 9
    rm -f "$stamp"
    if [[ -d "$VENV" ]] && ! "$VENV/bin/python" "$ROOT/scripts/check_wheels.py"; then
      say "$VENV is incomplete; making it anew"
      rm -rf "$VENV"
    fi
    if [[ ! -d "$VENV" ]]; then python3 -m venv "$VENV"; fi
    say "installing wheels ($kind set): $spec"
    # shellcheck disable=SC2086  # the specification is a list of words
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check $spec
    "$VENV/bin/python" "$ROOT/scripts/check_wheels.py" || die "the wheels in $VENV are incomplete after their installation (disk full?)"
    printf '%s\n' "$spec" >"$stamp"
  ) 9>"$ROOT/.deps/lock"
}

# need_peer NAME PACKAGE…: a virtual environment .deps/NAME of its own for packages of others, which sees the wheels of
# .deps/venv but cannot change them.
need_peer() {
  local name="$1" folder="$ROOT/.deps/$1"
  shift
  local package="$*"
  if [[ -f "$folder/ddprun-package" && "$(cat "$folder/ddprun-package")" == "$package" ]]; then return; fi
  say "installing $package in $folder"
  mkdir -p "$ROOT/.deps"
  rm -rf "$folder"
  python3 -m venv "$folder"
  if [[ -d "$VENV" ]]; then (cd "$VENV"/lib/python3*/site-packages && pwd) >"$(echo "$folder"/lib/python3*/site-packages)/ddprun.pth"; fi
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
  printf '%s\n' "$package" >"$folder/ddprun-package"
}

# need_torchvision: .deps/torchvision, for what is compared with torchvision. Without dependencies: its torch is that of .deps/venv.
need_torchvision() { need_peer torchvision --no-deps "torchvision==$(pin TORCHVISION_VERSION)" "pillow==$(pin PILLOW_VERSION)"; }

# Compile jobs: one per core, but no more than memory allows at 1.5 GB for a file that includes LibTorch.
compile_jobs() {
  local cores kib limit
  cores="$(nproc)"
  kib="$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)"
  for limit in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    if [[ -r "$limit" && "$(cat "$limit")" =~ ^[0-9]{1,15}$ && $(($(cat "$limit") / 1024)) -lt kib ]]; then
      kib=$(($(cat "$limit") / 1024))
    fi
  done
  local jobs=$((kib / 1500000))
  ((jobs < cores)) || jobs=$cores
  ((jobs > 0)) || jobs=1
  echo "$jobs"
}

# build_dir PRESET: where that preset builds.
build_dir() { if [[ "$1" == release ]]; then echo "$BUILD"; else echo "$BUILD-$1"; fi; }

# run_benchmark NAME [ARGUMENTS…]: builds (silently when nothing is to do) and runs scripts/bench_NAME.py.
run_benchmark() {
  local name="$1"
  shift
  "$ROOT/scripts/build.sh" >&2
  exec python3 "$ROOT/scripts/bench_$name.py" "$@"
}
