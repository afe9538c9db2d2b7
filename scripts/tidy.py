#!/usr/bin/env python3
"""clang-tidy over our C and C++ sources, many files at a time.

  scripts/tidy.py [--build DIR] [--torch] [FILE…]
      FILE: only these; DIR: a configured and built folder, build/ by default; --torch: also what includes LibTorch (minutes)

Reading gRPC's or LibTorch's headers takes most of the time (15 s a file and more), so files that are compiled
alike are read as one translation unit. Files whose private names clash go to another one. A unit that was clean is
not read again until one of its files, a header of ours or .clang-tidy changes.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("common/", "launcher/", "worker/", "examples/")
UNIT_FILES_MAX = 24
DROPPED_FLAGS = re.compile(r"-(M[DFT]?|o|c|Winvalid-pch|fdiagnostics-color.*)$")
LEFT_OUT = "-bugprone-suspicious-include"  # one source including others is what a unit is
CLANG = ["-Wno-unknown-warning-option", "-Wno-unused-function", "-Wno-unused-const-variable"]


def tracked(*patterns):
    return subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True,
                          text=True).stdout.split()


def flags_of(entry):
    """The compiler's flags of a compile command, without input, output, dependency and precompiled-header flags."""
    words = shlex.split(entry["command"])[1:]
    kept, skip = [], False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif word in ("-o", "-MF", "-MT") or (word == "-include" and "cmake_pch" in words[index + 1]):
            skip = True
        elif not DROPPED_FLAGS.match(word) and word != entry["file"] and "cmake_pch" not in word:
            kept.append(word)
    return tuple(kept)


class Unit:
    """Files that are read together."""

    def __init__(self, files, flags, folder):
        self.files, self.flags = files, flags
        suffix = pathlib.Path(files[0]).suffix
        name = hashlib.sha256("\0".join([*files, *flags]).encode()).hexdigest()[:16]
        self.source = folder / f"{name}{suffix}"
        self.stamp = folder / f"{name}.clean"
        text = "".join(f'#include "{ROOT / file}"\n' for file in files)
        if not self.source.exists() or self.source.read_text(encoding="utf-8") != text:
            self.source.write_text(text, encoding="utf-8")

    def clashing(self):
        """Those of the files that do not compile beside the others."""
        compiler = "clang-19" if self.source.suffix == ".c" else "clang++-19"
        done = subprocess.run([compiler, "-fsyntax-only", "-ferror-limit=0", "-w", *self.flags, str(self.source)],
                              cwd=ROOT, check=False, capture_output=True, text=True)
        named = set(re.findall(r"^(\S+?):\d+:\d+: (?:fatal )?error:", done.stderr, re.M))
        return [file for file in self.files if str(ROOT / file) in named]

    def key(self, common):
        digest = hashlib.sha256(common.encode())
        for file in self.files:
            digest.update((ROOT / file).read_bytes())
        return digest.hexdigest()

    def check(self, common):
        """Returns what clang-tidy found ("" when clean) and the seconds it took."""
        key = self.key(common)
        if self.stamp.exists() and self.stamp.read_text(encoding="utf-8") == key:
            return "", 0.0
        start = time.monotonic()
        done = subprocess.run(["clang-tidy-19", "--quiet", f"--checks={LEFT_OUT}",
                               f"--header-filter={ROOT}/(common|launcher|worker|examples)/.*",
                               str(self.source), "--", *self.flags, *CLANG],
                              cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            self.stamp.write_text(key, encoding="utf-8")
            return "", time.monotonic() - start
        return done.stdout or done.stderr, time.monotonic() - start


def units_of(files, flags, folder):
    """Cuts files that are compiled alike into units that compile."""
    units = []
    while files:
        files, rest = files[:UNIT_FILES_MAX], files[UNIT_FILES_MAX:]
        unit = Unit(files, flags, folder)
        clashing = unit.clashing() if len(files) > 1 else []
        if clashing:
            kept = [file for file in files if file not in clashing] or files[:1]
            rest = [file for file in files if file not in kept] + rest
            unit = Unit(kept, flags, folder)
        units.append(unit)
        files = rest
    return units


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    folder = options.build.resolve() / "tidy"
    folder.mkdir(parents=True, exist_ok=True)
    database = json.loads((options.build / "compile_commands.json").read_text(encoding="utf-8"))
    known = set(tracked("*.c", "*.cc"))
    wanted = {os.path.relpath(file, ROOT) for file in options.files}

    groups = {}
    for entry in database:
        file = os.path.relpath(entry["file"], ROOT)
        torch = any("/torch/include" in flag for flag in flags_of(entry)) and not (options.torch or wanted)
        if file in (wanted or known) and file.startswith(FOLDERS) and not torch:
            files = groups.setdefault((pathlib.Path(file).suffix, flags_of(entry)), [])
            if file not in files:
                files.append(file)
    common = hashlib.sha256()
    for header in sorted(tracked("*.h", "*.proto", ".clang-tidy", "scripts/tidy.py")):
        common.update((ROOT / header).read_bytes())

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        cut = pool.map(lambda item: units_of(item[1], item[0][1], folder), groups.items())
        units = [unit for some in cut for unit in some]
        for unit, (findings, seconds) in zip(units, pool.map(lambda unit: unit.check(common.hexdigest()), units)):
            if findings:
                print(findings)
                failed += 1
            if options.verbose:
                print(f"{seconds:5.1f} s  {' '.join(unit.files)}")
    print(f"clang-tidy: {sum(len(unit.files) for unit in units)} files in {len(units)} units, {failed} with findings")
    return 1 if failed or not units else 0


sys.exit(main())
