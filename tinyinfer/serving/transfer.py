"""The KV cache on its way: rows out of one cache, a header that says what they are, every check, rows into another.

Nothing is written into the receiving cache before everything has been checked.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.model.cache import KVCache
from tinyinfer.model.config import ModelConfig
from tinyinfer.serving.failures import TransferRefused

try:
    import xxhash
except ModuleNotFoundError:
    raise BadInput("a split engine needs xxhash: pip install 'tinyinfer[cluster]'") from None

LAYOUT = "layer, token, kv_head, head_dim"
WIRE_DTYPE = "float32"  # NumPy has no bfloat16: a 16-bit cache is widened, which loses nothing, and narrowed again


@dataclass(frozen=True)
class TransferHeader:
    """What the two arrays are. Checksums are of each layer's K and V rows, taken from the cache that computed them.

    `attempt` counts the hand-offs of one request, so that a cache of an earlier attempt is known as stale.
    """

    request_id: str
    attempt: int
    model: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    length: int
    key_checksums: tuple[int, ...]
    value_checksums: tuple[int, ...]

    def checksums_by_layer(self) -> dict[str, dict[str, str]]:
        """`layer_0` -> "K" and "V" -> sixteen hexadecimal digits, for people."""
        pairs = zip(self.key_checksums, self.value_checksums, strict=True)
        return {f"layer_{layer}": {"K": f"{k:016x}", "V": f"{v:016x}"} for layer, (k, v) in enumerate(pairs)}


@dataclass(frozen=True, eq=False)
class Payload:
    """Header, keys and values: all that crosses. Both arrays are (layers, length, kv_heads, head_dim)."""

    header: TransferHeader
    keys: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays: length x bytes per token, exactly."""
        return self.keys.nbytes + self.values.nbytes


def rows_checksum(kind: str, layer: int, rows: np.ndarray) -> int:
    """XXH3 of one layer's rows, seeded with their place: none passes for another."""
    # Finds accidents as well as CRC-32, ten times faster: that took as long as sending.
    seed = xxhash.xxh3_64_intdigest(f"{kind} {layer}".encode())
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(rows).data, seed)


def pack_rows(cache: KVCache, request_id: str, attempt: int, model: str) -> Payload:
    """The rows that hold tokens, and no free slot, with their header."""
    numpy_of, length = cache.ops.to_numpy, cache.length
    keys, values = (
        np.ascontiguousarray(numpy_of(block[:, :length]), WIRE_DTYPE) for block in (cache.keys, cache.values)
    )
    # Taken layer by layer from the cache, not from the packed arrays: so they also check the packing.
    layers = range(len(cache.keys))
    header = TransferHeader(
        request_id,
        attempt,
        model,
        WIRE_DTYPE,
        keys.shape,
        LAYOUT,
        length,
        tuple(rows_checksum("K", layer, numpy_of(cache.keys[layer, :length])) for layer in layers),
        tuple(rows_checksum("V", layer, numpy_of(cache.values[layer, :length])) for layer in layers),
    )
    return Payload(header, keys, values)


def expected_header(config: ModelConfig, request_id: str, attempt: int, length: int) -> TransferHeader:
    """What the header of a request of `length` tokens must say, its checksums apart."""
    shape = (config.layers, length, config.kv_heads, config.head_dim)
    return TransferHeader(request_id, attempt, config.name, WIRE_DTYPE, shape, LAYOUT, length, (), ())


def verify_payload(payload: Any, expected: TransferHeader) -> None:
    """Raise `TransferRefused`, naming the first thing that is wrong, unless every part is as expected."""
    if not isinstance(payload, Payload) or not isinstance(payload.header, TransferHeader):
        raise TransferRefused(f"payload is a {type(payload).__name__}, not a header with keys and values")
    header = payload.header
    if header.request_id != expected.request_id:
        raise TransferRefused(f"request_id is {header.request_id!r}; expected is {expected.request_id!r}")
    for name in ("attempt", "model", "dtype", "layout", "length", "shape"):
        found, wanted = getattr(header, name), getattr(expected, name)
        if found != wanted:
            stale = " (stale)" if name == "attempt" else ""
            raise TransferRefused(f"{header.request_id}: {name} is {found!r}{stale}; expected is {wanted!r}")
    layers = expected.shape[0]
    blocks = {"K": (payload.keys, header.key_checksums), "V": (payload.values, header.value_checksums)}
    for kind, (block, checksums) in blocks.items():
        if not isinstance(block, np.ndarray) or block.dtype != np.dtype(expected.dtype):
            found = getattr(block, "dtype", type(block).__name__)
            raise TransferRefused(f"{header.request_id}: {kind} is {found}; its header says {expected.dtype}")
        if block.shape != expected.shape:
            raise TransferRefused(f"{header.request_id}: {kind} has shape {block.shape}; expected is {expected.shape}")
        if len(checksums) != layers:
            raise TransferRefused(f"{header.request_id}: {kind} has {len(checksums)} checksums for {layers} layers")
        for layer, checksum in enumerate(checksums):
            found = rows_checksum(kind, layer, block[layer])
            if found != checksum:
                raise TransferRefused(
                    f"{header.request_id}: checksum of {kind} in layer {layer} is {found:016x}; "
                    f"sent was {checksum:016x}"
                )


def receive_rows(payload: Payload, cache: KVCache, expected: TransferHeader) -> None:
    """Check everything, then write the rows into an empty cache: all or nothing."""
    verify_payload(payload, expected)
    who, length = expected.request_id, expected.length
    if cache.length:
        raise TransferRefused(f"{who}: this cache already holds {cache.length} tokens")
    cache.require(length)
    cache.keys[:, :length] = cache.ops.from_numpy(payload.keys)
    cache.values[:, :length] = cache.ops.from_numpy(payload.values)
    cache.commit(length)
