"""FLOPs and bytes of every operation and of each phase, by counting.

Conventions, because published counts differ in each of them:

- FLOPs are those of matrix products, 2 for each multiply-add; norms, RoPE, softmax and activations are left out.
- Attention is *exact causal*: a query meets the keys at and before it. `attention="full_square"` counts the masked
  products too, as a kernel computes them that does not skip them.
- Logits are those of the last row only, which is all that generation needs. `logits="all"` counts every row.
- Bytes are what must cross the memory bus once: weights and KV rows. Activations are taken to stay on the chip;
  `llm_viewer.py` alone moves them.
- The embedding table is looked up, not streamed, so it costs no bytes; a tied table is read once, as the head.
- A launch is one kernel for each matrix product, with everything else fused into it: 9 in a layer and one for the
  head. With `fused=True` one product gives Q, K and V and one gives gate and up: 6 in a layer. An eager framework
  starts more (norms, RoPE, softmax, additions); where kernels were counted, `dataclasses.replace(work, launches=...)`.
"""

import math
from typing import Literal

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig, layer_shapes, weight_shapes
from tinyinfer.performance.work import Work

Attention = Literal["exact_causal", "full_square"]
Logits = Literal["last", "all"]

# The operations that a pass does once; all others are done once in every layer.
ONCE_PER_PASS = ("final_norm", "lm_head")


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
    fused: bool = False,
) -> dict[str, Work]:
    """Each operation of a pass over `new_tokens` per sequence, after `past` cached ones: one layer's, then the head's.

    Bytes: the weights once for the whole batch; per sequence, the cached rows read and the new rows written. The new
    rows are not read back: they are still on the chip.
    """
    require_counts(1, new_tokens=new_tokens, batch=batch)
    require_counts(0, past=past)
    require_choice("attention", attention, ("exact_causal", "full_square"))
    require_choice("logits", logits, ("last", "all"))
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
        fused=fused,
    )


def decode_operations(
    config: ModelConfig,
    context: int,
    batch: int = 1,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    fused: bool = False,
) -> dict[str, Work]:
    """Each operation of one decode step: one new token per sequence, which attends `context` keys, its own included.

    Bytes: the weights once for the whole batch; per sequence, `context` rows of K and V read and one written.
    """
    require_counts(1, context=context, batch=batch)
    keys = batch * min(context, config.sliding_window or context)
    return _operations(config, batch, keys, keys, batch, weight_bytes, kv_bytes, fused)


def prefill_cost(
    config: ModelConfig,
    new_tokens: int,
    past: int = 0,
    batch: int = 1,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    attention: Attention = "exact_causal",
    logits: Logits = "last",
    fused: bool = False,
) -> Work:
    """The whole pass of `prefill_operations`."""
    operations = prefill_operations(config, new_tokens, past, batch, weight_bytes, kv_bytes, attention, logits, fused)
    return whole_pass(config, operations)


def decode_cost(
    config: ModelConfig,
    context: int,
    batch: int = 1,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    fused: bool = False,
) -> Work:
    """The whole step of `decode_operations`."""
    return whole_pass(config, decode_operations(config, context, batch, weight_bytes, kv_bytes, fused))


def whole_pass(config: ModelConfig, operations: dict[str, Work]) -> Work:
    """Every layer's operations and the head's, added up."""
    times = {name: 1 if name in ONCE_PER_PASS else config.layers for name in operations}
    return sum((work * times[name] for name, work in operations.items()), Work())


# Generating `new_tokens` from a prompt takes `new_tokens` passes: over prompt, prompt + 1, ... tokens when nothing is
# kept; over the prompt and then one token at a time with a cache. The last sampled token is never fed.


def naive_generation_cost(config: ModelConfig, prompt: int, new_tokens: int, weight_bytes: float = 2) -> Work:
    """Generate with no cache: every pass computes the whole past again. Bytes are weights only; no row is kept."""
    require_counts(1, prompt=prompt, new_tokens=new_tokens)
    passes = (
        prefill_cost(config, prompt + sampled, weight_bytes=weight_bytes, kv_bytes=0) for sampled in range(new_tokens)
    )
    return sum(passes, Work())


def cached_generation_cost(
    config: ModelConfig, prompt: int, new_tokens: int, weight_bytes: float = 2, kv_bytes: float = 2
) -> Work:
    """Generate with a cache: one prefill, which gives the first token, and `new_tokens` - 1 decode steps."""
    require_counts(1, prompt=prompt, new_tokens=new_tokens)
    steps = (
        decode_cost(config, prompt + sampled, weight_bytes=weight_bytes, kv_bytes=kv_bytes)
        for sampled in range(1, new_tokens)
    )
    return sum(steps, prefill_cost(config, prompt, weight_bytes=weight_bytes, kv_bytes=kv_bytes))


def kv_projections(prompt: int, new_tokens: int, cached: bool) -> int:
    """Tokens whose K and V each layer computes while it generates `new_tokens`: O(n^2) without a cache, O(n) with."""
    require_counts(1, prompt=prompt, new_tokens=new_tokens)
    return prompt + new_tokens - 1 if cached else sum(range(prompt, prompt + new_tokens))


def score_pairs(prompt: int, new_tokens: int, cached: bool) -> int:
    """(query, key) pairs each head scores while it generates `new_tokens`: O(n^3) without a cache, O(n^2) with one.

    A cached step still costs O(n): a cache saves the past's projections and its queries, not the look at its keys.
    """
    require_counts(1, prompt=prompt, new_tokens=new_tokens)
    if cached:
        return causal_pairs(prompt + new_tokens - 1)
    return sum(causal_pairs(length) for length in range(prompt, prompt + new_tokens))


def cache_bytes_written(
    config: ModelConfig, prompt: int, new_tokens: int, preallocated: bool, kv_bytes: int = 2
) -> int:
    """Bytes of K and V written while generating. Concatenation copies every old row at each step; one block, none."""
    require_counts(1, prompt=prompt, new_tokens=new_tokens)
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
# Fused, q_proj starts the kernel that does all three, and gate the one that does both.
_STARTED_WITH_ANOTHER = ("k_proj", "v_proj", "up")


def _operations(
    config: ModelConfig,
    tokens: int,
    pairs: int,
    rows_read: int,
    logit_rows: int,
    weight_bytes: float,
    kv_bytes: float,
    fused: bool,
) -> dict[str, Work]:
    """The formulas; every count is for the whole batch, and every new token writes one row of K and one of V."""
    shapes = layer_shapes(config)
    row_bytes = config.kv_heads * config.head_dim * kv_bytes

    def project(operation: str) -> Work:
        outputs, inputs = shapes[_WEIGHT_OF[operation]]
        bias = math.prod(shapes.get(f"{_WEIGHT_OF[operation]}_bias", (0,)))
        written = tokens * row_bytes if operation in ("k_proj", "v_proj") else 0
        launches = 0 if fused and operation in _STARTED_WITH_ANOTHER else 1
        return Work(2 * tokens * outputs * inputs, (outputs * inputs + bias) * weight_bytes + written, launches)

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


def require_counts(minimum: int, **counts: int) -> None:
    """Raise `BadInput`, naming it, on a count that is no whole number or below `minimum`."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < minimum:
            raise BadInput(f"{name} is {count!r}; it must be a whole number of at least {minimum}")


def require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise `BadInput` on a choice that does not exist."""
    if value not in allowed:
        raise BadInput(f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")
