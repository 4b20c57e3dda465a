"""A whole decoder in one function, past recomputed: the oracle that the fast path must agree with.

It shares no code with the cached path: plain loops over layers, heads and query rows, nothing fused, nothing stored.
"""

import numpy as np

from tinyinfer.model.config import ModelConfig


def naive_logits(
    config: ModelConfig,
    weights: dict[str, np.ndarray],
    token_ids: list[int],
) -> np.ndarray:
    """Scores of every possible next token after each prefix of `token_ids`.

    float32 of shape (seen, vocab).
    """
    seen, half = len(token_ids), config.head_dim // 2

    # RMSNorm divides by the root mean square, then scales each channel.
    def normalise(x, scale):
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + np.float32(config.rms_eps)) * scale

    # RoPE turns pair i of a head by position x base^(-i / half) radians.
    speeds = config.rope_base ** (-np.arange(half) / half)
    if (stretch := config.rope_scaling) is not None:
        low, high = stretch.low_freq_factor, stretch.high_freq_factor
        for pair in range(half):
            # Full turns over the original context.
            turns = stretch.original_context * speeds[pair] / (2 * np.pi)
            slow = speeds[pair] / stretch.factor
            if turns < low:
                speeds[pair] = slow
            elif turns <= high:
                blend = (turns - low) / (high - low)
                speeds[pair] = (1 - blend) * slow + blend * speeds[pair]

    # Pair i is (vector[i], vector[i + half]), seen as one complex number.
    def rotate(vector, position):
        pairs = (vector[:half] + 1j * vector[half:]) * np.exp(1j * position * speeds)
        return np.concatenate([pairs.real, pairs.imag]).astype(np.float32)

    x = weights["embedding"][token_ids]
    for layer in range(config.layers):
        names = [name for name in weights if name.startswith(f"layers.{layer}.")]
        w = {name.split(".")[2]: weights[name] for name in names}

        normed = normalise(x, w["attention_norm"])
        queries = normed @ w["query"].T + w.get("query_bias", 0)
        keys = normed @ w["key"].T + w.get("key_bias", 0)
        values = normed @ w["value"].T + w.get("value_bias", 0)
        mixed = np.zeros((seen, config.heads * config.head_dim), np.float32)
        for head in range(config.heads):
            own = slice(head * config.head_dim, (head + 1) * config.head_dim)
            kv_head = head // config.group  # several query heads read one K and V
            shared = slice(kv_head * config.head_dim, (kv_head + 1) * config.head_dim)
            q, k, v = queries[:, own], keys[:, shared], values[:, shared]
            if config.qk_norm:
                q, k = normalise(q, w["query_norm"]), normalise(k, w["key_norm"])
            q = [rotate(q[row], row) for row in range(seen)]
            k = np.stack([rotate(k[row], row) for row in range(seen)])
            for row in range(seen):
                # The causal mask: only the past, and the row itself.
                scores = k[: row + 1] @ q[row] * np.float32(config.head_dim**-0.5)
                exponentials = np.exp(scores - scores.max())
                mixed[row, own] = exponentials / exponentials.sum() @ v[: row + 1]
        x = x + mixed @ w["output"].T + w.get("output_bias", 0)

        normed = normalise(x, w["ffn_norm"])
        gate, up = normed @ w["gate"].T, normed @ w["up"].T
        # e^-gate may be infinite: the quotient is then 0, as it should be.
        with np.errstate(over="ignore"):
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"].T  # SwiGLU

    head = weights.get("head", weights["embedding"])
    return normalise(x, weights["final_norm"]) @ head.T
