"""Classic faults of inference engines, each a context manager: inject one, and see which number gives it away.

    with faults.late_position():
        model.generate("白日依山")        # often the same text: compare logits, not text

Every fault here was found in at least one public engine. `FAULTS` maps names to faults, `CAUGHT_BY` to the test that
turns red.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import numpy as np

from tinyinfer.model import numpy_ops
from tinyinfer.model.cache import KVCache
from tinyinfer.model.config import ModelConfig
from tinyinfer.performance import cost, metrics
from tinyinfer.serving import session as sessions
from tinyinfer.serving.language_model import LanguageModel

FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {}
CAUGHT_BY: dict[str, str] = {}


def _fault(caught_by: str):
    def register(function: Callable[[], Iterator[None]]):
        manager = contextmanager(function)
        FAULTS[function.__name__] = manager
        CAUGHT_BY[function.__name__] = f"tests/{caught_by}"
        return manager

    return register


@_fault("model/test_cache.py::test_decode_positions_follow_the_prompt_without_a_gap")
def late_position():
    """Decoding starts one position too late (onnxruntime-genai PR 2354, llama3.np)."""
    right = KVCache.positions
    with patch.object(KVCache, "positions", lambda cache, num_new: right(cache, num_new) + (cache.length > 0)):
        yield


@_fault("model/test_cache.py::test_every_layer_of_a_step_sees_the_same_past")
def length_advanced_per_layer():
    """The cache's length moves once per layer, not once per step (flash-linear-attention 766)."""
    right = KVCache.attend

    def attend(cache, layer, queries, keys, values):
        mixed = right(cache, layer, queries, keys, values)
        cache.length = min(cache.length + len(keys), cache.capacity - len(keys))
        return mixed

    with patch.object(KVCache, "attend", attend), patch.object(KVCache, "commit", lambda cache, num_new: None):
        yield


@_fault("model/test_numpy_ops.py::test_a_chunk_after_a_prefix_sees_the_prefix_and_its_own_past")
def top_left_mask():
    """A chunk's causal mask is aligned with the first keys instead of the last (llama 899, candle PR 3743)."""
    with patch.object(numpy_ops, "causal_mask", lambda new, seen: np.tri(new, seen, dtype=bool)):
        yield


@_fault("model/test_llama.py::test_cached_logits_equal_naive_logits_on_trained_weights")
def missing_mask():
    """Prefill lets every token look into the future."""
    with patch.object(numpy_ops, "causal_mask", lambda new, seen: np.ones((new, seen), bool)):
        yield


@_fault("model/test_numpy_ops.py::test_attention_by_hand_gives_the_known_row")
def unscaled_scores():
    """The scores are not multiplied by 1 / sqrt(head_dim)."""
    right = numpy_ops.attention

    def attention(queries, keys, values):
        return right(queries * np.float32(queries.shape[-1] ** 0.5), keys, values)

    with patch.object(numpy_ops, "attention", attention):
        yield


@_fault("model/test_numpy_ops.py::test_softmax_agrees_with_the_published_table")
def softmax_without_exponential():
    """Scores are divided by their sum: [0, 1, 2, 1] becomes [0, 0.25, 0.5, 0.25]."""
    with patch.object(numpy_ops, "softmax", lambda scores, out=None: scores / scores.sum(axis=-1, keepdims=True)):
        yield


@_fault("model/test_numpy_ops.py::test_rope_rotates_half_split_pairs")
def swapped_rope_pairing():
    """RoPE rotates neighbours (0, 1), (2, 3), ... where the weights expect halves (transformers 25199)."""

    def rope(x, cos, sin):
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(x.shape)

    with patch.object(numpy_ops, "rope", rope):
        yield


@_fault("model/test_numpy_ops.py::test_query_heads_share_the_keys_of_their_own_group")
def wrong_group():
    """Query head h reads KV head h % kv_heads, where it should read h // group."""
    right = numpy_ops.attention

    def attention(queries, keys, values):
        heads, kv_heads = queries.shape[1], keys.shape[1]
        order = np.arange(heads).reshape(-1, kv_heads).T.reshape(-1)
        mixed = np.empty_like(queries)
        mixed[:, order] = right(queries[:, order], keys, values)
        return mixed

    with patch.object(numpy_ops, "attention", attention):
        yield


@_fault("serving/test_language_model.py::test_a_second_prompt_is_answered_as_by_a_fresh_model")
def stale_cache():
    """The cache of the last request is not emptied for the next (litgpt PRs 1596 and 1647)."""
    kept = {}

    def start(model, capacity):
        if model not in kept:
            kept[model] = sessions.Session(model.decoder, min(model.config.max_context, 128))
        return kept[model]

    with patch.object(LanguageModel, "start", start):
        yield


@_fault("serving/test_session.py::test_logits_come_from_the_last_row")
def logits_of_the_first_row():
    """Prefill answers with the logits after the first prompt token (LLMs-from-scratch PR 735 is a cousin)."""

    def append(session, token_ids):
        return session.decoder.logits(session.decoder.forward(token_ids, session.cache)[:1])[0]

    with patch.object(sessions.Session, "_append", append):
        yield


@_fault("serving/test_session.py::test_a_request_that_does_not_fit_is_refused_before_any_slot_is_written")
def unchecked_capacity():
    """Nobody asks whether the new tokens fit (transformers 1749)."""
    with patch.object(KVCache, "require", lambda cache, num_new: None):
        yield


@_fault("model/test_config.py::test_kv_bytes_count_key_value_heads")
def query_heads_for_kv():
    """The KV cache is sized by query heads (LMCache 688)."""

    def wrong(config, bytes_per_number=2):
        return 2 * config.layers * config.heads * config.head_dim * bytes_per_number

    with patch.object(ModelConfig, "kv_bytes_per_token", wrong):
        yield


def _with_tpot(tpot: Callable[[metrics.Timing, int], float]):
    right = metrics.timing_from_timestamps

    def timing(start_seconds, token_seconds):
        timing = right(start_seconds, token_seconds)
        wrong = tpot(timing, len(token_seconds))
        return metrics.Timing(timing.ttft_seconds, wrong, timing.itl_seconds, timing.e2e_seconds)

    return patch.object(metrics, "timing_from_timestamps", timing)


@_fault("serving/test_timing.py::test_tpot_leaves_out_the_first_token")
def tpot_with_first_token():
    """TPOT contains the time to first token: E2E / N (vLLM PR 5263)."""
    with _with_tpot(lambda timing, tokens: timing.e2e_seconds / tokens):
        yield


@_fault("serving/test_timing.py::test_tpot_leaves_out_the_first_token")
def tpot_divided_by_n():
    """TPOT divides by N tokens where there are N - 1 gaps (vLLM PR 17802)."""
    with _with_tpot(lambda timing, tokens: (timing.e2e_seconds - timing.ttft_seconds) / tokens):
        yield


@_fault("performance/test_cost.py::test_case_17_a_table_that_is_looked_up_costs_no_bytes_and_a_tied_one_is_read_once")
def embedding_counted_as_streamed():
    """A decode step is said to read the embedding look-up table as well (nanochat, 2.6 times too much for its d12)."""
    right = cost.weight_bytes_read

    def wrong(config, bytes_per_weight=2):
        table = 0 if config.tied_head else config.vocab * config.model_dim
        return right(config, bytes_per_weight) + table * bytes_per_weight

    with patch.object(cost, "weight_bytes_read", wrong):
        yield
