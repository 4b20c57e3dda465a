"""`tinyinfer request`: the walk as a person meets it, and one line for whatever is wrong."""

import json
import os
from functools import partial

import pytest
from command import run_command

import tinyinfer
from tinyinfer.serving import disaggregate
from tinyinfer.serving.trace_format import trace_from_json


@pytest.fixture
def call(monkeypatch, command):
    """The command in this process; it may start no cluster."""
    monkeypatch.setattr(disaggregate, "LocalCluster", None)
    return partial(command, "request")


def test_the_walk_is_printed_stage_by_stage_and_written_whole(tmp_path):
    path = tmp_path / "trace.json"
    done = run_command("request", "写诗", "--model", "toy", "--max-new-tokens", "4", "--trace", str(path), "--full")
    assert (done.returncode, done.stderr) == (0, "")
    order = [
        "request req_001: 写诗",
        "prefill: 2 tokens in, 2 rows of K and V per layer and head",
        "transfer: 256 bytes, in hand 秋(4)",
        "decode: 秋(4) in, one row appended, 天(5) next",
        "decode: 天(5) in, one row appended, 的(6) next",
        "decode: 的(6) in, one row appended, 诗(3) next",
        "result req_001: 秋天的诗",
        f"The trace is in {path}.",
    ]
    places = [done.stdout.index(line) for line in order]
    assert places == sorted(places)
    trace = trace_from_json(path.read_text(encoding="utf-8"))
    assert trace.result.final_output == "秋天的诗"
    assert set(json.loads(path.read_text(encoding="utf-8"))) == {"request", "prefill", "transfer", "decode", "result"}
    assert os.listdir(tmp_path) == ["trace.json"]


def test_the_other_model_other_backend_and_a_shortened_trace(tmp_path):
    path = tmp_path / "trace.json"
    options = ("--model", "tang", "--max-new-tokens", "3", "--trace", str(path), "--backend", "torch")
    done = run_command("request", "白日依山", *options)
    assert (done.returncode, done.stderr) == (0, "")
    tang = tinyinfer.load("tang")
    walk = json.loads(path.read_text(encoding="utf-8"))
    assert walk["result"]["final_output"] == tang.generate("白日依山", 3).text
    assert walk["transfer"]["bytes"] == 4 * tang.config.kv_bytes_per_token(4)
    assert "..." in walk["prefill"]["first_token_logits"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["写诗", "--model", "tyo"], "Did you mean 'toy'?"),
        (["写诗", "--backend", "jax"], "backend is 'jax'"),
        (["写诗", "--dtype", "bfloat16"], "numpy computes in float32 only"),
        (["写诗", "--prefill-workers", "0"], "prefill_workers is 0"),
        (["写诗", "--trace", "/no/such/folder/trace.json"], "there is no folder /no/such/folder"),
        (["黄", "--model", "toy"], "does not know '黄'"),
        ([""], "the prompt is empty"),
        (["写诗", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["写诗", "--max-new-tokens", "99"], "model toy reads at most 32"),
        (["写诗", "--deadline", "0"], "deadline_seconds is 0"),
        (["写诗", "--deadline", "nan"], "deadline_seconds is nan"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_before_a_cluster_is_started(call, arguments, reason):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("tinyinfer: ") and err.count("\n") == 1
    assert reason in err


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "127.0.0.1:port"])
def test_a_cluster_that_cannot_be_joined_is_one_line_and_exit_code_2(address):
    done = run_command("request", "写诗", "--address", address)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("tinyinfer: no Ray cluster can be joined at ")
    assert "Traceback" not in done.stderr


def test_a_request_that_fails_is_one_line_and_exit_code_1(call, monkeypatch):
    from contextlib import contextmanager

    from tinyinfer.serving.failures import DeadlineExceeded

    class Late:
        def walk(self, *_, **__):
            raise DeadlineExceeded("req_001 was stopped or not finished within 1.0 s")

    @contextmanager
    def engine(*_, **__):
        yield Late()

    monkeypatch.setattr(disaggregate, "open_engine", engine)
    code, out, err = call("写诗")
    assert (code, out) == (1, "")
    assert err == "tinyinfer: req_001 was stopped or not finished within 1.0 s\n"


def test_without_ray_the_command_says_what_to_install(tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')")
    done = run_command("request", "写诗", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tinyinfer: a split engine needs ray: pip install 'tinyinfer[cluster]'\n"
