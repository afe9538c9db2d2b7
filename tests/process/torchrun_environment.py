"""Runs the real torchrun and ddprun with the same flags, and compares the environment and the arguments of every
worker, variable by variable (S23, L58). What differs on purpose stands in may_differ, with its reason in
docs/compatibility.md, section Environment.

To be run by a Python that has torch, with DDPRUN_BIN and DDPRUN_SOURCE in the environment.
"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile

import torch.distributed.run

PYTHON = sys.executable

DUMP = """import json, os, sys
path = os.path.join(os.environ["DUMP_DIR"], os.environ["RANK"] + ".json")
module = __spec__.name if __spec__ else ""
json.dump({"environment": dict(os.environ), "arguments": sys.argv[1:], "script": os.path.basename(sys.argv[0]),
           "module": module, "directory": os.getcwd(), "name": __name__}, open(path, "w"))
"""

# Flag sets: name, arguments for both, variables for both.
CASES = [
    ("plain", ["--nproc_per_node=2", "dump.py", "a", "b c"], {}),
    ("standalone", ["--standalone", "--nproc-per-node", "2", "dump.py"], {}),
    ("nodes", ["--nnodes=1:1", "--nproc-per-node=1", "--node_rank=0", "dump.py"], {}),
    ("role", ["--nproc-per-node=2", "--role", "trainer", "--max-restarts=2", "dump.py"], {}),
    ("named", ["--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job77",
               "--rdzv-conf=timeout=60", "--local-addr=127.0.0.2", "dump.py"], {}),
    ("master", ["--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=PORT", "dump.py"], {}),
    ("module", ["--nproc-per-node=2", "-m", "package.dump", "--x", "${local_rank}"], {}),
    ("run_path", ["--nproc-per-node=2", "--run-path", "dump.py", "y${local_rank}"], {}),
    ("no_python", ["--nproc-per-node=1", "--no-python", PYTHON, "dump.py", "${local_rank}", "$$", "$local_rankx"], {}),
    ("arguments", ["--nproc-per-node=3", "dump.py", "${local_rank}", "$local_rank", "$$", "${rank}", "$local_rank.x",
                   "${local_rank", "$LOCAL_RANK", "a${local_rank}b${local_rank}", "--epochs=2", "-x"], {}),
    ("virtual", ["--nproc-per-node=2", "--virtual-local-rank", "dump.py", "${local_rank}"], {}),
    ("virtual_of_listed", ["--nproc-per-node=2", "--virtual-local-rank", "dump.py"], {"CUDA_VISIBLE_DEVICES": "3,5"}),
    ("visible", ["--nproc-per-node=2", "dump.py"], {"CUDA_VISIBLE_DEVICES": "1,0", "OMP_NUM_THREADS": "7",
                                                      "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}),
    ("variables", ["dump.py"], {"PET_NPROC_PER_NODE": "2", "PET_ROLE": "pet", "PET_MAX_RESTARTS": "1", "PET_NNODES": "1",
                                "PET_STANDALONE": "0", "PET_RDZV_ID": "petjob", "PET_MASTER_ADDR": "127.0.0.1",
                                "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGUSR1"}),
    ("replaced", ["--nproc-per-node=1", "--role=given", "dump.py"], {"PET_NPROC_PER_NODE": "2", "PET_ROLE": "pet",
                                                                       "PET_VIRTUAL_LOCAL_RANK": "1"}),
    ("pet_module", ["package.dump"], {"PET_MODULE": "1"}),
]


def is_port(text):
    return re.fullmatch(r"[1-9]\d{3,4}", text or "") is not None


def may_differ(name, case, theirs, ours):
    """Whether the two values of a variable may stand side by side. None: not set."""
    flags = " ".join(case[1])
    if name == "TORCHELASTIC_USE_AGENT_STORE":
        return theirs == "True" and ours == "False"
    if name == "MASTER_ADDR":
        return theirs == "localhost" and ours == "127.0.0.1"
    if name == "MASTER_PORT":
        return "--master-port" not in flags and is_port(ours)
    if name == "TORCHELASTIC_MAX_RESTARTS":
        return "max-restarts" not in flags and "PET_MAX_RESTARTS" not in case[2] and (theirs, ours) == ("0", "3")
    if name == "TORCHELASTIC_RUN_ID":
        return "--rdzv-id" not in flags and "PET_RDZV_ID" not in case[2] and ours not in (None, "")
    if name == "TORCHELASTIC_ERROR_FILE":
        return theirs.endswith("/error.json") and re.search(r"/logs/g1/rank\d+\.error\.json$", ours) is not None
    if name == "OMP_NUM_THREADS":
        return "OMP_NUM_THREADS" not in case[2] and theirs in (None, "1") and (ours is None or int(ours) >= 1)
    if name == "PYTHONUNBUFFERED":
        return theirs is None and ours == "1"
    if name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        return theirs is None and ours.endswith("/logs/g1/nccl_trace_rank")
    if name.startswith(("PADDLE_", "DDPRUN_")) or name in ("POD_NAME", "FLAGS_selected_gpus"):
        return theirs is None
    # torchrun tells this to the process that runs a function, and a shell to its child.
    return name in ("_",)


def environment_of(case, dumps):
    environment = {k: v for k, v in os.environ.items()
                   if not k.startswith(("PET_", "DDPRUN_", "OMP_", "CUDA_", "TORCH")) and k != "PYTHONUNBUFFERED"}
    environment.update(case[2], DUMP_DIR=dumps, PYTHON_EXEC=PYTHON)
    return environment


def read_dumps(dumps):
    found = {}
    for name in sorted(os.listdir(dumps)):
        with open(os.path.join(dumps, name)) as file:
            found[name] = json.load(file)
    return found


def run_torchrun(folder, case, dumps):
    """In a child of this process, which has imported torch already: torchrun's own main."""
    os.makedirs(dumps)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(folder)
            os.environ.update(environment_of(case, dumps))
            for name in os.environ.keys() - environment_of(case, dumps).keys():
                del os.environ[name]
            torch.distributed.run.main(case[1])
            code = 0
        except BaseException as error:
            print(f"{case[0]}: torchrun: {error!r}", flush=True)
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1] != 0:
        sys.exit(f"{case[0]}: torchrun failed")
    return read_dumps(dumps)


def run_ddprun(folder, case, dumps):
    os.makedirs(dumps)
    command = [os.path.join(os.environ["DDPRUN_BIN"], "ddprun"), *case[1]]
    done = subprocess.run(command, cwd=folder, env=environment_of(case, dumps), capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{case[0]}: ddprun ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return read_dumps(dumps)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def compare(case, theirs, ours, used):
    wrong = []
    if theirs.keys() != ours.keys():
        return [f"ranks: {list(theirs)} and {list(ours)}"]
    for rank in theirs:
        left, right = theirs[rank], ours[rank]
        for key in left:
            if key != "environment" and left[key] != right[key]:
                wrong.append(f"{rank} {key}: torchrun {left[key]!r}, ddprun {right[key]!r}")
        variables = left["environment"].keys() | right["environment"].keys()
        for name in sorted(variables - {"DUMP_DIR"}):
            a, b = left["environment"].get(name), right["environment"].get(name)
            if a == b:
                continue
            if may_differ(name, case, a, b):
                used.add(name)
            else:
                wrong.append(f"{rank} {name}: torchrun {a!r}, ddprun {b!r}")
    return wrong


def main():
    with tempfile.TemporaryDirectory(prefix="ddprun_torchrun_") as folder:
        wrong, used = compare_all(folder)
    print("differ on purpose:", sorted(used))
    undocumented = {name for name in used - {"_"} if f"`{name}`" not in environment_section()}
    if undocumented:
        wrong.append(f"docs/compatibility.md gives no reason for {sorted(undocumented)}")
    sys.exit("\n".join(wrong) if wrong else 0)


def compare_all(folder):
    os.makedirs(os.path.join(folder, "package"))
    for name in ("dump.py", "package/__init__.py", "package/dump.py"):
        with open(os.path.join(folder, name), "w") as file:
            file.write("" if name.endswith("__init__.py") else DUMP)
    wrong, used = [], set()
    for case in CASES:
        case = (case[0], [word.replace("PORT", free_port()) for word in case[1]], case[2])
        theirs = run_torchrun(folder, case, os.path.join(folder, case[0] + ".torchrun"))
        ours = run_ddprun(folder, case, os.path.join(folder, case[0] + ".ddprun"))
        found = compare(case, theirs, ours, used)
        print(f"{case[0]}: {len(theirs)} ranks, {'equal' if not found else found}", flush=True)
        wrong += found
    return wrong, used


def environment_section():
    root = os.environ["DDPRUN_SOURCE"]
    with open(os.path.join(root, "docs/compatibility.md"), encoding="utf-8") as file:
        return file.read().split("\n## Environment", 1)[1].split("\n## ", 1)[0]


if __name__ == "__main__":
    main()
