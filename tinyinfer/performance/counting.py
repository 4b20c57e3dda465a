"""Count the multiply-adds that a run really does, from the shapes of its own matrix products.

Nothing here knows a formula of `cost.py`; the two are compared in tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np


@dataclass
class Tally:
    """What was counted so far. `flops` is two per multiply-add; only matrix products count."""

    flops: int = 0
    matrix_products: int = 0

    def reset(self) -> None:
        """Begin to count from zero."""
        self.flops = self.matrix_products = 0


class CountingArray(np.ndarray):
    """An array whose matrix products, and those of everything computed from it, are added to a tally."""

    tally: Tally | None

    def __array_finalize__(self, source: Any) -> None:
        self.tally = getattr(source, "tally", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        arrays = [value.view(np.ndarray) if isinstance(value, CountingArray) else value for value in inputs]
        if out is not None:
            options["out"] = tuple(x.view(np.ndarray) if isinstance(x, CountingArray) else x for x in out)
        result = getattr(ufunc, method)(*arrays, **options)
        tally = next((x.tally for x in inputs if isinstance(x, CountingArray) and x.tally is not None), self.tally)
        if ufunc is np.matmul and tally is not None:
            # Each number of the result is a dot product over the last axis of the left factor.
            tally.flops += 2 * int(np.size(result)) * arrays[0].shape[-1]
            tally.matrix_products += 1
        if out is not None:
            return out[0]
        return count_into(tally, result) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function, types, args, kwargs):
        result = super().__array_function__(function, types, args, kwargs)
        # np.concatenate and its kin make plain arrays, from which nothing would be counted any more.
        return count_into(self.tally, result) if isinstance(result, np.ndarray) else result


def count_into(tally: Tally | None, array: np.ndarray) -> CountingArray:
    """The same numbers, not copied, with their matrix products counted into `tally`."""
    counting = array.view(CountingArray)
    counting.tally = tally
    return counting


def count_kernels(run: Callable[[], Any]) -> int:
    """How many operations PyTorch starts, one by one, while `run` runs; views of existing numbers are none.

    One that PyTorch puts together from others, as RMSNorm on a CPU, counts as those.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        started = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            with self:  # in inference mode what is put together arrives whole
                result = function.decompose(*arguments, **(options or {}))
            if result is not NotImplemented:
                return result
            given = function._schema.returns
            view = any(each.alias_info is not None and not each.alias_info.is_write for each in given)
            self.started += not view
            return function(*arguments, **(options or {}))

    with Counting() as counting:
        run()
    return counting.started


def counted(model: Any) -> tuple[Any, Tally]:
    """A twin of a NumPy `LanguageModel` on the same weights whose every matrix product is counted."""
    tally, ops = Tally(), model.decoder.ops
    watched = SimpleNamespace(
        **{name: getattr(ops, name) for name in vars(ops) if not name.startswith("_")}
        | {
            "from_numpy": lambda array: count_into(tally, ops.from_numpy(array)) if array.dtype.kind == "f" else array,
            "zeros": lambda shape: count_into(tally, ops.zeros(shape)),
        }
    )
    weights = {name: count_into(tally, array) for name, array in model.weights.items()}
    return type(model)(model.config, weights, model.tokenizer, watched, model.backend, model.fused), tally
