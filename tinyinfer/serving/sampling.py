"""From logits to the next token, with the random generator passed in."""

import math
from dataclasses import dataclass

import numpy as np

from tinyinfer.errors import BadInput


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 takes the largest logit; the seed then plays no part."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kinds in (
            ("temperature", (int, float)),
            ("top_k", (int, type(None))),
            ("top_p", (int, float)),
            ("seed", int),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise BadInput(
                    f"{name} is {value!r}; it must be a {'whole ' if name in ('top_k', 'seed') else ''}number"
                )
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise BadInput(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise BadInput(f"top_k is {self.top_k}; it must be at least 1")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.seed < 0:
            raise BadInput(f"seed is {self.seed}; it must be 0 or a positive whole number")


def next_token_probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The distribution sampled from, shape (vocab,), float64.

    Temperature first, then top-k, then top-p, which keeps the smallest set of most
    likely tokens whose probabilities reach `top_p` (Holtzman et al., 2020). Needs
    temperature > 0. Of equal logits the lower id comes first.
    """
    # A tiny temperature may give -inf, whose exponential is 0.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - logits.max()) / sampling.temperature
    # Not the order of what is scaled: there, close logits may have become equal.
    order = np.argsort(-logits, kind="stable")
    kept = order[: sampling.top_k]
    probabilities = np.exp(scaled[kept] - scaled[kept[0]])
    probabilities /= probabilities.sum()
    if sampling.top_p < 1:
        size = int(np.searchsorted(np.cumsum(probabilities), sampling.top_p)) + 1
        kept, probabilities = kept[:size], probabilities[:size]
        probabilities /= probabilities.sum()
    result = np.zeros(len(logits))
    result[kept] = probabilities
    return result


def choose_token(logits: np.ndarray, sampling: Sampling, generator: np.random.Generator) -> int:
    """The id of the next token."""
    if not np.isfinite(logits).all():
        raise BadInput("the model's logits are not finite: its weights overflow float32")
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    return int(generator.choice(len(logits), p=next_token_probabilities(logits, sampling)))
