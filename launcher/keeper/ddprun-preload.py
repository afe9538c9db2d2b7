"""Loads what a node's workers need once, and becomes each of them by a fork (proto/keeper_protocol.md, "Preloaded start").

Started by ddprun-keeper as: PYTHON [its options] ddprun-preload.py WORDS WORKERS MODULE,MODULE… (SCRIPT | -m MODULE)
[arguments], with a SEQPACKET socket as descriptor 3. WORDS is how many words of a worker's command name the interpreter.
When the modules are loaded it forks WORKERS processes and sends `ready`. Each of them takes one packet of the socket, which
brings five descriptors: a file with the worker's command, environment, folder and processors, its output, its socket, its
page and its start pipe; there it tells its pid, and becomes the worker when its socket says `go`. The end of descriptor 3
ends them all.

A worker must not be able to tell that it was not executed: __main__, sys.argv, sys.path, the environment, tracebacks and the
exit code are those of a fresh interpreter.
"""

import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import os
import select
import signal
import socket
import struct
import sys
import time
import types

SOCKET_FD, PAGE_FD, START_FAILED_IN_FOLDER = 3, 4, 6
REPARENT_SECONDS_MAX = 10
PR_SET_PDEATHSIG = 1

# What the workers share; and what a wrapper of the interpreter (pyenv's) or the interpreter itself has changed, as it would
# have done in each worker.
SHARED_ENVIRONMENT = dict(os.environb)

# Loaded by the first DistributedDataParallel or optimizer, which takes nearly as long as torch itself.
LOADED_LATER = {"torch": ["torch._dynamo"]}


def set_first_path(words):
    """sys.path[0] as in a fresh interpreter with this command line."""
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH: there is none
        sys.path[0] = os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.realpath(words[0]))


def oom_score(value=None):
    """What the kernel goes by when memory runs out: a process in reserve goes before any that works."""
    try:
        with open("/proc/self/oom_score_adj", "r" if value is None else "w") as file:
            return file.read().strip() if value is None else file.write(value)
    except OSError:
        return None


def load(modules):
    names = modules.split(",")
    for name in names:
        importlib.import_module(name)
    for root in sorted({name.split(".")[0] for name in names}):
        for name in LOADED_LATER.get(root, []):
            try:
                importlib.import_module(name)
            except Exception:  # of another version; whoever needs it says so himself
                pass
    gc.collect()
    gc.freeze()  # what is shared with the workers stays shared


def await_parent(keeper):
    deadline = time.monotonic() + REPARENT_SECONDS_MAX
    while os.getppid() != keeper:
        if time.monotonic() > deadline:
            os._exit(126)
        time.sleep(0.0002)
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(126)


def draw_anew():
    """What a fresh import would have drawn for this process alone; random does it by itself at a fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if hasattr(sys.modules.get("torch"), "default_generator"):
        sys.modules["torch"].default_generator.seed()
    if hasattr(sys.modules.get("threading"), "main_thread"):
        main_thread = sys.modules["threading"].main_thread()
        getattr(main_thread, "_set_native_id", lambda: None)()  # a fork leaves the preloader's


def become_a_spare(workers, keeper):
    """Forks the workers ahead of time. Returns in each of them when it has got its request: the descriptors."""
    link = socket.socket(fileno=SOCKET_FD)
    for _ in range(workers):
        child = os.fork()
        if child == 0:
            if os.fork() != 0:
                os._exit(0)  # so that the keeper, a subreaper, becomes the worker's parent
            await_parent(keeper)
            draw_anew()
            data, fds, _, _ = socket.recv_fds(link, 64, 16)
            if not data:
                os._exit(0)
            link.close()
            return fds
        if os.waitpid(child, 0)[1] != 0:
            os._exit(1)  # no process could be made; the workers are started afresh
    link.send(b"ready")
    end = select.poll()
    end.register(SOCKET_FD, 0)  # the requests are for the others
    end.poll()
    os._exit(0)


def read_request(fd):
    """The worker's words, environment, folder and processors."""
    words, environment, folder, cpus = [], {}, None, None
    with open(fd, "rb") as file:
        for line in file.read().split(b"\0")[:-1]:
            key, _, value = line.partition(b"=")
            if key == b"ARG":
                words.append(os.fsdecode(value))
            elif key == b"ENV":
                name, _, text = value.partition(b"=")
                environment[name] = text
            elif key == b"CWD":
                folder = value
            elif key == b"CPUS":
                cpus = [int(cpu) for cpu in value.split(b",")]
    return words, environment, folder, cpus


def become_worker(fds, interpreter_words, own_oom_score):
    """Takes on what makes this process the worker; returns its command without the interpreter."""
    request, output, link, page, start = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in fds)
    for fd in fds:
        os.close(fd)
    words, environment, folder, cpus = read_request(request)
    os.write(start, struct.pack("i", os.getpid()))
    go = select.poll()
    go.register(link, select.POLLIN)
    go.poll()  # until the others are there too
    if not os.read(link, 16):
        os._exit(0)
    if own_oom_score is not None:
        oom_score(own_oom_score)
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2), (link, SOCKET_FD), (page, PAGE_FD)):
        os.dup2(source, target)
    for fd in (output, link, page) if null == 0 else (output, link, page, null):
        if fd > PAGE_FD:
            os.close(fd)
    os.environb.clear()
    os.environb.update(environment)
    os.environb.update(SHARED_ENVIRONMENT)
    try:
        if folder is not None:
            os.chdir(folder)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
    except OSError as error:
        os.write(start, struct.pack("ii", START_FAILED_IN_FOLDER, error.errno))
        os._exit(127)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = sys.orig_argv[:interpreter_words] + words[interpreter_words:]
    os.close(start)
    return words[interpreter_words:]


def new_main():
    """An empty __main__; ours is kept alive, since these functions live in it."""
    ours = sys.modules["__ddprun_preload__"] = sys.modules["__main__"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __cached__=None)
    if "__annotations__" in vars(ours):
        main.__annotations__ = {}
    return main


def run_script(words):
    path = words[0]
    full = os.path.join(os.getcwd(), path)
    sys.argv = list(words)
    set_first_path(words)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {full!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    main = new_main()
    main.__file__ = full if sys.version_info >= (3, 9) else path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
    exec(compile(source, main.__file__, "exec"), main.__dict__)


def run_module(words):
    import runpy
    sys.argv = ["-m", *words[2:]]
    set_first_path(words)
    new_main()
    runpy._run_module_as_main(words[1])


def without_our_frames(trace):
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def run(words):
    try:
        (run_module if words[0] == "-m" else run_script)(words)
    except SystemExit:
        raise
    except BaseException as error:  # as the interpreter ends: traceback, then 1 or the signal
        trace = without_our_frames(error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.flush()
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


def main():
    keeper = os.getppid()
    interpreter_words, workers, modules, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    set_first_path(words)
    own_oom_score = oom_score()
    oom_score("1000")
    load(modules)
    return become_worker(become_a_spare(workers, keeper), interpreter_words, own_oom_score)


run(main())
