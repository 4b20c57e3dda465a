"""FLOPs and bytes of every operation and of each phase, by counting.

Conventions, because published counts differ in each of them:

- FLOPs are those of matrix products, 2 for each multiply-add; norms, RoPE, softmax and activations are left out.
- Attention is *exact causal*: a query meets the keys at and before it. `attention="full_square"` counts the masked
  products too, as a kernel computes them that does not skip them.
- Logits are those of the last row only, which is all that generation needs. `logits="all"` counts every row.
- Bytes are what must cross the memory bus once: weights and KV rows. Activations are taken to stay on the chip;
  `llm_viewer_operations` alone moves them.
- The embedding table is looked up, not streamed, so it costs no bytes; a tied table is read once, as the head.
- A launch is one kernel for each matrix product, with everything else fused into it.
"""

import math
from dataclasses import dataclass
from typing import Literal

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig, layer_shapes, weight_shapes
from tinyinfer.performance.hardware import Hardware

Attention = Literal["exact_causal", "full_square"]
Logits = Literal["last", "all"]

# The operations that a pass does once; all others are done once in every layer.
ONCE_PER_PASS = ("final_norm", "lm_head")


@dataclass(frozen=True)
class Work:
    """What an operation asks of a machine: FLOPs, bytes over the memory bus, kernels to start."""

    flops: int = 0
    bytes_moved: float = 0
    launches: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes_moved + other.bytes_moved, self.launches + other.launches)

    def __mul__(self, times: int) -> "Work":
        return Work(self.flops * times, self.bytes_moved * times, self.launches * times)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOP per byte moved, to be compared with a machine's ridge point."""
        return self.flops / self.bytes_moved if self.bytes_moved else math.inf

    def seconds_on(self, hardware: Hardware, dtype: str = "bf16") -> float:
        """The least time that `hardware` needs: max(compute, memory) + launches x floor.

        Compute and memory overlap, so the larger counts (Williams, Waterman and Patterson, 2009); starting kernels
        one after another overlaps with neither. Where no FLOP/s is published, memory alone bounds.
        """
        compute, memory, launch = self._limits(hardware, dtype)
        return max(compute, memory) + launch

    def bound_on(self, hardware: Hardware, dtype: str = "bf16") -> Literal["compute", "memory", "launch"]:
        """Which of the three limits sets the time."""
        compute, memory, launch = self._limits(hardware, dtype)
        if launch > max(compute, memory):
            return "launch"
        return "compute" if compute > memory else "memory"

    def _limits(self, hardware: Hardware, dtype: str) -> tuple[float, float, float]:
        peak = hardware.peak(dtype)
        compute = 0.0 if peak is None else self.flops / peak
        return compute, self.bytes_moved / hardware.bytes_per_second, self.launches * hardware.launch_floor_seconds


def parameters(config: ModelConfig) -> int:
    """How many numbers the model's weights hold; a tied table counts once."""
    return sum(math.prod(shape) for shape in weight_shapes(config).values())


def weight_bytes_read(config: ModelConfig, bytes_per_weight: float = 2) -> float:
    """Bytes of weights that one pass streams: every weight once, without an embedding table that is only looked up."""
    looked_up = 0 if config.tied_head else config.vocab * config.model_dim
    return (parameters(config) - looked_up) * bytes_per_weight


def causal_pairs(new_tokens: int, past: int = 0, window: int | None = None) -> int:
    """How many (query, key) pairs causal attention scores for `new_tokens` queries after `past` tokens.

    The query at position p meets p + 1 keys, or the last `window` of them.
    """

    def pairs_up_to(length: int) -> int:
        growing = length if window is None else min(length, window)
        return growing * (growing + 1) // 2 + (length - growing) * (window or 0)

    return pairs_up_to(past + new_tokens) - pairs_up_to(past)


def prefill_operations(
    config: ModelConfig,
    new_tokens: int,
    past: int = 0,
    batch: int = 1,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    attention: Attention = "exact_causal",
    logits: Logits = "last",
) -> dict[str, Work]:
    """Each operation of a pass over `new_tokens` per sequence, after `past` cached ones: one layer's, then the head's.

    Bytes: the weights once for the whole batch; per sequence, the cached rows read and the new rows written. The new
    rows are not read back: they are still on the chip.
    """
    _require(1, new_tokens=new_tokens, batch=batch)
    _require(0, past=past)
    _choose("attention", attention, ("exact_causal", "full_square"))
    _choose("logits", logits, ("last", "all"))
    pairs = causal_pairs(new_tokens, past, config.sliding_window)
    if attention == "full_square":
        pairs = new_tokens * (past + new_tokens)
    # With a sliding window the first new query sees itself and the last window - 1 rows of the past.
    rows_read = past if config.sliding_window is None else min(past, config.sliding_window - 1)
    return _operations(
        config,
        tokens=batch * new_tokens,
        pairs=batch * pairs,
        rows_read=batch * rows_read,
        logit_rows=batch * (new_tokens if logits == "all" else 1),
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
    )


def decode_operations(
    config: ModelConfig, context: int, batch: int = 1, weight_bytes: float = 2, kv_bytes: float = 2
) -> dict[str, Work]:
    """Each operation of one decode step: one new token per sequence, which attends `context` keys, its own included.

    Bytes: the weights once for the whole batch; per sequence, `context` rows of K and V read and one written.
    """
    _require(1, context=context, batch=batch)
    keys = batch * min(context, config.sliding_window or context)
    return _operations(config, batch, keys, keys, batch, weight_bytes, kv_bytes)


def prefill_cost(
    config: ModelConfig,
    new_tokens: int,
    past: int = 0,
    batch: int = 1,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    attention: Attention = "exact_causal",
    logits: Logits = "last",
) -> Work:
    """The whole pass of `prefill_operations`."""
    operations = prefill_operations(config, new_tokens, past, batch, weight_bytes, kv_bytes, attention, logits)
    return whole_pass(config, operations)


def decode_cost(
    config: ModelConfig, context: int, batch: int = 1, weight_bytes: float = 2, kv_bytes: float = 2
) -> Work:
    """The whole step of `decode_operations`."""
    return whole_pass(config, decode_operations(config, context, batch, weight_bytes, kv_bytes))


def whole_pass(config: ModelConfig, operations: dict[str, Work]) -> Work:
    """Every layer's operations and the head's, added up."""
    times = {name: 1 if name in ONCE_PER_PASS else config.layers for name in operations}
    return sum((work * times[name] for name, work in operations.items()), Work())


def llm_viewer_operations(
    config: ModelConfig,
    phase: Literal["prefill", "decode"],
    context: int,
    batch: int = 1,
    weight_bytes: float = 2,
    activation_bytes: float = 2,
    kv_bytes: float = 2,
) -> dict[str, Work]:
    """The matrix products as LLM-Viewer counts them: full-square attention, and no value stays on the chip.

    Every product reads its inputs from memory and writes its outputs there: hidden states, the score matrix, and in
    prefill the K and V rows just written. Source: `model_analyzer.py` of hahnyuan/LLM-Viewer.
    """
    _choose("phase", phase, ("prefill", "decode"))
    if phase == "prefill":
        operations = prefill_operations(config, context, 0, batch, weight_bytes, kv_bytes, "full_square")
        new_tokens, read_back = context, batch * context * config.kv_heads * config.head_dim * kv_bytes
    else:
        operations = decode_operations(config, context, batch, weight_bytes, kv_bytes)
        new_tokens, read_back = 1, 0
    tokens, query_dim = batch * new_tokens, config.heads * config.head_dim
    scores = tokens * config.heads * context
    activations = {
        "q_proj": tokens * (config.model_dim + query_dim),
        "k_proj": tokens * config.model_dim,  # its output is the KV row, counted already
        "v_proj": tokens * config.model_dim,
        "scores": tokens * query_dim + scores,
        "weighted_sum": scores + tokens * query_dim,
        "out_proj": tokens * (query_dim + config.model_dim),
        "gate": tokens * (config.model_dim + config.ffn_dim),
        "up": tokens * (config.model_dim + config.ffn_dim),
        "down": tokens * (config.ffn_dim + config.model_dim),
        "lm_head": batch * (config.model_dim + config.vocab),
    }
    return {
        name: operations[name]
        + Work(bytes_moved=numbers * activation_bytes + (read_back if name in ("scores", "weighted_sum") else 0))
        for name, numbers in activations.items()
    }


# Generating `new_tokens` from a prompt takes `new_tokens` passes: over prompt, prompt + 1, ... tokens when nothing is
# kept; over the prompt and then one token at a time with a cache. The last sampled token is never fed.


def naive_generation_cost(config: ModelConfig, prompt: int, new_tokens: int, weight_bytes: float = 2) -> Work:
    """Generate with no cache: every pass computes the whole past again. Bytes are weights only; no row is kept."""
    _require(1, prompt=prompt, new_tokens=new_tokens)
    passes = (
        prefill_cost(config, prompt + sampled, weight_bytes=weight_bytes, kv_bytes=0) for sampled in range(new_tokens)
    )
    return sum(passes, Work())


def cached_generation_cost(
    config: ModelConfig, prompt: int, new_tokens: int, weight_bytes: float = 2, kv_bytes: float = 2
) -> Work:
    """Generate with a cache: one prefill, which gives the first token, and `new_tokens` - 1 decode steps."""
    _require(1, prompt=prompt, new_tokens=new_tokens)
    steps = (
        decode_cost(config, prompt + sampled, weight_bytes=weight_bytes, kv_bytes=kv_bytes)
        for sampled in range(1, new_tokens)
    )
    return sum(steps, prefill_cost(config, prompt, weight_bytes=weight_bytes, kv_bytes=kv_bytes))


def kv_projections(prompt: int, new_tokens: int, cached: bool) -> int:
    """Tokens whose K and V each layer computes while it generates `new_tokens`: O(n^2) without a cache, O(n) with."""
    _require(1, prompt=prompt, new_tokens=new_tokens)
    return prompt + new_tokens - 1 if cached else sum(range(prompt, prompt + new_tokens))


def score_pairs(prompt: int, new_tokens: int, cached: bool) -> int:
    """(query, key) pairs each head scores while it generates `new_tokens`: O(n^3) without a cache, O(n^2) with one.

    A cached step still costs O(n): a cache saves the past's projections and its queries, not the look at its keys.
    """
    _require(1, prompt=prompt, new_tokens=new_tokens)
    if cached:
        return causal_pairs(prompt + new_tokens - 1)
    return sum(causal_pairs(length) for length in range(prompt, prompt + new_tokens))


def cache_bytes_written(
    config: ModelConfig, prompt: int, new_tokens: int, preallocated: bool, kv_bytes: int = 2
) -> int:
    """Bytes of K and V written while generating. Concatenation copies every old row at each step; one block, none."""
    _require(1, prompt=prompt, new_tokens=new_tokens)
    # Concatenating writes a fresh block of `length` rows in each pass: as many rows as the naive loop projects.
    return kv_projections(prompt, new_tokens, cached=preallocated) * config.kv_bytes_per_token(kv_bytes)


_WEIGHT_OF = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "output",
    "gate": "gate",
    "up": "up",
    "down": "down",
}


def _operations(
    config: ModelConfig,
    tokens: int,
    pairs: int,
    rows_read: int,
    logit_rows: int,
    weight_bytes: float,
    kv_bytes: float,
) -> dict[str, Work]:
    """The formulas; every count is for the whole batch, and every new token writes one row of K and one of V."""
    shapes = layer_shapes(config)
    row_bytes = config.kv_heads * config.head_dim * kv_bytes

    def project(operation: str) -> Work:
        outputs, inputs = shapes[_WEIGHT_OF[operation]]
        bias = math.prod(shapes.get(f"{_WEIGHT_OF[operation]}_bias", (0,)))
        written = tokens * row_bytes if operation in ("k_proj", "v_proj") else 0
        return Work(2 * tokens * outputs * inputs, (outputs * inputs + bias) * weight_bytes + written, 1)

    # Per pair and *query* head a dot product of head_dim; the bytes are those of the fewer *key/value* heads.
    attend = Work(2 * pairs * config.heads * config.head_dim, rows_read * row_bytes, 1)
    norms = sum(math.prod(shape) for name, shape in shapes.items() if name.endswith("_norm"))
    head = config.vocab * config.model_dim
    return {
        **{name: project(name) for name in ("q_proj", "k_proj", "v_proj")},
        "scores": attend,
        "weighted_sum": attend,
        **{name: project(name) for name in ("out_proj", "gate", "up", "down")},
        "norms": Work(bytes_moved=norms * weight_bytes),
        "final_norm": Work(bytes_moved=config.model_dim * weight_bytes),
        "lm_head": Work(2 * logit_rows * head, head * weight_bytes, 1),
    }


def _require(minimum: int, **counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < minimum:
            raise BadInput(f"{name} is {count!r}; it must be a whole number of at least {minimum}")


def _choose(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadInput(f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")
