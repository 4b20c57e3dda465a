"""How LLM inference works, in code small enough to read: `tinyinfer.load("tang").generate("白日依山")`."""

from pathlib import Path

from tinyinfer.errors import BadInput
from tinyinfer.loading.checkpoint import available_models, read_checkpoint
from tinyinfer.model.backend import backend_options
from tinyinfer.model.config import ModelConfig
from tinyinfer.serving.language_model import LanguageModel

__version__ = "0.1.0"
__all__ = ["BadInput", "LanguageModel", "ModelConfig", "available_models", "load"]


def load(
    source: str | Path,
    backend: str = "numpy",
    device: str | None = None,
    dtype: str | None = None,
    decode: str = "eager",
) -> LanguageModel:
    """Load a model by name (`tang`, `smollm2-135m`), folder, .gguf file, or Hugging Face hub id (`owner/name`).

    `backend` is "numpy" (float32 on the CPU) or "torch". With torch, `device` is "cpu" (the default), "cuda" or "auto",
    `dtype` "float32" (the default), "bfloat16" or "float16", and `decode` how a decode step is run: "eager", "compiled"
    by torch.compile, or "captured" as a CUDA graph.

    Raises `BadInput` when there is no such model, its files are damaged or ask for what this decoder lacks, or the
    device or dtype is not to be had here.
    """
    options = backend_options(backend, device, dtype, decode)  # refused, if at all, before a file is read
    checkpoint = read_checkpoint(source)
    return LanguageModel(checkpoint.config, checkpoint.weights, checkpoint.tokenizer, **options)
