"""A trace as JSON that a reader can hold, and back; a stage as lines that a reader can follow."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tinyinfer.errors import BadInput
from tinyinfer.performance.transfer import RequestTiming
from tinyinfer.serving.trace import (
    DecodeStage,
    PrefillStage,
    RequestStage,
    ResultStage,
    Rows,
    Stage,
    Token,
    Trace,
    TransferStage,
    count_rows,
)

_SHORTENED = "the trace is shortened for people; only one that was written with full=True can be read back"


def trace_as_dict(trace: Trace, full: bool = False) -> dict[str, Any]:
    """Plain numbers, lists and mappings; arrays shortened for people, or whole with `full`."""
    return {
        "request": stage_as_dict(trace.request, full),
        "prefill": stage_as_dict(trace.prefill, full),
        "transfer": None if trace.transfer is None else stage_as_dict(trace.transfer, full),
        "decode": [stage_as_dict(step, full) for step in trace.decode],
        "result": stage_as_dict(trace.result, full),
    }


def trace_to_json(trace: Trace, full: bool = False) -> str:
    """The trace as JSON text. Only with `full` can it be read back."""
    return format_json(trace_as_dict(trace, full))


def write_trace(trace: Trace, path: str | Path, full: bool = False) -> None:
    """Write the JSON whole or not at all: a file that was there stays until the new one is complete."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(trace_to_json(trace, full) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as wrong:
        raise BadInput(f"the trace cannot be written to {path}: {wrong.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def trace_from_json(text: str) -> Trace:
    """Read a trace that was written with `full`. Raises `BadInput` when it is shortened, damaged or inconsistent."""
    try:
        fields = json.loads(text)
    except ValueError as wrong:
        raise BadInput(f"the trace is no JSON: {wrong}") from None
    try:
        return _trace_from_fields(fields)
    except (KeyError, TypeError, AttributeError) as wrong:
        raise BadInput(f"the trace lacks or misplaces a field: {wrong}") from None


def _trace_from_fields(fields: dict[str, Any]) -> Trace:
    def tokens(listed: list[dict]) -> tuple[Token, ...]:
        return tuple(Token(**token) for token in listed)

    request, prefill, transfer, result = (fields[name] for name in ("request", "prefill", "transfer", "result"))
    return Trace(
        RequestStage(**request | {"input_tokens": tokens(request["input_tokens"])}),
        PrefillStage(
            prefill["request_id"],
            _rows_from_lists(prefill["kv_cache"]),
            _array_from_list(prefill["first_token_logits"]),
            Token(**prefill["next_token"]),
        ),
        None
        if transfer is None
        else TransferStage(
            **transfer
            | {
                "generated_tokens": tokens(transfer["generated_tokens"]),
                "next_token": Token(**transfer["next_token"]),
            }
        ),
        tuple(
            DecodeStage(
                step["request_id"],
                tokens(step["generated_tokens"]),
                Token(**step["next_token"]),
                _rows_from_lists(step["appended"]),
            )
            for step in fields["decode"]
        ),
        ResultStage(**result | {"timing": RequestTiming.from_dict(result["timing"])}),
    )


def stage_as_dict(stage: Stage, full: bool = False) -> dict[str, Any]:
    """One stage in plain numbers, lists and mappings."""
    fields = {name: getattr(stage, name) for name in stage.__dataclass_fields__}
    return {name: _plain(value, full) for name, value in fields.items()}


def format_json(value: Any, indent: str = "") -> str:
    """JSON text in which a row of numbers, or a token beside its id, stays on one line."""
    parts = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    if not any(isinstance(part, (list, dict)) for part in parts):
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + "  "
    texts = [format_json(part, deeper) for part in parts]
    if isinstance(value, dict):
        names = (json.dumps(name, ensure_ascii=False) for name in value)
        texts = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    first, last = "[]" if isinstance(value, list) else "{}"
    return f"{first}\n{deeper}" + f",\n{deeper}".join(texts) + f"\n{indent}{last}"


def _plain(value: Any, full: bool) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist() if full else _shortened(value)
    if isinstance(value, Token):
        return {"id": value.id, "text": value.text}
    if isinstance(value, RequestTiming):
        return asdict(value) | {"token_seconds": list(value.token_seconds)}
    if isinstance(value, Mapping):
        items = list(value.items())
        if not full and len(items) > 4:
            items = [*items[:2], ("...", f"{len(items) - 3} more"), items[-1]]
        return {name: _plain(part, full) for name, part in items}
    if isinstance(value, tuple):
        return [_plain(part, full) for part in value]
    return value


def _shortened(array: np.ndarray, ends: int = 6) -> list:
    """Rounded, with the middle of long axes left out. A row of twelve is still whole: toy's tables and logits are."""
    shown = [round(float(part), 4) if array.ndim == 1 else _shortened(array[i], ends) for i, part in enumerate(array)]
    return shown if len(shown) <= 2 * ends else [*shown[: ends // 2], "...", *shown[-ends // 2 :]]


def _rows_from_lists(nested: dict) -> Rows:
    if "..." in nested:
        raise BadInput(_SHORTENED)
    return {
        layer: {
            head: {kind: _array_from_list(block, columns=True) for kind, block in kinds.items()}
            for head, kinds in heads.items()
        }
        for layer, heads in nested.items()
    }


def _array_from_list(numbers: list, columns: bool = False) -> np.ndarray:
    try:
        array = np.array(numbers, np.float32)
    except ValueError:
        raise BadInput(_SHORTENED) from None
    if array.ndim != (2 if columns else 1):
        raise BadInput(f"the trace holds an array of {array.ndim} axes where {2 if columns else 1} belong")
    return array


def describe_stage(stage: Stage, full: bool = False) -> str:
    """One stage in words and tables, for people: what went in, what came out."""
    body = ""
    match stage:
        case RequestStage():
            title = f"request {stage.request_id}: {stage.prompt}"
            body = f"input tokens {_say(stage.input_tokens)}"
        case PrefillStage():
            rows = count_rows(stage.kv_cache)
            title = f"prefill: {rows} tokens in, {rows} rows of K and V per layer and head"
            logits = format_json(_plain(stage.first_token_logits, full))
            body = f"{_say_rows(stage.kv_cache, full)}\nlogits {logits}\nlargest: {_say([stage.next_token])}"
        case TransferStage():
            title = f"transfer: {stage.bytes:,} bytes, in hand {_say([stage.next_token])}"
            body = f"checksums {format_json(_plain(stage.checksums, full))}"
        case DecodeStage():
            title = f"decode: {_say(stage.generated_tokens[-1:])} in, one row appended, {_say([stage.next_token])} next"
            body = _say_rows(stage.appended, full)
        case ResultStage():
            timing = stage.timing
            title = f"result {stage.request_id}: {stage.final_output}"
            parts = {
                "queue": timing.queue_seconds,
                "prefill": timing.prefill_seconds,
                "decode queue": timing.decode_queue_seconds,
                "transfer": timing.transfer_seconds,
                "first step": timing.first_step_seconds,
            }
            body = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in parts.items())
            body += f"\nfirst token after {timing.ttft_seconds * 1e3:.1f} ms"
            body += f", first of the decode worker after {timing.decode_ttft_seconds * 1e3:.1f} ms"
    return f"\n{title}\n" + "\n".join(f"  {line}" for line in body.splitlines())


def _say(tokens: Sequence[Token]) -> str:
    return " ".join(f"{token.text}({token.id})" for token in tokens)


def _say_rows(rows: Rows, full: bool) -> str:
    return "\n".join(
        f"{layer} {head} {kind} {json.dumps(_plain(block, full))}"
        for layer, heads in rows.items()
        for head, kinds in heads.items()
        for kind, block in kinds.items()
    )
