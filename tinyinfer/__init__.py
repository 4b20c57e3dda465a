"""How LLM inference works, in code small enough to read: `tinyinfer.load("tang").generate("白日依山")`."""

from pathlib import Path

from tinyinfer.errors import BadInput
from tinyinfer.loading.checkpoint import available_models, read_checkpoint
from tinyinfer.model import numpy_ops
from tinyinfer.model.config import ModelConfig
from tinyinfer.serving.language_model import LanguageModel

__version__ = "0.1.0"
__all__ = ["BadInput", "LanguageModel", "ModelConfig", "available_models", "load"]


def load(source: str | Path) -> LanguageModel:
    """Load a model by name (`tang`, `smollm2-135m`), folder, .gguf file, or Hugging Face hub id (`owner/name`).

    Raises `BadInput` when there is no such model, or its files are damaged or ask for what this decoder lacks.
    """
    checkpoint = read_checkpoint(source)
    return LanguageModel(checkpoint.config, checkpoint.weights, checkpoint.tokenizer, numpy_ops)
