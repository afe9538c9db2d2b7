"""Checks packaging/Dockerfile where no image can be built: hadolint (its path is the only argument), and what it does not know.

Versions are those of versions.env; files that are copied are there and not left out of the build context; each image that can
be run has a user by number. Exit code 1 when something is wrong.
"""

import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPE = ROOT / "packaging" / "Dockerfile"
TARGETS = {"cpu", "cuda"}  # what docs/container.md says can be built


def pins():
    lines = (ROOT / "versions.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))


def instructions(text):
    """(word, rest) of each instruction; continued lines are one."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


def stages(text):
    """Name → its base and its own instructions."""
    found = {}
    for word, rest in instructions(text):
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            found[name] = (base, [])
        elif found:
            found[list(found)[-1]][1].append((word, rest))
    return found


def wrong_pins(text, own):
    debian = re.search(r"^ARG DEBIAN=(\S+)$", text, re.M)
    if not debian or not re.fullmatch(re.escape(own["DEBIAN_RELEASE"]) + r"\.\d+", debian[1]):
        yield f"ARG DEBIAN must name a point release of Debian {own['DEBIAN_RELEASE']} (versions.env)"
    moments = re.findall(r"^ARG SNAPSHOT=(.*)$", text, re.M)
    if set(moments) != {own["DEBIAN_SNAPSHOT"]}:
        yield f"each ARG SNAPSHOT must be {own['DEBIAN_SNAPSHOT']} (versions.env), so that an archive alone pins the packages"
    label = re.search(r'image\.version="([^"]*)"', text)
    if not label or label[1] != own["DDPRUN_VERSION"]:
        yield f"the label of the version is not {own['DDPRUN_VERSION']} (versions.env)"
    for tag in re.findall(r"ddprun:([\d.]+)-", text):
        if tag != own["DDPRUN_VERSION"]:
            yield f"a comment speaks of version {tag}"


def wrong_bases(parts):
    """Images from elsewhere are named by their tag, and can be given a digest."""
    for name, (base, _) in parts.items():
        if base in parts:
            continue
        if not re.fullmatch(r"docker\.io/library/debian:\$\{DEBIAN\}(-slim)?\$\{DEBIAN(_SLIM)?_DIGEST\}", base):
            yield f"{name}: {base} is not pinned by the tag DEBIAN, or cannot be by a digest"


def wrong_copies(parts):
    ignored = (RECIPE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    for name, (_, own) in parts.items():
        for word, rest in own:
            if word != "COPY":
                continue
            source = re.match(r"--from=(\S+)", rest)
            if source and source[1] not in parts:
                yield f"{name}: copies from {source[1]}, which is no stage"
            for path in [] if source else rest.split()[:-1]:
                if not (ROOT / path).exists():
                    yield f"{name}: copies {path}, which is not there"
                if any(fnmatch.fnmatch(path, pattern) for pattern in ignored):
                    yield f"{name}: copies {path}, which Dockerfile.dockerignore leaves out"


def wrong_users(parts):
    for name in TARGETS - parts.keys():
        yield f"there is no target {name}"
    for name in TARGETS & parts.keys():
        users = [rest for word, rest in parts[name][1] if word == "USER"]
        if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
            yield f"{name}: must end with a user by number who is not root"
        if parts[name][1][-1][0] != "USER":
            yield f"{name}: something stands behind USER"


def main():
    """Prints what is wrong."""
    text = RECIPE.read_text(encoding="utf-8")
    parts = stages(text)
    wrong = [*wrong_pins(text, pins()), *wrong_bases(parts), *wrong_copies(parts), *wrong_users(parts)]
    for what in wrong:
        print(f"packaging/Dockerfile: {what}")
    linted = subprocess.run([sys.argv[1], "--no-color", str(RECIPE)], check=False).returncode if len(sys.argv) > 1 else 0
    return 1 if wrong or linted else 0


if __name__ == "__main__":
    sys.exit(main())
