"""One request as typed records, one per stage.

request -> prefill -> transfer -> decode, once per step -> result. At every stage the cache holds
len(input_tokens) + len(generated_tokens) rows: `generated_tokens` are the output tokens already fed, `next_token` is
chosen and not yet fed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.loading.tokenizer import Tokenizer
from tinyinfer.performance.transfer import RequestTiming

# layer_0 -> head_0 -> "K" or "V" -> [rows, head_dim]
Rows = Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]
Checksums = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Token:
    """A token id beside its text; the end token shows as it is written in the vocabulary, such as `<eos>`."""

    id: int
    text: str


@dataclass(frozen=True)
class RequestStage:
    """What the router accepted."""

    request_id: str
    prompt: str
    input_tokens: tuple[Token, ...]


@dataclass(frozen=True, eq=False)
class PrefillStage:
    """What prefill made: the rows of every input token, and the scores from which the first output token is chosen."""

    request_id: str
    kv_cache: Rows
    first_token_logits: np.ndarray
    next_token: Token


@dataclass(frozen=True)
class TransferStage:
    """What crossed from the prefill to the decode worker. No output token has been fed yet."""

    request_id: str
    bytes: int
    checksums: Checksums
    generated_tokens: tuple[Token, ...]
    next_token: Token


@dataclass(frozen=True, eq=False)
class DecodeStage:
    """One step: the last of `generated_tokens` was fed, its row appended, and `next_token` chosen."""

    request_id: str
    generated_tokens: tuple[Token, ...]
    next_token: Token
    appended: Rows


@dataclass(frozen=True)
class ResultStage:
    """What the client got."""

    request_id: str
    final_output: str
    timing: RequestTiming


Stage = RequestStage | PrefillStage | TransferStage | DecodeStage | ResultStage


@dataclass(frozen=True, eq=False)
class Trace:
    """A whole request. `transfer` is None when the first token ended the request: then no row had to cross.

    Raises `BadInput` when the stages do not belong together or a cache does not hold one row per token fed.
    """

    request: RequestStage
    prefill: PrefillStage
    transfer: TransferStage | None
    decode: tuple[DecodeStage, ...]
    result: ResultStage

    def __post_init__(self) -> None:
        stages = [stage for stage in (*self._before_decode(), *self.decode, self.result) if stage is not None]
        for stage in stages:
            if stage.request_id != self.request.request_id:
                raise BadInput(f"request_id is {stage.request_id!r}; the trace is of {self.request.request_id!r}")
        rows = count_rows(self.prefill.kv_cache)
        check_rows("prefill", rows, len(self.request.input_tokens), 0)
        fed: tuple[Token, ...] = ()
        if self.transfer is not None and self.transfer.generated_tokens != fed:
            raise BadInput(f"transfer: generated_tokens is {self.transfer.generated_tokens}; none is fed before decode")
        chosen = self.prefill.next_token
        for number, step in enumerate(self.decode, start=1):
            rows += count_rows(step.appended)
            check_rows(f"decode step {number}", rows, len(self.request.input_tokens), len(step.generated_tokens))
            fed = (*fed, chosen)
            if step.generated_tokens != fed:
                raise BadInput(f"decode step {number}: generated_tokens is {step.generated_tokens}; fed were {fed}")
            chosen = step.next_token

    def _before_decode(self) -> tuple[Stage | None, ...]:
        return self.request, self.prefill, self.transfer

    @property
    def output_tokens(self) -> tuple[Token, ...]:
        """Every token that was chosen, the last one (never fed) included."""
        return (self.prefill.next_token, *(step.next_token for step in self.decode))


def collect_trace(stages: Sequence[Stage]) -> Trace:
    """The trace of one finished request from its stages, in the order in which they happened."""
    (request,) = (stage for stage in stages if isinstance(stage, RequestStage))
    (prefill,) = (stage for stage in stages if isinstance(stage, PrefillStage))
    transfer = next((stage for stage in stages if isinstance(stage, TransferStage)), None)
    decode = tuple(stage for stage in stages if isinstance(stage, DecodeStage))
    (result,) = (stage for stage in stages if isinstance(stage, ResultStage))
    return Trace(request, prefill, transfer, decode, result)


def name_token(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of one token, or its name in the vocabulary where it has no text, such as `<eos>`."""
    return tokenizer.decode([token_id]) or tokenizer.inner.id_to_token(token_id) or ""


def count_rows(rows: Rows) -> int:
    """How many tokens these rows belong to; `BadInput` when a layer, head, K or V has another number of rows."""
    blocks = {
        f"{layer} {head} {kind}": block
        for layer, heads in rows.items()
        for head, kinds in heads.items()
        for kind, block in kinds.items()
    }
    counts = {len(block) for block in blocks.values()}
    if len(counts) != 1:
        raise BadInput(f"rows differ between layers, heads, K and V: { ({n: len(b) for n, b in blocks.items()}) }")
    return counts.pop()


def check_rows(stage: str, rows: int, input_tokens: int, generated_tokens: int) -> None:
    """The invariant of every stage: one cache row for each token that was fed. Raises `BadInput`."""
    if rows != input_tokens + generated_tokens:
        raise BadInput(
            f"{stage}: the cache has {rows} rows; {input_tokens} input and {generated_tokens} generated tokens were fed"
        )
