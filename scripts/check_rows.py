"""Checks the tables of reported troubles in docs/compatibility.md and docs/training_rows.md against the tests that they name.

Every row that was reported has its line, once. Each test it names stands in the file it names and carries the number of the
row, in the comment right before it or in its name; of a file that is named as a whole, some place in it. A row without a test says why. A test over several nodes with a
row's number in its name stands in its line. Exit code 1 when a line is wrong.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECTION = "## Reported troubles and the tests for them"
# By page: the numbers that reports have been given; some were taken back, so there are gaps.
LAUNCHER = {
    "L": "1-5 7-8 10-13 15-16 18-19 21 23-24 26-30 32-35 37-39 41-44 46-48 50-52 54-56 58-60 62-63 65-68 70-71 73-74 76",
    "S": "1-6 8-10 12-17 19-20 22-24 26-27",
    "R": "1-4 6-8 10-11 13",
    "D": "1-4 6 8",
    "A": "1 3-5 7",
}
TRAINER = {"TR": "1-4 6-11 13-14 16-18 20-26 28-33 35-38 40-45 47-50 52 54"}
PAGES = {"docs/compatibility.md": LAUNCHER, "docs/training_rows.md": TRAINER}
ROW = re.compile(r"\| ((?:TR|[LSRDA])\d+) \| ([^|]+) \| (.*) \|$")
CITED = re.compile(r"`((?:unit|process|sim|cluster|fault|fuzz|gpu|python)/[\w./]+)(?:: ([\w, ]+))?`")


def expected(numbers):
    """Every row's number."""
    for letter, ranges in numbers.items():
        for part in ranges.split():
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{letter}{number}"


def holds_test(path, text, name):
    """Whether the file defines this test, in the way of its kind."""
    if path.suffix == ".cc":
        return re.search(rf"^TEST(?:_F|_P)?\(\s*\w+,\s*{name}\)", text, re.M)
    if path.suffix == ".cmake":
        return re.search(rf"\bNAME\s+{name}\b", text)
    return re.search(rf"^\s*(?:def|class)\s+{name}\b", text, re.M)


def carries(row, text, test):
    """Whether the test of this match has the row's number, in a comment before it or on its line, or in its name."""
    before = text[:test.start()].splitlines()
    near = [text[test.start():].lstrip().splitlines()[0].replace("_", " ").upper()]
    while before and before[-1].lstrip().startswith(("//", "#", "if(", "add_test(", "@")):
        near.append(before.pop())
    return re.search(rf"\b{row}\b", " ".join(near))


def check_row(row, cell):
    """Yields what is wrong with one line."""
    cited = CITED.findall(cell)
    if not cited and len(cell.split()) < 3:
        yield "names no test and does not say why"
    for file, names in cited:
        path = ROOT / "tests" / file
        if not path.is_file():
            yield f"tests/{file}: there is no such file"
            continue
        text = path.read_text()
        if not names and not re.search(rf"\b{row}\b", text):
            yield f"tests/{file} does not carry its number"
        for name in filter(None, (part.strip() for part in names.split(","))):
            test = holds_test(path, text, name)
            if not test:
                yield f"tests/{file} has no test {name}"
            elif not carries(row, text, test):
                yield f"tests/{file}: {name} has not its number in the comment before it"


def uncited(text):
    """Yields tests over several nodes that carry a row's number in their name, and are missing in its line."""
    lines = {match[1]: match[3] for match in map(ROW.match, text.splitlines()) if match}
    for path in sorted((ROOT / "tests/cluster").glob("*_test.py")):
        for name in re.findall(r"^\s*def (test_\w+)", path.read_text(), re.M):
            for row in re.findall(r"_([lsrda]\d+)(?=_)", name):
                if name not in lines.get(row.upper(), ""):
                    yield f"{row.upper()}: does not name {name} of tests/cluster/{path.name}"


def check_page(page, numbers):
    """Yields what is wrong with the table of one page."""
    text = (ROOT / page).read_text()
    if SECTION not in text:
        yield f"has no section '{SECTION}'"
        return
    section = text[text.index(SECTION):]
    seen = set()
    wanted = set(expected(numbers))
    for line in section.splitlines():
        match = ROW.match(line)
        if not match:
            continue
        row, _, cell = match.groups()
        if row in seen:
            yield f"{row}: stands there twice"
        if row not in wanted:
            yield f"{row}: no report has this number (scripts/check_rows.py)"
        seen.add(row)
        yield from (f"{row}: {what}" for what in check_row(row, cell))
    yield from (f"{row}: has no line" for row in expected(numbers) if row not in seen)
    if numbers is LAUNCHER:
        yield from uncited(section)


def main():
    """Prints what is wrong, and how to mend it."""
    wrong = [f"{page}: {what}" for page, numbers in PAGES.items() for what in check_page(page, numbers)]
    for what in wrong:
        print(what)
    if wrong:
        print("check_rows: correct the table, or name the test as the table does")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
