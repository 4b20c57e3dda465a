"""GGUF files, read through the `gguf` package: config from the header, weights dequantised, tokenizer rebuilt."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors

from tinyinfer.errors import BadInput
from tinyinfer.loading.tokenizer import Tokenizer
from tinyinfer.model.config import ModelConfig

_LAYER_NAMES = {
    "attn_norm": "attention_norm",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "output",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
_NAMES = {"token_embd.weight": "embedding", "output_norm.weight": "final_norm", "output.weight": "head"}
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_SMALLEST_ENTRY = 8  # bytes that any header entry takes at least: bounds the counts that a header may claim

# How text is split before byte-level BPE merges: the names that llama.cpp gives these rules (llama-vocab.cpp).
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "qwen2": [_QWEN2],
    "llama-bpe": [_QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")],
}


def read_gguf(path: Path) -> tuple[ModelConfig, dict[str, np.ndarray], Tokenizer]:
    """Config, float32 weights under our names, and the tokenizer that the header describes."""
    try:
        import gguf
    except ImportError:
        raise BadInput("GGUF files need the package gguf: pip install 'tinyinfer[gguf]'") from None
    _check_start(path)
    try:
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = _read_config(path, fields, {tensor.name for tensor in reader.tensors})
        weights = {}
        for tensor in reader.tensors:
            name = _our_name(tensor.name)
            if name is None:
                if tensor.name == "rope_freqs.weight":
                    raise BadInput(f"{path}: rope_freqs.weight (scaled RoPE) in GGUF files is not supported")
                raise BadInput(f"{path}: tensor {tensor.name} is not part of a {config.name} decoder")
            try:
                weights[name] = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            except NotImplementedError:
                raise BadInput(
                    f"{path}: {tensor.name} has quantisation {tensor.tensor_type.name}, not supported"
                ) from None
        tokenizer = _read_tokenizer(path, fields)
    except BadInput:
        raise
    # The reader trusts the header; a damaged one surfaces as whatever broke first.
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        OverflowError,
        UnicodeDecodeError,
        OSError,
        MemoryError,
    ) as wrong:
        raise BadInput(f"{path} is truncated or damaged: {type(wrong).__name__}: {wrong}") from None
    if fields["general.architecture"] == "llama":
        _unpermute(config, weights)
    return config, weights, tokenizer


def _check_start(path: Path) -> None:
    """Magic, version and counts, before any of them is believed."""
    try:
        with path.open("rb") as file:
            start = file.read(24)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except OSError as wrong:
        raise BadInput(f"{path} cannot be read: {wrong}") from None
    if start[:4] != b"GGUF":
        raise BadInput(f"{path} begins with {start[:4]!r}; a GGUF file begins with b'GGUF'")
    if len(start) < 24:
        raise BadInput(f"{path} is truncated: {len(start)} bytes, less than the 24 of a GGUF header")
    version, tensors, entries = struct.unpack("<IQQ", start[4:])
    if version not in (2, 3):
        raise BadInput(f"{path} is GGUF version {version}; supported are 2 and 3")
    size = path.stat().st_size
    if (tensors + entries) * _SMALLEST_ENTRY > size:
        raise BadInput(f"{path} is truncated or damaged: {tensors} tensors and {entries} entries in {size} bytes")


def _our_name(name: str) -> str | None:
    if name.startswith("blk."):
        layer, _, rest = name.removeprefix("blk.").partition(".")
        base, _, kind = rest.rpartition(".")
        if base in _LAYER_NAMES and kind in ("weight", "bias"):
            return f"layers.{layer}.{_LAYER_NAMES[base]}" + ("_bias" if kind == "bias" else "")
        return None
    return _NAMES.get(name)


def _read_config(path: Path, fields: dict[str, Any], tensor_names: set[str]) -> ModelConfig:
    architecture = fields.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise BadInput(f"{path}: general.architecture is {architecture!r}; supported: {', '.join(_ARCHITECTURES)}")

    def read(field: str, default: Any = None) -> Any:
        value = fields.get(f"{architecture}.{field}", default)
        if value is None:
            raise BadInput(f"{path}: the header has no field {architecture}.{field}")
        return value

    scaling = read("rope.scaling.type", "none")
    if scaling != "none":
        raise BadInput(f"{path}: {architecture}.rope.scaling.type is {scaling!r}; supported is none")
    if read("expert_count", 0):
        raise BadInput(
            f"{path}: {architecture}.expert_count is {read('expert_count')}; mixtures of experts are not supported"
        )
    heads, model_dim = read("attention.head_count"), read("embedding_length")
    if not isinstance(heads, int) or heads < 1:
        raise BadInput(f"{path}: {architecture}.attention.head_count is {heads!r}; it must be at least 1")
    head_dim = read("attention.key_length", model_dim // heads)
    rotated = read("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise BadInput(
            f"{path}: {architecture}.rope.dimension_count is {rotated}, head_dim {head_dim}; they must be equal"
        )
    end_of_text = fields.get("tokenizer.ggml.eos_token_id")
    return ModelConfig(
        name=str(fields.get("general.name", path.stem)),
        layers=read("block_count"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=read("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_dim=read("feed_forward_length"),
        vocab=len(fields["tokenizer.ggml.tokens"]),
        max_context=read("context_length"),
        rope_base=float(read("rope.freq_base", 10_000.0)),
        rms_eps=float(read("attention.layer_norm_rms_epsilon")),
        tied_head="output.weight" not in tensor_names,
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
        sliding_window=fields.get(f"{architecture}.attention.sliding_window") or None,
        bos_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_ids=() if end_of_text is None else (end_of_text,),
    )


def _unpermute(config: ModelConfig, weights: dict[str, np.ndarray]) -> None:
    """Undo llama.cpp's row order of Q and K, which places the two halves of each RoPE pair side by side.

    Only files of architecture `llama` are stored so; the others keep the order of Hugging Face.
    """
    for name in list(weights):
        kind = name.rpartition(".")[2].removesuffix("_bias")
        heads = {"query": config.heads, "key": config.kv_heads}.get(kind)
        if heads is not None:
            array = weights[name]
            pairs = array.reshape(heads, config.head_dim // 2, 2, *array.shape[1:])
            weights[name] = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _read_tokenizer(path: Path, fields: dict[str, Any]) -> Tokenizer:
    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        raise BadInput(f"{path}: tokenizer.ggml.model is {kind!r}; supported is 'gpt2' (byte-level BPE)")
    if split not in _SPLITS:
        raise BadInput(f"{path}: tokenizer.ggml.pre is {split!r}; supported: {', '.join(_SPLITS)}")
    pieces, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    inner = tokenizers.Tokenizer(
        models.BPE(
            {piece: index for index, piece in enumerate(pieces)}, [tuple(merge.split(" ", 1)) for merge in merges]
        )
    )
    rules = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in _SPLITS[split]]
    inner.pre_tokenizer = pre_tokenizers.Sequence([*rules, pre_tokenizers.ByteLevel(False, use_regex=False)])
    inner.decoder = decoders.ByteLevel()
    control = 3  # gguf.TokenType.CONTROL
    kinds = fields.get("tokenizer.ggml.token_type") or [1] * len(pieces)
    inner.add_special_tokens([piece for piece, kind in zip(pieces, kinds, strict=True) if kind == control])
    if fields.get("tokenizer.ggml.add_bos_token") and (bos := fields.get("tokenizer.ggml.bos_token_id")) is not None:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{pieces[bos]} $A", special_tokens=[(pieces[bos], bos)]
        )
    return Tokenizer(inner, fields.get("tokenizer.chat_template"))
