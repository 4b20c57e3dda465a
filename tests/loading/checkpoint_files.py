"""Small random checkpoints written as files: Hugging Face folders and GGUF files of the same weights."""

import json
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL, "

# Sizes differ from each other wherever they can; the wide ones are multiples of 32, the block of GGUF's quantisations.
LLAMA_FIELDS = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 160,
    "vocab_size": len(CHARACTERS) + 1,
    "max_position_embeddings": 131,
    "rms_norm_eps": 1e-5,
    "rope_theta": 7000.0,
    "tie_word_embeddings": False,
    "eos_token_id": None,
}


def character_tokenizer() -> tokenizers.Tokenizer:
    """One token per character; whatever else is <unk>, id 0."""
    inner = tokenizers.Tokenizer(
        models.WordLevel({piece: index for index, piece in enumerate(["<unk>", *CHARACTERS])}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return inner


def random_weights(fields: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights under Hugging Face's names, with the biases that the family has."""
    generator = np.random.default_rng(seed)
    dim, head_dim, ffn = fields["hidden_size"], fields["head_dim"], fields["intermediate_size"]
    query, kv = fields["num_attention_heads"] * head_dim, fields["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (fields["vocab_size"], dim), "model.norm.weight": (dim,)}
    for layer in range(fields["num_hidden_layers"]):
        in_layer = {
            "input_layernorm.weight": (dim,),
            "self_attn.q_proj.weight": (query, dim),
            "self_attn.k_proj.weight": (kv, dim),
            "self_attn.v_proj.weight": (kv, dim),
            "self_attn.o_proj.weight": (dim, query),
            "post_attention_layernorm.weight": (dim,),
            "mlp.gate_proj.weight": (ffn, dim),
            "mlp.up_proj.weight": (ffn, dim),
            "mlp.down_proj.weight": (dim, ffn),
        }
        if fields["model_type"] == "qwen2":
            in_layer |= {"self_attn.q_proj.bias": (query,), "self_attn.k_proj.bias": (kv,)}
            in_layer |= {"self_attn.v_proj.bias": (kv,)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    if not fields["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (fields["vocab_size"], dim)
    return {
        name: (
            ("norm" in name) + (0.3 if len(shape) == 1 else shape[-1] ** -0.5) * generator.standard_normal(shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_folder(folder: Path, fields: dict = LLAMA_FIELDS, weights: dict[str, np.ndarray] | None = None) -> Path:
    """A Hugging Face folder with config.json, model.safetensors and tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    safetensors.numpy.save_file(random_weights(fields) if weights is None else weights, folder / "model.safetensors")
    character_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order of Q and K in GGUF files of architecture llama, as in convert_hf_to_gguf.py of llama.cpp."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def write_gguf(
    path: Path,
    fields: dict = LLAMA_FIELDS,
    weights: dict[str, np.ndarray] | None = None,
    quantisation: str = "F32",
    without: tuple[str, ...] = (),
    **extra_fields,
) -> Path:
    """A GGUF file through the `gguf` package's writer and its own table of names; matrices are quantised."""
    architecture = fields["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    layers, heads, kv_heads = (
        fields[name] for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    )
    writer.add_block_count(layers)
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(fields["head_dim"])
    writer.add_value_length(fields["head_dim"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_rope_freq_base(fields["rope_theta"])
    if "tokenizer.ggml.tokens" not in without:
        # A space is Ġ in the letters of byte-level BPE; the one merged piece takes the place of <unk>.
        writer.add_token_list([*CHARACTERS.replace(" ", "Ġ"), "th"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_merges(["t h"])
    for name, value in extra_fields.items():
        key = name.replace("__", ".")
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](key, value)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), layers)
    kind = gguf.GGMLQuantizationType[quantisation]
    for name, weight in (random_weights(fields) if weights is None else weights).items():
        if architecture == "llama" and "q_proj" in name:
            weight = permute(weight, heads)
        if architecture == "llama" and "k_proj" in name:
            weight = permute(weight, kv_heads)
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        if theirs in without:
            continue
        if weight.ndim == 2 and quantisation != "F32":
            writer.add_tensor(theirs, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
