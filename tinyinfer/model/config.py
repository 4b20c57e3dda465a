"""The numbers that define a Llama-family decoder, and the name and shape of every weight they imply."""

import math
from dataclasses import dataclass

from tinyinfer.errors import BadInput


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's stretching of slow rotations (`rope_type: llama3`), so that long contexts stay distinguishable.

    Source: the `llama3` branch of `modeling_rope_utils.py` in Hugging Face transformers.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self) -> None:
        if not (self.factor > 0 and 0 < self.low_freq_factor < self.high_freq_factor and self.original_context > 0):
            raise BadInput(f"config: {self}; all must be positive and low_freq_factor below high_freq_factor")


@dataclass(frozen=True)
class ModelConfig:
    """The shape of one decoder. Every size counts elements, never bytes."""

    name: str
    layers: int
    model_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab: int
    max_context: int
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_eps: float = 1e-5
    tied_head: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in ("layers", "model_dim", "heads", "kv_heads", "head_dim", "ffn_dim", "vocab", "max_context"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInput(f"config field {field} is {value!r}; it must be a whole number of at least 1")
        if self.heads % self.kv_heads:
            raise BadInput(f"config: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise BadInput(f"config field head_dim is {self.head_dim}; RoPE rotates pairs, so it must be even")
        if not 0 <= self.rms_eps < math.inf or not 0 < self.rope_base < math.inf:
            raise BadInput(
                f"config: rms_eps is {self.rms_eps} and rope_base is {self.rope_base}; both must be positive"
            )
        for token_id in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
                raise BadInput(f"config: bos or eos token id is {token_id!r}; it must be a whole number of at least 0")
        window = self.sliding_window
        if window is not None and (not isinstance(window, int) or isinstance(window, bool) or window < 1):
            raise BadInput(f"config field sliding_window is {window!r}; it must be a whole number of at least 1")

    @property
    def group(self) -> int:
        """How many query heads share one key/value head (1 is multi-head attention)."""
        return self.heads // self.kv_heads

    def kv_bytes_per_token(self, bytes_per_number: int = 2) -> int:
        """Bytes that one token adds to the KV cache: K and V, every layer, every *key/value* head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_number


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of one layer's weights. Matrices are (out, in), as checkpoints store them."""
    query_dim, kv_dim = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (config.model_dim,),
        "query": (query_dim, config.model_dim),
        "key": (kv_dim, config.model_dim),
        "value": (kv_dim, config.model_dim),
        "output": (config.model_dim, query_dim),
        "ffn_norm": (config.model_dim,),
        "gate": (config.ffn_dim, config.model_dim),
        "up": (config.ffn_dim, config.model_dim),
        "down": (config.model_dim, config.ffn_dim),
    }
    if config.qkv_bias:
        shapes |= {"query_bias": (query_dim,), "key_bias": (kv_dim,), "value_bias": (kv_dim,)}
    if config.output_bias:
        shapes |= {"output_bias": (config.model_dim,)}
    if config.qk_norm:
        shapes |= {"query_norm": (config.head_dim,), "key_norm": (config.head_dim,)}
    return shapes


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of the model: `embedding`, `layers.0.query`, ..., `final_norm`, and `head` unless it is tied."""
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocab, config.model_dim)}
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in layer_shapes(config).items()}
    shapes["final_norm"] = (config.model_dim,)
    if not config.tied_head:
        shapes["head"] = (config.vocab, config.model_dim)
    return shapes


# Families whose decoder layer is the one built here; the flag says whether q, k and v always carry a bias.
_FAMILIES = {"llama": False, "mistral": False, "qwen2": True, "qwen3": False}


def config_from_hf(fields: dict, name: str = "model") -> ModelConfig:
    """Read a Hugging Face `config.json`. What it asks for and this decoder lacks raises `BadInput`, named."""

    def need(field: str):
        if fields.get(field) is None:
            raise BadInput(f"config.json has no field {field!r}")
        return fields[field]

    def need_size(field: str) -> int:
        value = need(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInput(f"config.json: {field} is {value!r}; it must be a whole number of at least 1")
        return value

    def flag(field: str) -> bool:
        value = fields.get(field)
        refuse_unless(field, value, (None, False, True))
        return bool(value)

    def number(field: str, value) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e30:
            raise BadInput(f"config.json: {field} is {value!r}; it must be a number")
        return float(value)

    def refuse_unless(field: str, value, allowed) -> None:
        if value not in allowed:
            choices = ", ".join(map(repr, allowed))
            raise BadInput(f"config.json: {field} is {value!r}, which this decoder does not have; supported: {choices}")

    family = need("model_type")
    refuse_unless("model_type", family, tuple(_FAMILIES))
    refuse_unless("hidden_act", fields.get("hidden_act", "silu"), ("silu",))
    refuse_unless("mlp_bias", fields.get("mlp_bias", False), (False,))
    for experts in ("num_experts", "num_local_experts"):
        refuse_unless(experts, fields.get(experts) or 0, (0,))
    refuse_unless("quantization_config", fields.get("quantization_config"), (None,))
    refuse_unless("pretraining_tp", fields.get("pretraining_tp", 1), (1,))

    # transformers 5 writes both under rope_parameters; older files have rope_theta and rope_scaling.
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise BadInput(f"config.json: the RoPE parameters are {rope!r}; one flat object for all layers is supported")
    for place in (fields, rope):
        refuse_unless("partial_rotary_factor", place.get("partial_rotary_factor") or 1.0, (1.0,))
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    refuse_unless("rope_type", rope_type, ("default", "llama3"))
    scaling = None
    if rope_type == "llama3":
        try:
            factor, low, high, original = (
                number(field, rope[field])
                for field in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            )
            scaling = RopeScaling(factor, low, high, int(original))
        except KeyError as missing:
            raise BadInput(f"config.json: rope_type llama3 needs the field {missing}") from None

    layers = need_size("num_hidden_layers")
    refuse_unless("attention_chunk_size", fields.get("attention_chunk_size"), (None,))
    # Defaults where a file is silent are those of the families' configuration classes in transformers.
    window = fields.get("sliding_window", 4096 if family == "mistral" else None)
    if family.startswith("qwen") and (
        not flag("use_sliding_window") or number("max_window_layers", fields.get("max_window_layers", 28)) >= layers
    ):
        window = None
    if (layer_types := fields.get("layer_types")) is not None:
        if not isinstance(layer_types, list):
            raise BadInput(f"config.json: layer_types is {layer_types!r}; it must be a list")
        for kind in layer_types:
            refuse_unless("layer_types", kind, ("full_attention", "sliding_attention"))
        if "sliding_attention" not in layer_types:
            window = None
    attention_bias = flag("attention_bias")
    eos = fields.get("eos_token_id")
    heads = need_size("num_attention_heads")
    return ModelConfig(
        name=name,
        layers=layers,
        model_dim=need_size("hidden_size"),
        heads=heads,
        kv_heads=heads if fields.get("num_key_value_heads") is None else need_size("num_key_value_heads"),
        head_dim=need_size("hidden_size") // heads if fields.get("head_dim") is None else need_size("head_dim"),
        ffn_dim=need_size("intermediate_size"),
        vocab=need_size("vocab_size"),
        max_context=need_size("max_position_embeddings"),
        rope_base=number("rope_theta", rope.get("rope_theta") or fields.get("rope_theta") or 10_000.0),
        rope_scaling=scaling,
        rms_eps=number("rms_norm_eps", fields.get("rms_norm_eps", 1e-6)),
        tied_head=flag("tie_word_embeddings"),
        qkv_bias=_FAMILIES[family] or attention_bias,
        output_bias=attention_bias and family != "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=window,
        bos_id=fields.get("bos_token_id"),
        eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
    )
