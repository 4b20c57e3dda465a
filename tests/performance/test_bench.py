"""Measuring: what is timed, what is predicted beside it, and that a pass taken apart has all its parts."""

import json
import statistics

import numpy as np
import pytest

import tinyinfer
from tinyinfer import BadInput, cli
from tinyinfer.loading.synthetic import RandomWeights
from tinyinfer.model import numpy_ops, torch_ops
from tinyinfer.model.config import weight_shapes
from tinyinfer.performance import bench, ceilings
from tinyinfer.performance.counting import count_kernels
from tinyinfer.performance.hardware import Hardware
from tinyinfer.performance.measure import pretend_past, time_calls, time_decode
from tinyinfer.performance.parts import record_calls, time_alone, time_parts
from tinyinfer.performance.prediction import predict_decode, predict_prefill
from tinyinfer.performance.records import read_record
from tinyinfer.performance.shapes import find_shape

SLOW = Hardware("slow", {"fp32": 1e6}, 1e6, None, "made up")


@pytest.fixture
def quick_ceilings(monkeypatch):
    """Ceilings of small working sets: here the plumbing is tested, not the machine."""
    monkeypatch.setattr(ceilings.matmul_rate, "__defaults__", (64, 2))
    right = ceilings.matmul_rate
    monkeypatch.setattr(ceilings, "matmul_rate", lambda ops, size: right(ops, 64))
    wide = ceilings.read_bandwidth
    monkeypatch.setattr(ceilings, "read_bandwidth", lambda ops, size: wide(ops, 1 << 20, 2))


def test_the_clock_is_read_after_the_device_has_finished():
    told = []
    samples = time_calls({"one": lambda: told.append("work")}, 2, synchronise=lambda: told.append("wait"))
    assert told == ["work", "wait", "work", "wait", "wait", "work", "wait"]
    assert len(samples["one"]) == 2


def test_a_pretended_past_is_attended(tang):
    session = tang.start(capacity=11, batch=2)
    pretend_past(session, 7)
    assert session.cache.lengths.tolist() == [7, 7]
    one = session.decode_step([5, 5])
    assert np.abs(one[0] - one[1]).max() > 1e-3  # the same token after two different pasts
    assert len(time_decode(session, [1, 2], 3)) == 3
    assert session.cache.lengths.tolist() == [11, 11]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_pass_is_taken_apart_into_all_its_operations(backend):
    model = tinyinfer.load("tang", backend=backend)
    layers = model.config.layers
    calls = record_calls(model, lambda twin: twin.start(7).prefill([5, 6, 7, 8, 9]))
    times = {}
    for (operation, _), count in calls.items():
        times[operation] = times.get(operation, 0) + count
    products = (4 if model.fused else 7) * layers + 1
    assert times == {
        "rope_angles": 1,
        "embed": 1,
        "rms_norm": 2 * layers + 1,
        "linear": products,
        "rope": 2 * layers,
        "attention": layers,
        "swiglu": layers,
        "to_numpy": 1,
    }
    head = (("x", (1, 128)), ("weight", (2502, 128)))
    shapes = {
        tuple((name, value.sizes) for name, value in operands if hasattr(value, "sizes")): count
        for (operation, operands), count in calls.items()
        if operation == "linear"
    }
    assert shapes[head] == 1


def test_recording_leaves_the_model_as_it_was(tang):
    ids = [5, 6, 7]
    expected = tang.start(3).prefill(ids)
    record_calls(tang, lambda twin: twin.start(3).prefill(ids))
    np.testing.assert_array_equal(tang.start(3).prefill(ids), expected)


@pytest.mark.parametrize("ops", [numpy_ops, torch_ops.on("cpu", "bfloat16")], ids=["numpy", "torch"])
def test_each_part_can_run_alone(ops):
    config = find_shape("smollm2-135m")
    small = tinyinfer.ModelConfig("small", 2, 29, 6, 2, 10, 37, 41, 97, rope_base=config.rope_base)
    model = tinyinfer.LanguageModel(small, RandomWeights(small, ops), None, ops)

    def step(twin):
        session = twin.start(13, batch=3)
        session.prefill([[1, 2], [3], [4, 5, 6]])
        session.decode_step([7, 8, 9])

    parts = time_parts(model, step, repeats=2)
    assert {part.operation for part in parts} >= {"attention", "attention_step", "stack_rows", "linear", "to_numpy"}
    assert all(part.seconds_each > 0 and part.seconds == part.times * part.seconds_each for part in parts)


def test_cold_operands_are_new_at_each_call_and_hot_ones_stay():
    seen = []

    class Watching:
        def __getattr__(self, name):
            return getattr(numpy_ops, name)

        def linear(self, x, weight):
            seen.append((id(x), id(weight)))
            return x @ weight.T

    calls = record_calls(tinyinfer.load("tang"), lambda twin: twin.start(2).prefill([5, 6]))
    operands = next(dict(operands) for (operation, operands) in calls if operation == "linear")
    operands = {name: value for name, value in operands.items() if name in ("x", "weight")}
    size = 4 * operands["weight"].sizes[0] * operands["weight"].sizes[1]
    time_alone(Watching(), "linear", operands, footprint=5 * size, repeats=1)
    hot, cold = zip(*seen[-5:], strict=True)
    assert len(set(hot)) == 1 and len(set(cold)) == 5


def test_rows_hold_the_prediction_for_what_was_run(tang):
    row = bench.measure_phase(tang, SLOW, "fp32", "prefill", 2, 7, 3, repeats=4)
    expected = predict_prefill(tang.config, SLOW, 7, 2, "fp32", fused=tang.fused)
    assert (row["flops"], row["roof_seconds"], row["tokens"]) == (expected.work.flops, expected.seconds, 14)
    assert len(row["samples_seconds"]) == 4 and row["parts_seconds"] == pytest.approx(sum(row["parts"].values()))
    row = bench.measure_phase(tang, SLOW, "fp32", "decode", 2, 7, 5, repeats=4)
    assert row["flops"] == predict_decode(tang.config, SLOW, 10, 2, "fp32").work.flops  # the middle of 8 to 12
    assert len(row["samples_seconds"]) == 4 * 5


def test_shares_of_the_ceilings_are_work_over_time():
    row = {"flops": 3e6, "bytes_moved": 5e6, "samples_seconds": [9.0, 10.0, 30.0]}
    assert bench.achieved(row, SLOW, "fp32") == {"mfu": pytest.approx(0.3), "mbu": pytest.approx(0.5)}
    unknown = Hardware("no FLOP/s published", {}, 1e6, None, "made up")
    assert bench.achieved(row, unknown, "fp32") == {"mfu": None, "mbu": pytest.approx(0.5)}


def test_random_weights_have_the_models_shapes_and_repeat(ops):
    config = find_shape("smollm2-135m")
    weights = RandomWeights(config, ops)
    assert list(weights) == list(weight_shapes(config)) and len(weights) == len(weight_shapes(config))
    key = ops.to_numpy(weights["layers.3.key"])
    assert key.shape == (192, 576) and key.std() == pytest.approx(576**-0.5, rel=0.02)
    np.testing.assert_array_equal(ops.to_numpy(weights["layers.3.key"]), key)
    assert np.abs(ops.to_numpy(weights["layers.4.key"]) - key).max() > 0.01
    assert ops.to_numpy(weights["final_norm"]).mean() == pytest.approx(1, abs=0.05)


def test_a_measured_machine_is_a_hardware(quick_ceilings):
    device = ceilings.measure_hardware("torch", "cpu", ("fp32", "bf16"))
    assert set(device.flops_per_second) == {"fp32", "bf16"} and min(device.flops_per_second.values()) > 0
    assert device.bytes_per_second > 0 and device.launch_floor_seconds > 0 and device.memory_bytes > 1e8
    assert device.source.startswith("measured")


def test_what_the_device_has_no_room_for_is_refused_before_it_is_allocated():
    with pytest.raises(BadInput, match=r"llama-3.1-405b needs [\d,.]+ GB on cpu .* which has [\d,.]+ GB"):
        ceilings.require_room(find_shape("llama-3.1-405b"), numpy_ops, 1, 128)
    ceilings.require_room(find_shape("smollm2-135m"), numpy_ops, 1, 128)


def test_the_kernels_of_an_eager_step_are_counted_without_its_views():
    import torch

    x = torch.ones(3, 5)
    assert count_kernels(lambda: (x.T, x[1:], x.reshape(5, 3))) == 0
    assert count_kernels(lambda: (x + x).relu()) == 2
    assert count_kernels(lambda: x.add_(1)) == 1


def test_what_pytorch_puts_together_counts_as_its_parts_with_and_without_inference_mode():
    import torch

    x, weight = torch.ones(3, 5), torch.ones(4, 5)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert count_kernels(lambda: torch.nn.functional.linear(x, weight)) == 1  # the transposed weight is a view
            assert count_kernels(lambda: x.to(torch.bfloat16)) == 1 and count_kernels(lambda: x.to(x.dtype)) == 0
            # square, mean, + eps, root, and two products
            assert count_kernels(lambda: torch.nn.functional.rms_norm(x, (5,), x[0], 1e-5)) == 6


@pytest.fixture
def call(monkeypatch, capsys, quick_ceilings):
    """The command's own function, in this process: what it printed, or the message that it refused with."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["tinyinfer", "bench", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return end.value.code, printed.out, printed.err

    return run


def test_bench_prints_a_line_for_each_phase_and_writes_a_record_that_reads_back(call, tmp_path):
    options = ("--prompt", "5,11", "--batch", "1,3", "--new", "2", "--repeats", "2", "--record")
    code, out, err = call(
        "--model", "tang", *options, "--folder", str(tmp_path), "--commit", "abc", "--hardware", "H200"
    )
    assert code == 0, err
    assert sum(line.startswith(("prefill", "decode")) for line in out.splitlines()) == 8
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("cpu-tang-numpy-fp32-eager-")
    record = read_record(file)
    assert (record["commit"], record["weights"], record["published"]) == ("abc", "trained", "H200 SXM")
    assert [(row["phase"], row["batch"], row["prompt"]) for row in record["rows"]][:3] == [
        ("prefill", 1, 5),
        ("prefill", 1, 11),
        ("prefill", 3, 5),
    ]
    for row in record["rows"]:
        assert row["mbu"] == pytest.approx(
            row["bytes_moved"] / statistics.median(row["samples_seconds"]) / record["ceilings"]["bytes_per_second"]
        )
        assert row["published"]["mfu"] < row["published"]["mbu"] < 1
    assert "/" not in json.dumps(record["machine"])


def test_a_shape_is_measured_without_its_weights(call, monkeypatch):
    monkeypatch.setattr("tinyinfer.performance.bench.measure_phase", lambda *_: {"samples_seconds": [1.0]} | FAKE)
    code, out, err = call("--shape", "smollm2-135m", "--backend", "torch", "--dtype", "bf16", "--prompt", "5")
    assert code == 0, err
    assert "smollm2-135m (random weights), torch bf16 eager on cpu" in out


FAKE = {"phase": "prefill", "batch": 1, "prompt": 5, "flops": 1, "bytes_moved": 1, "roof_seconds": 1.0}
FAKE |= {"parts_seconds": 1.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --model or --shape"),
        (["--model", "tang", "--shape", "llama-3-8b"], "either --model or --shape"),
        (["--model", "tang", "--batch", "0"], "--batch has '0'"),
        (["--model", "tang", "--prompt", "1,x"], "--prompt has 'x'"),
        (["--model", "tang", "--new", "0"], "--new is 0"),
        (["--model", "tang", "--repeats", "-1"], "--repeats is -1"),
        (["--model", "tang", "--hardware", "A100"], "ambiguous"),
        (["--shape", "llama-3-9b"], "llama-3-8b"),
        (["--shape", "llama-3.1-405b"], "which has"),
        (["--model", "tang", "--prompt", "250", "--new", "20"], "at most 256 tokens"),
        (["--model", "tang", "--device", "cuda"], "add backend torch"),
    ],
)
def test_bad_input_is_one_clear_line(call, arguments, message):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1] and "Traceback" not in err
