"""GGUF files: config from the header, weights dequantised by the `gguf` package, tokenizer rebuilt."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors

from tinyinfer.errors import BadInput
from tinyinfer.loading.gguf_header import GGUFHeader, StoredTensor, read_header
from tinyinfer.loading.tokenizer import Tokenizer
from tinyinfer.model.config import ModelConfig, weight_shapes

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
    if importlib.util.find_spec("gguf") is None:
        raise BadInput("GGUF files need the package gguf: pip install 'tinyinfer[gguf]'")
    header = read_header(path)
    config = _read_config(path, header.fields, {tensor.name for tensor in header.tensors})
    tokenizer = _read_tokenizer(path, header.fields, config.bos_id)
    weights = _read_weights(path, header, config)
    if header.fields["general.architecture"] == "llama":
        _unpermute(config, weights)
    return config, weights, tokenizer


def _read_weights(path: Path, header: GGUFHeader, config: ModelConfig) -> dict[str, np.ndarray]:
    if config.layers > len(header.tensors):  # asked before a name is made for each weight of each layer
        raise BadInput(f"{path} holds {len(header.tensors)} tensors, too few for {config.layers} layers")
    shapes, weights = weight_shapes(config), {}
    left = len(header.data)  # tensors may not claim the same bytes again and again
    for tensor in header.tensors:
        name = _our_name(tensor.name)
        if tensor.name == "rope_freqs.weight":
            raise BadInput(f"{path}: rope_freqs.weight (scaled RoPE) in GGUF files is not supported")
        if name not in shapes:
            raise BadInput(f"{path}: tensor {tensor.name} is not part of a {config.name} decoder")
        if name in weights:
            raise BadInput(f"{path}: tensor {tensor.name} is there twice")
        if tensor.shape != shapes[name]:
            raise BadInput(f"{path}: tensor {tensor.name} has shape {tensor.shape}; the header asks for {shapes[name]}")
        stored = _stored_bytes(path, header, tensor)
        left -= stored.size
        if left < 0:
            raise BadInput(f"{path} is damaged: its tensors claim more bytes than it has")
        weights[name] = _dequantise(path, tensor, stored)
    return weights


def _stored_bytes(path: Path, header: GGUFHeader, tensor: StoredTensor) -> np.ndarray:
    """The tensor's bytes, row by row, shape (*rows, bytes of a row); nothing is copied yet."""
    import gguf

    try:
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.quantisation)]
    except (ValueError, KeyError):
        raise BadInput(f"{path}: {tensor.name} has quantisation {tensor.quantisation}, not supported") from None
    *rows, columns = tensor.shape
    if columns % block:
        raise BadInput(f"{path}: {tensor.name} has rows of {columns} numbers, not a multiple of its block of {block}")
    shape = (*rows, columns // block * block_bytes)
    size = math.prod(shape)
    if tensor.start + size > len(header.data):
        raise BadInput(f"{path} is truncated: {tensor.name} ends at byte {tensor.start + size} of {len(header.data)}")
    return np.frombuffer(header.data, np.uint8, size, tensor.start).reshape(shape)


def _dequantise(path: Path, tensor: StoredTensor, stored: np.ndarray) -> np.ndarray:
    import gguf

    kind = gguf.GGMLQuantizationType(tensor.quantisation)
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused, by name, once everything is read
            return np.array(gguf.quants.dequantize(stored, kind), dtype=np.float32)
    except NotImplementedError:
        raise BadInput(f"{path}: {tensor.name} has quantisation {kind.name}, not supported") from None


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
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadInput(f"{path}: {architecture}.{field} is {str(value)[:40]!r}; it must be a number")
        return value

    scaling = fields.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise BadInput(f"{path}: {architecture}.rope.scaling.type is {scaling!r}; supported is none")
    if experts := read("expert_count", 0):
        raise BadInput(f"{path}: {architecture}.expert_count is {experts}; mixtures of experts are not supported")
    pieces = fields.get("tokenizer.ggml.tokens")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise BadInput(f"{path}: tokenizer.ggml.tokens is missing or no list of texts")
    heads, model_dim = read("attention.head_count"), read("embedding_length")
    head_dim = read("attention.key_length", model_dim // max(heads, 1))
    for field in ("rope.dimension_count", "attention.value_length"):
        if read(field, head_dim) != head_dim:
            raise BadInput(f"{path}: {architecture}.{field} is {read(field)}, head_dim {head_dim}; they must be equal")
    for field in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"):
        if (token_id := fields.get(field)) is not None and token_id not in range(len(pieces)):
            raise BadInput(f"{path}: {field} is {token_id!r}; the vocabulary has {len(pieces)} tokens")
    end_of_text = fields.get("tokenizer.ggml.eos_token_id")
    return ModelConfig(
        name=str(fields.get("general.name", path.stem)),
        layers=read("block_count"),
        model_dim=model_dim,
        heads=heads,
        kv_heads=read("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_dim=read("feed_forward_length"),
        vocab=len(pieces),
        max_context=read("context_length"),
        rope_base=float(read("rope.freq_base", 10_000.0)),
        rms_eps=float(read("attention.layer_norm_rms_epsilon")),
        tied_head="output.weight" not in tensor_names,
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        qk_norm="blk.0.attn_q_norm.weight" in tensor_names,
        sliding_window=read("attention.sliding_window", 0) or None,
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


def _read_tokenizer(path: Path, fields: dict[str, Any], bos_id: int | None) -> Tokenizer:
    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        raise BadInput(f"{path}: tokenizer.ggml.model is {kind!r}; supported is 'gpt2' (byte-level BPE)")
    if not isinstance(split, str) or split not in _SPLITS:
        raise BadInput(f"{path}: tokenizer.ggml.pre is {split!r}; supported: {', '.join(_SPLITS)}")
    pieces = fields["tokenizer.ggml.tokens"]
    kinds = fields.get("tokenizer.ggml.token_type") or [1] * len(pieces)
    control, user_defined = 3, 4  # gguf.TokenType
    llama3 = split == "llama-bpe"  # such files take whole pieces before merges, and begin with bos unless they say no
    try:
        merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        inner = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=llama3))
        inner.add_tokens([piece for piece, kind in zip(pieces, kinds, strict=True) if kind == user_defined])
        inner.add_special_tokens([piece for piece, kind in zip(pieces, kinds, strict=True) if kind == control])
    except Exception as wrong:  # the library raises bare Exception, for instance for a merge of unknown pieces
        raise BadInput(f"{path}: the tokenizer in the header cannot be used: {wrong!r}") from None
    rules = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in _SPLITS[split]]
    inner.pre_tokenizer = pre_tokenizers.Sequence([*rules, pre_tokenizers.ByteLevel(False, use_regex=False)])
    inner.decoder = decoders.ByteLevel()
    if fields.get("tokenizer.ggml.add_bos_token", llama3) and bos_id is not None:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{pieces[bos_id]} $A", special_tokens=[(pieces[bos_id], bos_id)]
        )
    template = fields.get("tokenizer.chat_template")
    eos_id = fields.get("tokenizer.ggml.eos_token_id")
    return Tokenizer(
        inner,
        template if isinstance(template, str) else None,
        bos_token="" if bos_id is None else pieces[bos_id],
        eos_token="" if eos_id is None else pieces[eos_id],
    )
