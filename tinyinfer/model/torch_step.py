"""Two ways to run a decode step faster than PyTorch does operation by operation: compile it, or capture it.

Both need a step whose shapes never change; `DecodePass` is one.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tinyinfer.errors import BadInput

Step = Callable[[torch.Tensor, Any], torch.Tensor]


def compiled(step: Step) -> Step:
    """The step with its small operations fused into few kernels by `torch.compile`; the first call compiles it."""
    return torch.compile(step)


def require_compiler() -> None:
    """Raise `BadInput` unless `torch.compile` finds on this machine what it needs to make kernels for the processor."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as PyTorch chooses
    lacking = [] if shutil.which(name) else [f"the C++ compiler {name}"]
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        lacking.append("Python's own header files")
    if lacking:
        remedy = "on Debian: apt install g++ python3-dev"
        raise BadInput(f"decode is 'compiled'; torch.compile lacks {' and '.join(lacking)} ({remedy})")


def captured(step: Step) -> Step:
    """The step as a CUDA graph, recorded at the first call."""
    return CapturedStep(step)


class CapturedStep:
    """A step as a CUDA graph: recorded once, then started whole, one launch for all its kernels.

    The first call of a pass records it. Recording runs the step, which moves the pass on, so it is put back after.
    """

    def __init__(self, step: Step):
        if not torch.cuda.is_available():
            raise BadInput("decode is 'captured'; a CUDA graph needs a CUDA device, and PyTorch finds none here")
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, token_ids: torch.Tensor, decode_pass: Any) -> torch.Tensor:
        """Run the step on new token ids; always with the pass of the first call."""
        if self.graph is None:
            self._record(token_ids, decode_pass)
        self.inputs.copy_(token_ids)
        self.graph.replay()  # type: ignore[union-attr]
        return self.outputs

    def _record(self, token_ids: torch.Tensor, decode_pass: Any) -> None:
        self.inputs, lengths = token_ids.clone(), decode_pass.lengths.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # lazy set-up of libraries must not be recorded
            for _ in range(2):
                self.step(self.inputs, decode_pass)
                decode_pass.lengths.copy_(lengths)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.step(self.inputs, decode_pass)
        decode_pass.lengths.copy_(lengths)
