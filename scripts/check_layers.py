"""Checks who includes whom, and lists files and functions that have grown too long.

common ← proto ← {launcher, worker}. A folder may include itself and what LAYERS names; a folder that LAYERS does not
name is an error, so that each new one is decided about. Exit code 1 when a rule is broken; lengths only warn.
"""

import re
import subprocess
import sys

# Folder → folders (or single headers) of ours that it may include besides its own.
LAYERS = {
    "common": [],
    "launcher/store": ["common", "ddprun/v1"],
    # What crosses the network: secrets, proofs, TLS, addresses, bounds. Knows no job and no node.
    "launcher/net": ["common", "ddprun/v1"],
    "launcher/coordinator": ["common", "ddprun/v1", "launcher/store", "launcher/net"],
    "launcher/console": ["common"],
    "launcher/placement": ["common", "ddprun/v1"],
    "launcher/agent": ["common", "ddprun/v1", "launcher/console", "launcher/net", "launcher/placement"],
    "launcher/keeper": ["common"],
    "launcher/logs": ["common"],
    # The composition root: the command line makes the coordinator's server and the agent, and knows no more of them.
    "launcher/cli": ["common", "ddprun/v1", "launcher/console", "launcher/logs", "launcher/net", "launcher/placement", "launcher/coordinator/server.h", "launcher/agent/agent.h",
                     "launcher/agent/worker_environment.h", "launcher/agent/tool.h"],
    "launcher/sim": ["common", "ddprun/v1", "launcher/coordinator", "launcher/agent", "launcher/store"],
    "worker/client": ["common"],
    "worker/comm": ["common"],
    "worker/parallel": ["common", "worker/comm"],
    "worker/model": ["common", "worker/data/dataset.h"],
    "worker/data": ["common", "worker/parallel"],
    "worker/checkpoint": ["common", "worker/client", "worker/parallel", "worker/model", "worker/trainer/client.h"],
    "worker/trainer": ["common", "worker"],
}
TORCH = r"torch/|ATen/|c10/"
GPU = r"cuda|nccl|cudnn"
RPC = r"grpc|google/protobuf|ddprun/v1/"
# Folder prefix → headers of others that it never includes, and why.
BANNED = [
    ("common", f"{TORCH}|{GPU}|gloo/|{RPC}", "common is shared by both sides"),
    ("launcher", f"{TORCH}|{GPU}|gloo/", "the launcher runs without torch, CUDA and NCCL"),
    ("launcher/keeper", RPC, "the keeper is small and static"),
    ("worker", RPC, "LibTorch embeds its own protobuf"),
    ("worker/client", f"{TORCH}|{GPU}|gloo/|absl/", "libddprun depends on libc alone"),
    ("worker/parallel", f"{TORCH}|{GPU}|gloo/", "the parallel logic is free of LibTorch"),
    ("worker/comm", TORCH, "communicators move plain memory"),
]
# Decisions have no clock, thread, lock, log, input or output, or randomness in them.
CORE = re.compile(r"launcher/(coordinator|agent)/(core(?!_dump)\w*|ranks|restart_policy|root_cause|state|turn)\.(h|cc)$")
CORE_BANNED = re.compile(r"^(thread|mutex|condition_variable|atomic|random|fstream|iostream|unistd\.h|sys/.*|"
                         r"spdlog/.*|absl/synchronization/.*|absl/time/clock\.h|grpc.*)$")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70


def inside(path, folder):
    return path == folder or path.startswith(folder + "/")


def broken_rules(path, included):
    """Yields why this file may not include that header."""
    for folder, pattern, reason in BANNED:
        if inside(path, folder) and re.match(pattern, included):
            yield reason
    if CORE.search(path) and CORE_BANNED.match(included):
        yield "a core decides and does nothing else"
    if not re.match(r"(common|launcher|worker|ddprun/v1)/", included):
        return
    layer = next((f for f in sorted(LAYERS, key=len, reverse=True) if inside(path, f)), None)
    if layer is None:
        yield "LAYERS in scripts/check_layers.py says nothing of this folder"
    elif not any(inside(included, allowed) for allowed in [layer, *LAYERS[layer]]):
        yield f"{layer} may include {', '.join([layer, *LAYERS[layer]])}"


def long_functions(lines):
    """Yields (first line, length) of each block that opens and closes in the same column and is a function."""
    opening = {}
    for number, line in enumerate(lines, 1):
        indent = len(line) - len(line.lstrip())
        if indent > 2 or line.lstrip().startswith(("//", "/*", "*")):
            continue
        if line.rstrip().endswith("{") and not line.lstrip().startswith("return"):
            opening[indent] = (number, line)
        elif re.match(r"\s*\}", line) and indent in opening:
            first, head = opening.pop(indent)
            kind = re.match(r"\s*(namespace|class|struct|enum|union|extern|typedef)\b", head)
            if not kind and "= {" not in head and number - first + 1 > FUNCTION_LINES_MAX:
                yield first, number - first + 1


def main():
    listed = subprocess.run(["git", "ls-files", "*.h", "*.c", "*.cc", "*.cu", "*.py", "*.sh"],
                            check=True, capture_output=True, text=True).stdout.split()
    failures = 0
    for path in listed:
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            continue  # removed, not yet committed
        if len(lines) > FILE_LINES_MAX:
            print(f"warning: {path}: {len(lines)} lines (a file is one idea; {FILE_LINES_MAX} at most)")
        if not path.endswith((".h", ".c", ".cc", ".cu")):
            continue
        for first, length in long_functions(lines):
            print(f"warning: {path}:{first}: function of {length} lines ({FUNCTION_LINES_MAX} at most)")
        if not path.startswith(("common/", "launcher/", "worker/")):
            continue
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            for reason in broken_rules(path, match.group(1)) if match else ():
                print(f"{path}:{number}: includes {match.group(1)}: {reason}")
                failures += 1
    return 1 if failures else 0


sys.exit(main())
