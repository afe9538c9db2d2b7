#!/usr/bin/env python3
"""Computes weights_digest (docs/checkpoints.md) from safetensors files: weights_digest.py FILE..."""

import ctypes
import ctypes.util
import json
import struct
import sys


def xxh3_128(data):
    """Hex digits of XXH3-128: Python's xxhash module, else libxxhash."""
    try:
        import xxhash

        return xxhash.xxh3_128_hexdigest(data)
    except ImportError:
        pass

    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    path = ctypes.util.find_library("xxhash") or "libxxhash.so.0"
    try:
        library = ctypes.CDLL(path)
    except OSError:
        sys.exit("weights_digest.py needs libxxhash0 (Debian package) or Python's xxhash module")
    library.XXH3_128bits.restype = Hash
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    result = library.XXH3_128bits(data, len(data))
    return f"{result.high:016x}{result.low:016x}"


def read_tensors(path):
    """{name: (dtype, shape, bytes)} of one safetensors file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def framed(tensors):
    number = lambda value: struct.pack("<Q", value)
    parts = []
    for name in sorted(tensors, key=lambda text: text.encode()):
        dtype, shape, data = tensors[name]
        for text in (name, dtype):
            parts += [number(len(text.encode())), text.encode()]
        parts += [number(len(shape))] + [number(extent) for extent in shape]
        parts += [number(len(data)), data]
    return b"".join(parts)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    tensors = {}
    for path in sys.argv[1:]:
        tensors.update(read_tensors(path))
    print(xxh3_128(framed(tensors)))


if __name__ == "__main__":
    main()
