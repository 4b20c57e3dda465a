"""The `tinyinfer` command: generate text, list models, predict the times of both phases."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import tinyinfer
from tinyinfer.errors import suggestion
from tinyinfer.loading.checkpoint import EMBEDDED_MODELS, read_checkpoint
from tinyinfer.loading.safetensors import read_json
from tinyinfer.loading.synthetic import RandomWeights
from tinyinfer.model.backend import backend_options
from tinyinfer.model.config import config_from_hf
from tinyinfer.performance import report
from tinyinfer.performance.bench import format_bench, record_path, run_bench
from tinyinfer.performance.ceilings import require_room
from tinyinfer.performance.hardware import Hardware, bytes_per_number, find_hardware
from tinyinfer.performance.memory import largest_batch
from tinyinfer.performance.metrics import timing_from_timestamps
from tinyinfer.performance.prediction import Prediction, critical_batch, critical_context, predict_phases
from tinyinfer.performance.records import RECORDS, write_record
from tinyinfer.performance.shapes import SHAPES, find_shape
from tinyinfer.serving.failures import RequestFailed
from tinyinfer.serving.session import check_capacity
from tinyinfer.serving.trace import collect_trace
from tinyinfer.serving.trace_format import describe_stage, write_trace

Backend = Annotated[str, typer.Option(help="numpy or torch.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or auto; with backend torch.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; with backend torch.")]
Decode = Annotated[str, typer.Option(help="eager, compiled or captured; with backend torch.")]

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
    backend: Backend = "numpy",
    device: Device = None,
    dtype: Dtype = None,
    decode: Decode = "eager",
) -> None:
    """Go on from PROMPT, printing the text as it is made, then TTFT, TPOT and tokens per second."""
    language_model = tinyinfer.load(model, backend, device, dtype, decode)
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


@app.command()
def roofline(
    model: Annotated[str, typer.Option(help="Published shape, embedded model, or a config.json (or its folder).")],
    hardware: Annotated[str, typer.Option(help="Device, such as H200; part of the name will do if it is clear.")],
    prompt: Annotated[list[str], typer.Option(help="Tokens of each prompt.")] = ["2048"],  # noqa: B006
    context: Annotated[list[str], typer.Option(help="Keys that each decode step attends.")] = ["4096"],  # noqa: B006
    batch: Annotated[list[str], typer.Option(help="Batch sizes, comma between.")] = ["1,8,64"],  # noqa: B006
    dtype: Annotated[str, typer.Option(help="What products are computed in.")] = "bf16",
    weight_dtype: Annotated[str | None, typer.Option(help="What weights are stored in, if not in --dtype.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="What the KV cache is stored in, if not in --dtype.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the roofline into this .svg or .png file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Predict FLOPs, bytes, TTFT, TPOT and memory of both phases from a model's shape and a machine's peaks."""
    config, device = find_config(model), find_hardware(hardware)
    prompt_tokens, keys = _one_number("--prompt", prompt), _one_number("--context", context)
    dtypes = (dtype, weight_dtype, kv_dtype)
    predictions = predict_phases(config, device, prompt_tokens, keys, _numbers("--batch", batch), *dtypes)
    weight_bytes, kv_bytes = bytes_per_number(weight_dtype or dtype), bytes_per_number(kv_dtype or dtype)
    fitting = largest_batch(config, device, keys, weight_bytes, kv_bytes)
    if plot is not None:
        _plot_predictions(plot, device, dtype, predictions)
    if as_json:
        rows = [prediction.as_row() for prediction in predictions]
        print(json.dumps({"model": config.name, "hardware": device.name, "rows": rows, "largest_batch": fitting}))
        return
    print(f"{config.name} on {report.describe_hardware(device, dtype)}\n")
    print(f"{report.format_predictions(predictions)}\n")
    print(report.describe_largest_batch(device, keys, fitting))
    if device.flops_per_second:
        enough = critical_batch(config, device, keys, *dtypes)
        print(report.describe_critical_batch(keys, enough, critical_context(config, device, dtype, kv_dtype)))
    print(report.describe_launch_floor(device))
    if max(prompt_tokens, keys) > config.max_context:
        print(f"{config.name} reads at most {config.max_context:,} tokens; this asks for more.")
    if plot is not None:
        print(f"The roofline is drawn in {plot}.")


@app.command()
def bench(
    model: Annotated[str | None, typer.Option(help="Name, folder, .gguf file or hub id.")] = None,
    shape: Annotated[str | None, typer.Option(help="Instead of a model: random weights of this shape.")] = None,
    prompt: Annotated[list[str], typer.Option(help="Tokens of each prompt, comma between.")] = ["128,512,2048"],  # noqa: B006
    batch: Annotated[list[str], typer.Option(help="Batch sizes, comma between.")] = ["1,4,16"],  # noqa: B006
    new: Annotated[int, typer.Option(help="Decode steps of each run.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each, after one to warm up.")] = 5,
    hardware: Annotated[str | None, typer.Option(help="Compare with the published peaks of this device too.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Write the record into --folder.")] = False,
    folder: Annotated[Path, typer.Option(help="Where records are written.")] = RECORDS,
    commit: Annotated[str | None, typer.Option(help="The commit that runs, where git cannot say.")] = None,
    backend: Backend = "numpy",
    device: Device = None,
    dtype: Dtype = None,
    decode: Decode = "eager",
) -> None:
    """Measure TTFT and TPOT beside what this machine's ceilings predict, with MFU, MBU and ITL percentiles."""
    published = None if hardware is None else find_hardware(hardware)
    prompts, batches = _numbers("--prompt", prompt), _numbers("--batch", batch)
    for option, count in (("--new", new), ("--repeats", repeats)):
        if count < 1:
            raise tinyinfer.BadInput(f"{option} is {count}; it must be at least 1")
    if (model is None) == (shape is None):
        raise tinyinfer.BadInput("bench takes either --model or --shape")
    options = backend_options(backend, device, dtype, decode)
    if shape is not None:
        config = find_config(shape)
        require_room(config, options["ops"], max(batches), max(prompts) + new)
        language_model = tinyinfer.LanguageModel(config, RandomWeights(config, options["ops"]), None, **options)
    else:
        language_model = tinyinfer.load(str(model), backend, device, dtype, decode)
    check_capacity(language_model.config, max(prompts) + new)
    with typer.progressbar(length=len(prompts) * len(batches) * 2, label="bench", file=sys.stderr) as bar:
        result = run_bench(language_model, prompts, batches, new, repeats, published, lambda: bar.update(1))
    print(format_bench(result))
    if record:
        path = record_path(folder, result)
        write_record(path, commit=commit, **result)
        print(f"\nThe record is {path.name}.")


@app.command()
def request(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    model: Annotated[str, typer.Option(help="Name, folder, .gguf file or hub id.")] = "toy",
    max_new_tokens: Annotated[int, typer.Option(help="Stop after so many tokens.")] = 8,
    trace: Annotated[Path | None, typer.Option(help="Write the whole walk into this JSON file.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Write and print arrays whole.")] = False,
    address: Annotated[
        str | None, typer.Option(help="Join the Ray cluster at HOST:PORT instead of starting one here.")
    ] = None,
    prefill_workers: Annotated[int, typer.Option(help="So many, each on a node of its own.")] = 1,
    decode_workers: Annotated[int, typer.Option(help="So many, each on a node of its own.")] = 1,
    deadline: Annotated[float, typer.Option(help="Give up after so many seconds.")] = 60.0,
    backend: Backend = "numpy",
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Follow one request through router, prefill worker, transfer and decode worker, each stage as it happens."""
    # Ray and a checksum are needed for nothing else, so they come here.
    from tinyinfer.serving.disaggregate import open_engine
    from tinyinfer.serving.pool import Deadline
    from tinyinfer.serving.router import check_request

    if trace is not None and not trace.resolve().parent.is_dir():
        raise tinyinfer.BadInput(f"--trace is {trace}; there is no folder {trace.resolve().parent}")
    # Wrong input is refused before processes are started for it.
    checkpoint = read_checkpoint(model)
    check_request(checkpoint.config, checkpoint.tokenizer, prompt, max_new_tokens, checkpoint.config.max_context)
    Deadline(deadline)
    with open_engine(model, backend, device, dtype, prefill_workers, decode_workers, address=address) as router:
        stages = []
        for stage in router.walk(prompt, max_new_tokens, deadline_seconds=deadline):
            print(describe_stage(stage, full), flush=True)
            stages.append(stage)
    if trace is not None:
        write_trace(collect_trace(stages), trace, full)
        print(f"\nThe trace is in {trace}.")


def find_config(model: str) -> tinyinfer.ModelConfig:
    """The numbers of a model without its weights: a published shape, an embedded model, a config.json or its folder."""
    known = dict.fromkeys([*SHAPES, *tinyinfer.available_models()])
    if model.strip().lower() in SHAPES:
        return find_shape(model)
    path = EMBEDDED_MODELS / model if model in known else Path(model)
    if not model or not os.path.exists(path):  # unlike Path.exists, false also for a name that is too long
        near = suggestion(model, known) or f" Names: {', '.join(known)}."
        raise tinyinfer.BadInput(f"model {model!r} is not known: no such name, config.json or folder with one.{near}")
    file = path / "config.json" if path.is_dir() else path
    return config_from_hf(read_json(file), file.resolve().parent.name)


def _numbers(option: str, given: list[str]) -> list[int]:
    """Whole numbers from `1,8,64`; an option that is given twice goes on where it stopped."""
    numbers = []
    for text in ",".join(given).split(","):
        # Nothing real has more tokens than a billion, and a float holds their products.
        if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 20 and 1 <= int(text) <= 10**9):
            raise tinyinfer.BadInput(f"{option} has {text!r}; it takes whole numbers from 1 to 1,000,000,000")
        numbers.append(int(text))
    if len(set(numbers)) < len(numbers):
        raise tinyinfer.BadInput(f"{option} is {','.join(given)}: a number is repeated")
    return numbers


def _one_number(option: str, given: list[str]) -> int:
    numbers = _numbers(option, given)
    if len(numbers) > 1:
        raise tinyinfer.BadInput(f"{option} is {','.join(given)}; it takes one number")
    return numbers[0]


def _plot_predictions(path: Path, device: Hardware, dtype: str, predictions: list[Prediction]) -> None:
    try:
        from tinyinfer.figures.roofline import draw_roofline, predicted_point
    except ModuleNotFoundError as missing:
        raise tinyinfer.BadInput(f"--plot needs {missing.name}: pip install 'tinyinfer[figures]'") from None
    draw_roofline(device, dtype, [predicted_point(prediction) for prediction in predictions]).save(path)


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
    except RequestFailed as wrong:
        print(f"tinyinfer: {wrong}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
