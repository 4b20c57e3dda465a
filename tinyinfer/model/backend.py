"""From a backend's name, device and dtype to the operations that a decoder computes with."""

import importlib.util
from typing import Any

from tinyinfer.errors import BadInput
from tinyinfer.model import numpy_ops

DECODE = ("eager", "compiled", "captured")


def backend_options(backend: str, device: str | None, dtype: str | None, decode: str = "eager") -> dict[str, Any]:
    """The arguments `ops`, `backend`, `accelerate` and `decode` of a `LanguageModel`.

    PyTorch is imported here, and only when it is asked for. Raises `BadInput` for what is unknown or not here.
    """
    if decode not in DECODE:
        raise BadInput(f"decode is {decode!r}; allowed: {', '.join(DECODE)}")
    if backend == "numpy":
        if device not in (None, "cpu"):
            raise BadInput(f"device is {device!r}; backend numpy computes on the cpu only: add backend torch")
        if dtype not in (None, "float32", "fp32"):
            raise BadInput(f"dtype is {dtype!r}; backend numpy computes in float32 only: add backend torch")
        if decode != "eager":
            raise BadInput(f"decode is {decode!r}; backend numpy knows only eager: add backend torch")
        return {"ops": numpy_ops, "backend": "numpy"}
    if backend != "torch":
        raise BadInput(f"backend is {backend!r}; allowed: numpy, torch")
    if importlib.util.find_spec("torch") is None:
        raise BadInput("backend torch needs PyTorch, which is not installed: pip install 'tinyinfer[torch]'")
    from tinyinfer.model import torch_ops, torch_step

    accelerate = {"eager": None, "compiled": torch_step.compiled, "captured": torch_step.captured}[decode]
    ops = torch_ops.on(device or "cpu", dtype or "float32")
    if decode == "compiled" and ops.device.type == "cpu":
        torch_step.require_compiler()
    if decode == "captured" and ops.device.type != "cuda":
        raise BadInput(f"decode is 'captured'; a CUDA graph needs device cuda, and this is {ops.device}")
    return {"ops": ops, "backend": "torch", "accelerate": accelerate, "decode": decode}
