"""The front of a GGUF file: its fields, then where each tensor lies. No length is believed before it is checked.

Layout: docs/gguf.md of ggml. The `gguf` package has a reader too; it trusts the counts, and loops without end on a
damaged one.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinyinfer.errors import BadInput

_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in the file: `shape` in NumPy's order, `quantisation` in ggml's numbers, `start` in bytes."""

    name: str
    shape: tuple[int, ...]
    quantisation: int
    start: int


@dataclass(frozen=True)
class GGUFHeader:
    """All fields by name, all tensors in the file's order, and the whole file as a read-only map."""

    fields: dict[str, Any]
    tensors: list[StoredTensor]
    data: mmap.mmap


def read_header(path: Path) -> GGUFHeader:
    """Read fields and tensor places; `BadInput` on wrong magic or version, and on any count beyond the file's end."""
    try:
        with path.open("rb") as file:
            start = file.read(24)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if start else None
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except OSError as wrong:
        raise BadInput(f"{path} cannot be read: {wrong}") from None
    if start[:4] != b"GGUF":
        raise BadInput(f"{path} begins with {start[:4]!r}; a GGUF file begins with b'GGUF'")
    assert data is not None
    try:
        cursor = _Cursor(data)
        cursor.take(4)
        version, tensor_count, field_count = cursor.number(4), cursor.number(10), cursor.number(10)
        if version not in (2, 3):
            raise BadInput(f"{path} is GGUF version {version}; supported are 2 and 3")
        fields = {}
        for _ in range(field_count):  # a wrong count ends at the file's end, as every entry takes bytes
            name = cursor.text()
            fields[name] = cursor.value(cursor.number(4))
        places = [cursor.tensor_place() for _ in range(tensor_count)]
    except (_Damaged, UnicodeDecodeError) as wrong:
        raise BadInput(f"{path} is truncated or damaged: {wrong}") from None
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise BadInput(f"{path}: general.alignment is {alignment!r}; it must be a whole number of at least 1")
    first = math.ceil(cursor.offset / alignment) * alignment
    tensors = [StoredTensor(name, shape, kind, first + offset) for name, shape, kind, offset in places]
    return GGUFHeader(fields, tensors, data)


class _Damaged(Exception):
    pass


class _Cursor:
    def __init__(self, data: mmap.mmap):
        self.data, self.offset = data, 0

    def take(self, size: int) -> bytes:
        end = self.offset + size
        if end > len(self.data):
            raise _Damaged(f"{size} bytes at byte {self.offset} are asked for; the file has {len(self.data)}")
        taken = self.data[self.offset : end]
        self.offset = end
        return taken

    def numbers(self, kind: int, count: int) -> list:
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()

    def number(self, kind: int) -> Any:
        return self.numbers(kind, 1)[0]

    def text(self) -> str:
        (size,) = struct.unpack("<Q", self.take(8))
        return self.take(size).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _NUMBERS:
            return self.number(kind)
        if kind != _ARRAY:
            raise _Damaged(f"unknown field type {kind} before byte {self.offset}")
        kind, count = self.number(4), self.number(10)
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        if kind in _NUMBERS:
            return self.numbers(kind, count)
        raise _Damaged(f"an array of type {kind} before byte {self.offset}")

    def tensor_place(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self.text(), self.number(4)
        if axes > 4:
            raise _Damaged(f"tensor {name} has {axes} axes; at most 4 are allowed")
        shape = tuple(reversed(self.numbers(10, axes)))  # ggml names the fastest axis first
        return name, shape, self.number(4), self.number(10)
