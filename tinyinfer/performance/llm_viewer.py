"""Costs as LLM-Viewer counts them: no value stays on the chip. The book's own convention is `cost.py`."""

from typing import Literal

from tinyinfer.model.config import ModelConfig
from tinyinfer.performance.cost import decode_operations, prefill_operations, require_choice
from tinyinfer.performance.work import Work


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
    require_choice("phase", phase, ("prefill", "decode"))
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
