"""Says whether every file that the packages of this Python's environment installed is still there, whole.

pip trusts a package's metadata, which an interrupted installation may have written before all files.
Exit code 0: complete; 1: the first broken package is named.
"""

import importlib.metadata
import os
import sys


def broken_file(distribution):
    """Returns the first file of the distribution that is missing or has another size, or None."""
    files = distribution.files
    if files is None:
        return "RECORD"
    for file in files:
        if file.suffix == ".pyc" or ".." in file.parts:
            continue
        try:
            size = os.stat(file.locate()).st_size
        except OSError:
            return str(file)
        if file.size is not None and file.size != size:
            return str(file)
    return None


def main():
    for distribution in importlib.metadata.distributions():
        file = broken_file(distribution)
        if file is not None:
            print(f"{distribution.metadata['Name'] or distribution}: {file} is missing or incomplete")
            return 1
    return 0


sys.exit(main())
