import pytest
from random_models import make_config

from tinyinfer import BadInput
from tinyinfer.model.config import config_from_hf, weight_shapes

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


def test_kv_bytes_count_key_value_heads():
    llama_3_8b = make_config(layers=32, heads=32, kv_heads=8, head_dim=128)
    assert llama_3_8b.kv_bytes_per_token() == 131_072


def test_head_dim_need_not_be_hidden_size_over_heads():
    qwen3_0_6b = make_config(layers=28, model_dim=1024, heads=16, kv_heads=8, head_dim=128)
    assert qwen3_0_6b.kv_bytes_per_token() == 114_688
    assert weight_shapes(qwen3_0_6b)["layers.0.query"] == (2048, 1024)


def test_missing_kv_heads_mean_multi_head_attention():
    config = config_from_hf(LLAMA)
    assert (config.kv_heads, config.head_dim, config.rope_base) == (4, 8, 10_000.0)


@pytest.mark.parametrize(
    "spelling", [{"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}]
)
def test_both_spellings_of_the_rope_base_are_read(spelling):
    assert config_from_hf(LLAMA | spelling).rope_base == 5e5


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_scaling_is_read(key):
    scaling = dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    config = config_from_hf(LLAMA | {key: scaling})
    assert config.rope_scaling is not None
    assert (config.rope_scaling.factor, config.rope_scaling.original_context) == (8.0, 8192)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "mixtral"),
        ("hidden_act", "gelu"),
        ("mlp_bias", True),
        ("num_local_experts", 8),
        ("rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("quantization_config", {"bits": 4}),
        ("num_attention_heads", 5),
        ("num_hidden_layers", 0),
        ("vocab_size", None),
        ("hidden_size", "32"),
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused_by_name(field, value):
    name = {"rope_scaling": "rope_type", "num_attention_heads": "kv_heads"}
    changes = {field: value} | ({"num_key_value_heads": 2} if field == "num_attention_heads" else {})
    with pytest.raises(BadInput, match=name.get(field, field)):
        config_from_hf(LLAMA | changes)


def test_an_inactive_sliding_window_is_ignored_and_an_active_one_kept():
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 64}
    assert config_from_hf(qwen).sliding_window is None
    assert config_from_hf(qwen | {"use_sliding_window": True, "max_window_layers": 0}).sliding_window == 64
    assert config_from_hf(LLAMA | {"model_type": "mistral", "sliding_window": 64}).sliding_window == 64


def test_bias_and_norm_follow_the_family():
    assert config_from_hf(LLAMA | {"model_type": "qwen2"}).qkv_bias
    assert not config_from_hf(LLAMA | {"model_type": "qwen2"}).output_bias
    assert config_from_hf(LLAMA | {"model_type": "qwen3"}).qk_norm
    biased = config_from_hf(LLAMA | {"attention_bias": True})
    assert biased.qkv_bias and biased.output_bias


def test_windows_follow_the_defaults_of_each_family():
    assert config_from_hf(LLAMA | {"model_type": "mistral"}).sliding_window == 4096
    assert config_from_hf(LLAMA | {"model_type": "mistral", "sliding_window": None}).sliding_window is None
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}
    assert config_from_hf(qwen).sliding_window is None  # the window begins beyond the last of its two layers
    assert config_from_hf(qwen | {"max_window_layers": 1}).sliding_window == 64


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", ["full_attention", "linear_attention"]),
        ("layer_types", "full_attention"),
        ("attention_chunk_size", 4),
        ("tie_word_embeddings", "false"),
        ("num_key_value_heads", 0),
        ("head_dim", 0),
    ],
)
def test_what_would_be_ignored_is_refused(field, value):
    with pytest.raises(BadInput, match=field):
        config_from_hf(LLAMA | {field: value})
