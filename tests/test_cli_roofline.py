"""`tinyinfer roofline` as a person meets it: the table, the JSON, the picture, and one line for every bad input."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tinyinfer
from tinyinfer.model.config import config_from_hf
from tinyinfer.performance.hardware import find_hardware
from tinyinfer.performance.prediction import predict_phases
from tinyinfer.performance.shapes import find_shape

TANG = Path(tinyinfer.__file__).parent / "models" / "tang"


@pytest.fixture
def roofline(command):
    """The command in this process; a given option replaces the default below."""

    def roofline(*arguments, **options):
        options = {"model": "llama-3-8b", "hardware": "H200"} | options
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
        return command("roofline", *words, *arguments)

    return roofline


def answer(roofline, *arguments, **options):
    code, out, err = roofline("--json", *arguments, **options)
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    return json.loads(out)


def test_json_is_one_object_with_exactly_the_promised_keys(roofline):
    found = answer(roofline, prompt=2048, context=4096, batch="1,8,64", dtype="bf16")
    assert set(found) == {"model", "hardware", "rows", "largest_batch"}
    assert (found["model"], found["hardware"], found["largest_batch"]) == ("llama-3-8b", "H200 SXM", 232)
    predictions = predict_phases(find_shape("llama-3-8b"), find_hardware("H200"), 2048, 4096, [1, 8, 64])
    assert found["rows"] == [prediction.as_row() for prediction in predictions]
    assert [(row["phase"], row["batch"], row["tokens"]) for row in found["rows"]] == [
        *(("prefill", 1, 2048), ("prefill", 8, 16_384), ("prefill", 64, 131_072)),
        *(("decode", 1, 1), ("decode", 8, 8), ("decode", 64, 64)),
    ]


def test_the_defaults_are_a_prompt_of_2048_and_a_context_of_4096(roofline):
    assert answer(roofline) == answer(roofline, prompt=2048, context=4096, batch="1,8,64", dtype="bf16")


def test_the_table_says_times_batches_and_what_is_not_measured(roofline):
    code, out, err = roofline(batch="1,8")
    assert (code, err) == (0, "")
    assert out.startswith("llama-3-8b on H200 SXM: 989 TFLOP/s in bf16, ridge at 206.1 FLOP per byte")
    assert out.count("TTFT") == out.count("TPOT") == 2
    assert "The largest batch that fits at context 4,096 is 232, counting weights and KV cache" in out
    assert "At context 4,096 no batch makes decode compute-bound" in out
    assert "The launch floor of H200 SXM is not measured and counts as 0." in out
    assert "compute-bound from batch 267" in roofline(context=128)[1]


def test_a_model_that_does_not_fit_is_still_planned(roofline):
    found = answer(roofline, model="llama-3.1-405b", batch="1")
    assert found["largest_batch"] == 0
    assert [row["fits"] for row in found["rows"]] == [False, False]


def test_a_device_that_publishes_neither_flops_nor_memory_is_bound_by_memory_and_fits_nobody_knows(roofline):
    found = answer(roofline, hardware="M1 Pro", batch="1,2")
    assert found["largest_batch"] is None
    assert {(row["bound"], row["fits"]) for row in found["rows"]} == {("memory", None)}
    _, out, _ = roofline(hardware="M1 Pro")
    assert "no FLOP/s published, so memory alone bounds the times" in out
    assert "compute-bound" not in out


def test_weights_and_cache_may_be_stored_in_other_dtypes(roofline):
    found = answer(roofline, weight_dtype="int4", kv_dtype="fp8", batch=3)
    expected = predict_phases(find_shape("llama-3-8b"), find_hardware("H200"), 2048, 4096, [3], "bf16", "int4", "fp8")
    assert found["rows"] == [prediction.as_row() for prediction in expected]
    assert found["largest_batch"] == int((141e9 - 8_030_261_248 / 2) / (4096 * 65_536))


@pytest.mark.parametrize("model", ["tang", TANG, TANG / "config.json"], ids=["name", "folder", "file"])
def test_a_model_is_a_name_a_folder_or_a_config(roofline, model):
    tang = config_from_hf(json.loads((TANG / "config.json").read_text()), "tang")
    code, out, err = roofline(model=model, prompt=5, context=7)
    assert (code, err) == (0, "")
    found = answer(roofline, model=model, prompt=5, context=7)
    assert found["model"] == "tang"
    assert found["rows"] == [
        prediction.as_row() for prediction in predict_phases(tang, find_hardware("H200"), 5, 7, [1, 8, 64])
    ]
    assert f"reads at most {tang.max_context:,} tokens" in roofline(model=model, context=10_000)[1]
    assert "reads at most" not in out


@pytest.mark.parametrize("given", [["--batch", "1,8", "--batch", "64"], ["--batch", " 1, 8,64 "]], ids=str)
def test_a_list_may_be_given_in_pieces(roofline, given):
    assert answer(roofline, *given) == answer(roofline, batch="1,8,64")


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_plot_is_written_whole(roofline, tmp_path, suffix):
    plot = tmp_path / f"out{suffix}"
    code, out, _ = roofline(plot=plot)
    assert code == 0
    assert f"The roofline is drawn in {plot}." in out
    assert plot.read_bytes()[:5] == {".svg": b"<?xml", ".png": b"\x89PNG\r"}[suffix]
    assert [path.name for path in tmp_path.iterdir()] == [plot.name]
    assert answer(roofline, plot=plot) == answer(roofline)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"hardware": "A100"}, "say one of: A100 40GB SXM, A100 80GB SXM, A100 80GB PCIe"),
        ({"hardware": "H20O"}, "Did you mean 'H200'"),
        ({"hardware": ""}, "is not known"),
        ({"model": "llama-3-9b"}, "Did you mean 'llama-3-8b'"),
        ({"model": "tagn"}, "Did you mean 'tang'"),
        ({"model": ""}, "model '' is not known"),
        ({"model": "x" * 5000}, "is not known"),
        ({"model": __file__}, "is not readable JSON"),
        ({"model": Path(__file__).parent}, "config.json does not exist"),
        ({"hardware": "V100 SXM2"}, "no bf16 peak is known for V100 SXM2 32GB; known: fp32, fp16"),
        ({"dtype": "bf17"}, "dtype 'bf17' is not known; known: fp32"),
        ({"dtype": "int4"}, "no int4 peak is known for H200 SXM"),
        ({"weight_dtype": "int3"}, "dtype 'int3' is not known"),
        ({"hardware": "M1 Pro", "dtype": "bf17"}, "dtype 'bf17' is not known"),
        ({"batch": "0"}, "--batch has '0'"),
        ({"batch": "-1"}, "--batch has '-1'"),
        ({"batch": "1,,8"}, "--batch has ''"),
        ({"batch": ""}, "--batch has ''"),
        ({"batch": "many"}, "--batch has 'many'"),
        ({"batch": "1,8,1"}, "--batch is 1,8,1: a number is repeated"),
        ({"batch": "1.5"}, "--batch has '1.5'"),
        ({"prompt": "0"}, "--prompt has '0'"),
        ({"prompt": "long"}, "--prompt has 'long'"),
        ({"prompt": ""}, "--prompt has ''"),
        ({"prompt": "5,7"}, "--prompt is 5,7; it takes one number"),
        ({"prompt": "9" * 6000}, "--prompt has '9"),
        ({"prompt": "1000000001"}, "from 1 to 1,000,000,000"),
        ({"context": "0"}, "--context has '0'"),
        ({"context": "²"}, "--context has '²'"),
        ({"plot": "out.pdf"}, "'out.pdf' ends in neither"),
        ({"plot": "no/such/folder/out.svg"}, "no/such/folder/out.svg cannot be written: No such file"),
    ],
)
def test_bad_input_is_one_line_on_standard_error_and_exit_code_2(roofline, options, reason):
    code, out, err = roofline(**options)
    assert (code, out) == (2, "")
    assert err.startswith("tinyinfer: ") and err.endswith("\n") and err.count("\n") == 1
    assert reason in err


def test_an_option_that_is_given_twice_is_not_silently_dropped(roofline):
    code, _, err = roofline("--prompt", 7, "--prompt", 11)
    assert code == 2 and "--prompt is 7,11; it takes one number" in err


def test_a_config_of_a_family_that_this_is_not_is_refused(roofline, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    code, out, err = roofline(model=tmp_path)
    assert (code, out) == (2, "") and "model_type is 'gpt2'" in err


def test_a_plot_that_cannot_be_finished_leaves_the_old_one(roofline, tmp_path, monkeypatch):
    from tinyinfer.figures.style import Figure

    plot = tmp_path / "out.svg"
    plot.write_text("the old one")

    def full(figure, path):
        Path(path).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "save_svg", full)
    code, out, err = roofline(plot=plot)
    assert (code, out) == (2, "") and "No space left on device" in err
    assert plot.read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["out.svg"]


def test_the_command_brings_no_heavy_library_and_a_plot_no_torch(tmp_path):
    command = "['tinyinfer', 'roofline', '--model', 'llama-3-8b', '--hardware', 'H200'{}]"
    for more, expected in (("", []), (f", '--plot', {str(tmp_path / 'out.svg')!r}", ["matplotlib"])):
        script = (
            f"import atexit, sys; sys.argv = {command.format(more)}\n"
            "heavy = ('torch', 'matplotlib', 'transformers', 'gguf')\n"
            "atexit.register(lambda: print([name for name in heavy if name in sys.modules]))\n"
            "from tinyinfer.cli import main; main()"
        )
        done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == str(expected)


def test_the_installed_command_knows_it():
    command = shutil.which("tinyinfer", path=str(Path(sys.executable).parent))
    done = subprocess.run([command, "roofline", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for option in ("--model", "--hardware", "--prompt", "--context", "--batch", "--dtype", "--plot", "--json"):
        assert option in done.stdout
