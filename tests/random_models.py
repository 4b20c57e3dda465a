"""Small random decoders for tests. Sizes are primes where they may be, so that swapped axes never pass."""

import numpy as np

from tinyinfer.model.config import ModelConfig, weight_shapes


def make_config(**changes) -> ModelConfig:
    sizes = dict(
        name="random", layers=3, model_dim=29, heads=6, kv_heads=2, head_dim=10, ffn_dim=37, vocab=41, max_context=97
    )
    return ModelConfig(**(sizes | changes))


def make_weights(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        spread = shape[-1] ** -0.5 if len(shape) == 2 else 0.3
        centre = 1.0 if name.endswith("norm") else 0.0
        weights[name] = (centre + spread * generator.standard_normal(shape)).astype(np.float32)
    return weights
