"""Shapes of published models by name: enough to count their parameters, FLOPs and bytes without downloading them.

Sources: gpt-fast's `model.py` for Llama and Mistral; for Qwen and SmolLM2 the sizes that their authors published, which
a test compares with a table of parameter counts.
"""

from tinyinfer.errors import BadInput, suggestion
from tinyinfer.model.config import ModelConfig, RopeScaling


def find_shape(name: str) -> ModelConfig:
    """The shape called `name`, such as `llama-3-8b`; case does not matter. Raises `BadInput` with near names."""
    key = name.strip().lower()
    if key not in SHAPES:
        near = suggestion(key, SHAPES) or f" Known: {', '.join(SHAPES)}."
        raise BadInput(f"model shape {name!r} is not known.{near}")
    return SHAPES[key]


def _llama2(name: str, layers: int, model_dim: int, heads: int, kv_heads: int, ffn_dim: int) -> ModelConfig:
    return ModelConfig(name, layers, model_dim, heads, kv_heads, 128, ffn_dim, vocab=32_000, max_context=4096)


def _llama3(name: str, layers: int, model_dim: int, heads: int, ffn_dim: int) -> ModelConfig:
    return ModelConfig(
        name, layers, model_dim, heads, 8, 128, ffn_dim, vocab=128_256, max_context=8192, rope_base=500_000.0
    )


def _llama31(name: str, layers: int, model_dim: int, heads: int, ffn_dim: int) -> ModelConfig:
    return ModelConfig(
        name,
        *(layers, model_dim, heads, 8, 128, ffn_dim),
        vocab=128_256,
        max_context=131_072,
        rope_base=500_000.0,
        rope_scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192),
    )


def _qwen25(
    name: str, layers: int, model_dim: int, heads: int, kv_heads: int, ffn_dim: int, tied_head: bool = False
) -> ModelConfig:
    return ModelConfig(
        name,
        *(layers, model_dim, heads, kv_heads, model_dim // heads, ffn_dim),
        vocab=151_936 if tied_head else 152_064,  # the same tokens; the table is padded further in the large models
        max_context=32_768,
        rope_base=1_000_000.0,
        rms_eps=1e-6,
        tied_head=tied_head,
        qkv_bias=True,
    )


def _smollm2(name: str, layers: int, model_dim: int, heads: int, kv_heads: int, ffn_dim: int) -> ModelConfig:
    return ModelConfig(
        name,
        *(layers, model_dim, heads, kv_heads, 64, ffn_dim),
        vocab=49_152,
        max_context=8192,
        rope_base=100_000.0,
        tied_head=True,
    )


SHAPES: dict[str, ModelConfig] = {
    config.name: config
    for config in (
        _llama2("llama-2-7b", 32, 4096, 32, 32, 11_008),
        _llama2("llama-2-13b", 40, 5120, 40, 40, 13_824),
        _llama2("llama-2-70b", 80, 8192, 64, 8, 28_672),
        _llama3("llama-3-8b", 32, 4096, 32, 14_336),
        _llama3("llama-3-70b", 80, 8192, 64, 28_672),
        _llama31("llama-3.1-8b", 32, 4096, 32, 14_336),
        _llama31("llama-3.1-70b", 80, 8192, 64, 28_672),
        _llama31("llama-3.1-405b", 126, 16_384, 128, 53_248),
        ModelConfig("mistral-7b", 32, 4096, 32, 8, 128, 14_336, vocab=32_000, max_context=32_768, rope_base=1e6),
        _qwen25("qwen2.5-0.5b", 24, 896, 14, 2, 4864, tied_head=True),
        _qwen25("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, tied_head=True),
        _qwen25("qwen2.5-3b", 36, 2048, 16, 2, 11_008, tied_head=True),
        _qwen25("qwen2.5-7b", 28, 3584, 28, 4, 18_944),
        _qwen25("qwen2.5-14b", 48, 5120, 40, 8, 13_824),
        _qwen25("qwen2.5-32b", 64, 5120, 40, 8, 27_648),
        _qwen25("qwen2.5-72b", 80, 8192, 64, 8, 29_568),
        # Its heads are wider than model_dim / heads: a head_dim that is not guessed but read.
        ModelConfig(
            "qwen3-0.6b",
            *(28, 1024, 16, 8, 128, 3072),
            vocab=151_936,
            max_context=40_960,
            rope_base=1_000_000.0,
            rms_eps=1e-6,
            tied_head=True,
            qk_norm=True,
        ),
        _smollm2("smollm2-135m", 30, 576, 9, 3, 1536),
        _smollm2("smollm2-360m", 32, 960, 15, 5, 2560),
    )
}
