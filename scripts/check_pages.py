"""Checks that the pages name what the code has, and no more.

docs/events.md: every event that is recorded and every kind of a refused join. docs/cli.md (with the pages it sends its reader
to): every option of the table; and each option that they name in a table's first column is one. Exit code 1 when something is
missing or too much.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Each group's page, where it is not docs/cli.md.
PAGES = {"kGroupLogs": "docs/logs.md", "kGroupDoctor": "docs/doctor.md", "kGroupCkpt": "docs/checkpoints.md", "kGroupTorchrun": "docs/compatibility.md"}
ROW = re.compile(r'\{\s*"((?:-{1,2}[\w-]+,?)+)",\s*"[^"]*",\s*[\w |~&()]+,\s*(\w+|""),')
ALIASES = {"--ranks"}  # a second spelling that needs no line


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def sources(folder):
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).glob("*.cc")))


def first_column(page):
    """The first cell of every line of a table."""
    return [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]


def difference(page, what, coded, named):
    """Yields what the code has and the page does not name, and the reverse."""
    if not coded:
        yield f"{page}: no {what} found in the sources; correct scripts/check_pages.py"
    yield from (f"{page}: {what} {name} is missing" for name in sorted(coded - named))
    yield from (f"{page}: {what} {name} is in no source" for name in sorted(named - coded))


def events():
    """Names of events, and kinds of refusals."""
    page = text("docs/events.md").split("## events.jsonl")[1].split("\n## ")[0]
    code = sources("launcher/coordinator")
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    named = {name for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    yield from difference("docs/events.md", "event", set(re.findall(r'(?:\.|->)Record\(\s*"(\w+)"', code)), named)
    refused = next((line for line in lines if line.startswith("| `join_refused`")), "")
    kinds = re.search(r"`kind` \(([^)]*)\)", refused)
    named = set(re.findall(r"`(\w+)`", kinds[1] if kinds else ""))
    body = re.search(r"KindName\([^{]*\{(.*?)\n\}", code, re.S)
    yield from difference("docs/events.md", "kind of join_refused", set(re.findall(r'return "(\w+)";', body[1] if body else "")) - {"unknown"}, named)


def options():
    """Options of the table and of the pages."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "launcher/cli").glob("option_rows_*.cc")))
    table = sorted(set(ROW.findall(code)))  # an option may belong to several groups
    if len(table) < 50:
        yield f"docs/cli.md: only {len(table)} options found in the sources; correct scripts/check_pages.py"
    every = {"--help", "--version"}
    for names, group in table:
        every |= set(names.split(","))
        if group == '""':  # of ddprun's own processes
            continue
        for page in {"docs/cli.md" if group not in PAGES else PAGES[group]}:
            content = text(page)
            for name in names.split(","):
                if name not in ALIASES and not re.search(re.escape(name) + r"(?![\w-])", content):
                    yield f"{page}: option {name} is missing"
    for page in ("docs/cli.md", *PAGES.values()):
        for cell in first_column(text(page)):
            for name in re.findall(r"`(--[a-z][a-z-]*)", cell):
                if name not in every and not name.endswith("-"):
                    yield f"{page}: there is no option {name}"


def main():
    """Prints what is wrong."""
    wrong = [*events(), *options()]
    for what in wrong:
        print(what)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
