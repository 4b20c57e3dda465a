"""SmolLM2-135M: both backends of tinyinfer against Hugging Face transformers, same weights, in one run.

    python benchmarks/compare.py [RECORD.json]

All are interleaved and compared as ratios of medians; decode is also compared with the machine's read bandwidth.
"""

import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import tinyinfer
from tinyinfer.loading.safetensors import our_name
from tinyinfer.model import numpy_ops, torch_ops
from tinyinfer.performance.ceilings import read_bandwidth
from tinyinfer.performance.cost import weight_bytes_read
from tinyinfer.performance.measure import time_request
from tinyinfer.performance.records import write_record

PROMPT, NEW_TOKENS, REPEATS = 512, 32, 7


def time_transformers(model, prompt_ids: list[int], new_tokens: int) -> tuple[float, list[float]]:
    """TTFT and gaps of the same greedy request in transformers, its own cache, logits of the last row only."""
    with torch.inference_mode():
        started = time.perf_counter()
        cache = DynamicCache(config=model.config)
        answer = model(input_ids=torch.tensor([prompt_ids]), cache=cache, logits_to_keep=1)
        moments = []
        for step in range(new_tokens):
            token = answer.logits[:, -1:].argmax(-1)
            int(token)
            moments.append(time.perf_counter())
            if step + 1 < new_tokens:
                answer = model(input_ids=token, cache=cache)
    return moments[0] - started, np.diff(moments).tolist()


def time_command(*command: str) -> float:
    """Median seconds of seven whole runs of a Python command, start and end included."""
    samples = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        samples.append(time.perf_counter() - started)
    return statistics.median(samples)


def plain_transformers(model: tinyinfer.LanguageModel, dtype: torch.dtype) -> LlamaForCausalLM:
    """The same numbers in transformers, as a plain model of one dtype.

    Loaded from the GGUF file itself, transformers 5 keeps the weights packed and unpacks them in every product.
    """
    shape, weights = model.config, model.weights
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.model_dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn_dim,
        max_position_embeddings=shape.max_context,
        rms_norm_eps=shape.rms_eps,
        rope_theta=shape.rope_base,
        tie_word_embeddings=shape.tied_head,
    )
    numbers = {
        name: weights[our_name(name)] for name in LlamaForCausalLM(config).state_dict() if name != "lm_head.weight"
    }
    theirs = LlamaForCausalLM(config)
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in numbers.items()}, strict=False)
    theirs.tie_weights()
    ids = list(range(100, 116))
    gap = np.abs(theirs(torch.tensor([ids])).logits[0].detach().numpy() - model.logits(ids)).max()
    assert gap < 1e-3, f"not the same model: logits differ by {gap}"
    return theirs.to(dtype).eval()


def load_all() -> tuple[tinyinfer.LanguageModel, dict]:
    """Our NumPy model, and for each engine a function from prompt ids to TTFT and gaps."""
    ours = {"numpy float32": tinyinfer.load("smollm2-135m")}
    contenders = {}
    for dtype in ("float32", "bfloat16"):
        theirs = plain_transformers(ours["numpy float32"], getattr(torch, dtype))
        contenders[f"transformers {dtype}"] = partial(time_transformers, theirs, new_tokens=NEW_TOKENS)
    for dtype in ("float32", "bfloat16"):
        for decode in ("eager", "compiled"):
            ours[f"torch {dtype} {decode}"] = tinyinfer.load(
                "smollm2-135m", backend="torch", dtype=dtype, decode=decode
            )
    contenders |= {name: partial(time_request, model, new_tokens=NEW_TOKENS) for name, model in ours.items()}
    return ours["numpy float32"], contenders


def main(path: Path | None) -> None:
    model, contenders = load_all()
    prompt = np.random.default_rng(1).integers(model.config.vocab, size=PROMPT).tolist()
    backends = {"numpy": numpy_ops, "torch": torch_ops.on()}
    rows = []
    # Of the machine, measured between the rounds, so that all see the same minutes.
    rates: dict[tuple[str, str], list[float]] = {}
    for length in (16, PROMPT):
        samples = {name: ([], []) for name in contenders}
        for repeat in range(REPEATS + 1):
            for backend, ops in backends.items():
                for way, samples_per_second in read_bandwidth(ops, repeats=1).items():
                    rates.setdefault((backend, way), []).extend(samples_per_second)
            for name, run in contenders.items():
                time.sleep(0.2)  # the threads of the engine before spin for a while, and would take the cores
                ttft, gaps = run(prompt[:length])
                if repeat:  # the first round warms up, and compiles
                    samples[name][0].append(ttft)
                    samples[name][1].append(statistics.median(gaps))
        for name, (ttft, tpot) in samples.items():
            rows.append({"engine": name, "prompt": length, "ttft_seconds": ttft, "tpot_seconds": tpot})
    startup = {
        "python_alone_seconds": time_command("-c", "pass"),
        "import_seconds": time_command("-c", "import tinyinfer"),
        "first_token_of_command_seconds": time_command(
            "-m", "tinyinfer.cli", "generate", "白日依山", "--max-new-tokens", "1"
        ),
        "roofline_command_seconds": time_command(
            "-m", "tinyinfer.cli", "roofline", "--model", "llama-3-8b", "--hardware", "H200"
        ),
    }
    bandwidths = {backend: {} for backend in backends}
    for (backend, way), samples_per_second in rates.items():
        bandwidths[backend][way] = statistics.median(samples_per_second)

    def median(engine: str, prompt: int, field: str) -> float:
        return statistics.median(next(r[field] for r in rows if (r["engine"], r["prompt"]) == (engine, prompt)))

    ratios = {}
    for name in contenders:
        backend, dtype = name.split()[:2]
        if backend != "transformers":
            theirs = f"transformers {dtype}"
            ratios[f"tpot_ratio {name}"] = median(name, 16, "tpot_seconds") / median(theirs, 16, "tpot_seconds")
            ratios[f"ttft_ratio_512 {name}"] = median(name, 512, "ttft_seconds") / median(theirs, 512, "ttft_seconds")
            number_bytes = {"float32": 4, "bfloat16": 2}[dtype]
            achieved = weight_bytes_read(model.config, number_bytes) / median(name, 16, "tpot_seconds")
            ratios[f"share_of_bandwidth {name}"] = achieved / max(bandwidths[backend].values())
    for row in rows:
        ttft, tpot = statistics.median(row["ttft_seconds"]), statistics.median(row["tpot_seconds"])
        print(f"{row['engine']:24} prompt {row['prompt']:4}: TTFT {ttft * 1e3:7.1f} ms, TPOT {tpot * 1e3:6.2f} ms")
    for backend, ways in bandwidths.items():
        print(f"read bandwidth, {backend}:", ", ".join(f"{way} {rate / 1e9:.1f} GB/s" for way, rate in ways.items()))
    for name, value in (ratios | startup).items():
        print(f"{name}: {value:.3f}")
    if path is not None:
        write_record(
            path,
            kind="comparison",
            protocol=f"{REPEATS} interleaved rounds after one warm-up, medians; {NEW_TOKENS} new tokens, greedy",
            rows=rows,
            packages=("torch", "transformers"),
            model=model.config.name,
            threads=torch.get_num_threads(),
            kernel=os.environ.get("OPENBLAS_CORETYPE", "chosen by OpenBLAS"),
            bandwidths=bandwidths,
            **ratios,
            **startup,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
