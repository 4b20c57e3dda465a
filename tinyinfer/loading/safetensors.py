"""Hugging Face checkpoints: a folder with config.json and safetensors, one file or several."""

import json
from pathlib import Path

import numpy as np
import safetensors

from tinyinfer.errors import BadInput
from tinyinfer.model.config import ModelConfig

_LAYER_NAMES = {
    "input_layernorm.weight": "attention_norm",
    "self_attn.q_proj.weight": "query",
    "self_attn.k_proj.weight": "key",
    "self_attn.v_proj.weight": "value",
    "self_attn.o_proj.weight": "output",
    "self_attn.q_proj.bias": "query_bias",
    "self_attn.k_proj.bias": "key_bias",
    "self_attn.v_proj.bias": "value_bias",
    "self_attn.o_proj.bias": "output_bias",
    "self_attn.q_norm.weight": "query_norm",
    "self_attn.k_norm.weight": "key_norm",
    "post_attention_layernorm.weight": "ffn_norm",
    "mlp.gate_proj.weight": "gate",
    "mlp.up_proj.weight": "up",
    "mlp.down_proj.weight": "down",
}
_NAMES = {"model.embed_tokens.weight": "embedding", "model.norm.weight": "final_norm", "lm_head.weight": "head"}


def our_name(name: str) -> str | None:
    """Our name of a checkpoint's weight; None for what the decoder does not use."""
    if name.startswith("model.layers."):
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        return f"layers.{layer}.{_LAYER_NAMES[rest]}" if rest in _LAYER_NAMES else None
    return _NAMES.get(name)


def read_json(path: Path) -> dict:
    """A JSON object from a file; `BadInput` when the file is missing or is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (ValueError, RecursionError, OSError) as wrong:
        raise BadInput(f"{path} is not readable JSON: {wrong}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path} holds {type(value).__name__}; a JSON object is needed")
    return value


def read_weights(folder: Path, config: ModelConfig) -> dict[str, np.ndarray]:
    """All weights of a folder in float32 under our names."""
    weights: dict[str, np.ndarray] = {}
    for path in _weight_files(folder):
        for name, array in read_file(path).items():
            ours = our_name(name)
            if ours is None:
                # A stored table of RoPE frequencies follows from the config; nothing else may be ignored silently.
                if not name.endswith("rotary_emb.inv_freq"):
                    raise BadInput(f"{path}: tensor {name} is not part of a {config.name} decoder")
            elif not (ours == "head" and config.tied_head):
                weights[ours] = array
    return weights


def read_file(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of one safetensors file as float32. The library checks the header against the file's length."""
    try:
        tensors = safetensors.deserialize(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (safetensors.SafetensorError, OSError, ValueError) as wrong:
        raise BadInput(f"{path} is not a whole safetensors file: {wrong}") from None
    return {name: _as_float32(path, name, tensor) for name, tensor in tensors}


def _as_float32(path: Path, name: str, tensor: dict) -> np.ndarray:
    raw, dtype = tensor["data"], tensor["dtype"]
    if dtype == "BF16":  # the upper half of a float32, so the bits only need to move up
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor["shape"])
    numpy_types = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    if dtype not in numpy_types:
        raise BadInput(f"{path}: tensor {name} has dtype {dtype}; supported are F64, F32, F16 and BF16")
    with np.errstate(over="ignore"):  # a float64 too large becomes infinite, and is refused by name with the others
        return np.frombuffer(raw, numpy_types[dtype]).astype(np.float32).reshape(tensor["shape"])


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadInput(f"{index} has no weight_map")
    names = sorted(set(map(str, weight_map.values())))
    for name in names:
        if Path(name).name != name:
            raise BadInput(f"{index}: shard {name!r} must be a file of the same folder")
    return [folder / name for name in names]
