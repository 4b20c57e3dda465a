"""The `tinyinfer` command: generate text, list models."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

import tinyinfer
from tinyinfer.performance.metrics import timing_from_timestamps

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    model: Annotated[str, typer.Option(help="Name, folder, .gguf file or hub id.")] = "tang",
    max_new_tokens: Annotated[int, typer.Option(help="Stop after so many tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k most likely tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Sample among the most likely tokens that reach this probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat format.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Go on from PROMPT, printing the text as it is made, then TTFT, TPOT and tokens per second."""
    language_model = tinyinfer.load(model)
    tokenizer = language_model.tokenizer
    # A chat template writes its own special tokens, bos included, so the tokenizer must not add them again.
    prompt_ids = (
        tokenizer.encode(tokenizer.apply_chat_template(prompt), special=False) if chat else tokenizer.encode(prompt)
    )
    events = []
    for event in language_model.stream(prompt_ids, max_new_tokens, temperature, top_k, top_p, seed):
        events.append(event)
        if not as_json:
            print(event.text, end="", flush=True)
    timing = timing_from_timestamps(0.0, [event.seconds for event in events])
    if as_json:
        answer = {
            "text": "".join(event.text for event in events),
            "prompt_token_ids": prompt_ids,
            "token_ids": [event.token_id for event in events],
            "timing": asdict(timing),
            "model": language_model.config.name,
            "backend": language_model.backend,
        }
        print(json.dumps(answer, ensure_ascii=False))
    else:
        tpot = "-" if timing.tpot_seconds is None else f"{timing.tpot_seconds * 1e3:.2f} ms"
        rate = len(events) / timing.e2e_seconds
        print(f"\n\nTTFT {timing.ttft_seconds * 1e3:.1f} ms, TPOT {tpot}, {rate:.1f} tokens per second")


@app.command()
def models() -> None:
    """List the models that can be loaded here by name."""
    for name, origin in tinyinfer.available_models().items():
        print(f"{name:16} {origin}")


def main() -> None:
    """Run the command; wrong input prints one line and exits with 2."""
    # Text is UTF-8 wherever the command runs, also under a C locale.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    try:
        app()
    except tinyinfer.BadInput as wrong:
        print(f"tinyinfer: {wrong}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
