"""The walk of one request as records and as JSON: the named fields, the invariant, and nothing lost on the way back."""

import json
import os
from dataclasses import fields, replace

import numpy as np
import pytest
from local_workers import local_router

import tinyinfer
from tinyinfer import BadInput
from tinyinfer.serving.trace import PrefillStage, RequestStage, Token, collect_trace, count_rows
from tinyinfer.serving.trace_format import describe_stage, trace_as_dict, trace_from_json, trace_to_json, write_trace


@pytest.fixture(scope="module")
def toy():
    return tinyinfer.load("toy")


@pytest.fixture(scope="module")
def trace(toy):
    return local_router(toy).trace("写诗", max_new_tokens=4)


def test_the_trace_has_exactly_the_named_stages_and_fields(trace):
    walk = trace_as_dict(trace, full=True)
    assert list(walk) == ["request", "prefill", "transfer", "decode", "result"]
    assert list(walk["request"]) == ["request_id", "prompt", "input_tokens"]
    assert list(walk["prefill"]) == ["request_id", "kv_cache", "first_token_logits", "next_token"]
    assert list(walk["transfer"]) == ["request_id", "bytes", "checksums", "generated_tokens", "next_token"]
    assert [list(step) for step in walk["decode"]] == [["request_id", "generated_tokens", "next_token", "appended"]] * 3
    assert list(walk["result"]) == ["request_id", "final_output", "timing"]


def test_toy_answers_as_the_sketch_does_with_true_numbers(trace, toy):
    walk = trace_as_dict(trace, full=True)
    assert walk["request"]["input_tokens"] == [{"id": 2, "text": "写"}, {"id": 3, "text": "诗"}]
    assert walk["prefill"]["next_token"] == walk["transfer"]["next_token"] == {"id": 4, "text": "秋"}
    assert walk["transfer"]["generated_tokens"] == []
    fed = ["".join(token["text"] for token in step["generated_tokens"]) for step in walk["decode"]]
    assert fed == ["秋", "秋天", "秋天的"]  # the last token, 诗, is never fed
    assert [step["next_token"]["text"] for step in walk["decode"]] == ["天", "的", "诗"]
    assert walk["result"]["final_output"] == "秋天的诗"
    np.testing.assert_allclose(
        trace.prefill.first_token_logits, toy.logits(toy.tokenizer.encode("写诗"))[-1], atol=1e-5
    )


def test_rows_are_those_of_an_undivided_session(trace, toy):
    session = toy.start(capacity=5)
    session.prefill(toy.tokenizer.encode("写诗"))
    for token in toy.tokenizer.encode("秋天的"):
        session.decode_step(token)
    whole = session.cache.as_nested()
    for layer, heads in whole.items():
        for head, kinds in heads.items():
            for kind, block in kinds.items():
                parts = [trace.prefill.kv_cache[layer][head][kind]]
                parts += [step.appended[layer][head][kind] for step in trace.decode]
                assert [part.shape for part in parts] == [(2, 4), (1, 4), (1, 4), (1, 4)]
                np.testing.assert_array_equal(np.concatenate(parts), block)


def test_bytes_are_the_rows_of_the_prompt(trace, toy):
    assert trace.transfer.bytes == 2 * toy.config.kv_bytes_per_token(4) == 256
    assert list(trace.transfer.checksums) == ["layer_0", "layer_1"]
    assert all(set(pair) == {"K", "V"} for pair in trace.transfer.checksums.values())


def test_a_full_trace_comes_back_from_json_as_it_was(trace):
    text = trace_to_json(trace, full=True)
    again = trace_from_json(text)
    assert trace_to_json(again, full=True) == text
    assert again.request == trace.request and again.transfer == trace.transfer and again.result == trace.result
    np.testing.assert_array_equal(again.prefill.first_token_logits, trace.prefill.first_token_logits)
    assert again.prefill.first_token_logits.dtype == np.float32
    for ours, theirs in (
        (again.prefill.kv_cache, trace.prefill.kv_cache),
        (again.decode[2].appended, trace.decode[2].appended),
    ):
        np.testing.assert_array_equal(ours["layer_1"]["head_1"]["V"], theirs["layer_1"]["head_1"]["V"])


def test_toy_is_whole_even_when_shortened_and_a_larger_model_is_not(trace, tang):
    assert "..." not in trace_to_json(trace)
    walk = trace_as_dict(local_router(tang, slots=256).trace("白日依山尽，黄河入海流。", max_new_tokens=2))
    assert "..." in walk["prefill"]["first_token_logits"] and len(walk["prefill"]["first_token_logits"]) == 7
    rows = walk["prefill"]["kv_cache"]["layer_0"]["head_1"]["K"]
    assert len(rows) == 12 and all(len(row) == 7 for row in rows)
    with pytest.raises(BadInput, match="shortened for people"):
        trace_from_json(json.dumps(walk))


def test_many_layers_are_shortened_too(trace):
    layer = trace.prefill.kv_cache["layer_0"]
    deep = replace(trace.prefill, kv_cache={f"layer_{i}": layer for i in range(7)})
    steps = tuple(
        replace(step, appended={f"layer_{i}": step.appended["layer_0"] for i in range(7)}) for step in trace.decode
    )
    walk = trace_as_dict(replace(trace, prefill=deep, decode=steps))
    assert list(walk["prefill"]["kv_cache"]) == ["layer_0", "layer_1", "...", "layer_6"]
    assert walk["prefill"]["kv_cache"]["..."] == "4 more"
    with pytest.raises(BadInput, match="shortened for people"):
        trace_from_json(json.dumps(walk))


def test_the_json_keeps_a_row_on_one_line(trace):
    lines = trace_to_json(trace).splitlines()
    assert '      {"id": 2, "text": "写"},' in lines
    assert any(line.strip().startswith('"first_token_logits": [') and line.endswith("],") for line in lines)
    assert json.loads(trace_to_json(trace)) == trace_as_dict(trace)


def test_a_first_token_that_ends_the_request_leaves_nothing_to_transfer(toy):
    trace = local_router(toy).trace("写诗", max_new_tokens=1)
    walk = trace_as_dict(trace, full=True)
    assert walk["transfer"] is None and walk["decode"] == []
    assert walk["result"]["final_output"] == "秋"
    assert trace_to_json(trace_from_json(trace_to_json(trace, full=True)), full=True) == trace_to_json(trace, full=True)


def grow(rows):
    return {
        layer: {
            head: {kind: np.repeat(block, 2, axis=0) for kind, block in kinds.items()} for head, kinds in heads.items()
        }
        for layer, heads in rows.items()
    }


def test_a_cache_with_a_row_too_many_is_refused_at_every_stage(trace):
    with pytest.raises(BadInput, match="prefill: the cache has 4 rows; 2 input and 0 generated tokens were fed"):
        replace(trace, prefill=replace(trace.prefill, kv_cache=grow(trace.prefill.kv_cache)))
    steps = list(trace.decode)
    steps[1] = replace(steps[1], appended=grow(steps[1].appended))
    with pytest.raises(BadInput, match="decode step 2: the cache has 5 rows; 2 input and 2 generated tokens were fed"):
        replace(trace, decode=tuple(steps))
    with pytest.raises(BadInput, match="decode step 2"):
        replace(trace, decode=(trace.decode[0], trace.decode[2]))


def test_stages_that_do_not_belong_together_are_refused(trace):
    with pytest.raises(BadInput, match="request_id is 'req_009'; the trace is of 'req_001'"):
        replace(trace, transfer=replace(trace.transfer, request_id="req_009"))
    wrong = replace(trace.decode[0], generated_tokens=(Token(9, "山"),))
    with pytest.raises(BadInput, match="decode step 1: generated_tokens"):
        replace(trace, decode=(wrong, *trace.decode[1:]))
    with pytest.raises(BadInput, match="transfer: generated_tokens"):
        replace(trace, transfer=replace(trace.transfer, generated_tokens=(Token(9, "山"),)))


def test_rows_that_differ_between_heads_are_refused(trace):
    uneven = {"layer_0": {"head_0": {"K": np.zeros((2, 4)), "V": np.zeros((3, 4))}}}
    with pytest.raises(BadInput, match="rows differ"):
        count_rows(uneven)
    with pytest.raises(BadInput, match="rows differ"):
        replace(trace, prefill=replace(trace.prefill, kv_cache=uneven))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:-1], "no JSON"),
        (lambda text: "[]", "field"),
        (lambda text: text.replace('"kv_cache"', '"kv_cash"'), "kv_cache"),
        (lambda text: text.replace('"bytes"', '"octets"'), "octets"),
        (lambda text: text.replace('"queue_seconds"', '"queue"'), "queue"),
        (lambda text: text.replace('{"id": 2, "text": "写"}', "2"), "field"),
    ],
)
def test_a_damaged_trace_is_refused(trace, damage, reason):
    with pytest.raises(BadInput, match=reason):
        trace_from_json(damage(trace_to_json(trace, full=True)))


def test_a_trace_is_written_whole_or_not_at_all(trace, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    write_trace(trace, path, full=True)
    assert trace_to_json(trace_from_json(path.read_text(encoding="utf-8")), full=True) == trace_to_json(
        trace, full=True
    )
    path.write_text("before")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    monkeypatch.setattr(type(path), "replace", full_disk)
    with pytest.raises(BadInput, match="No space left on device"):
        write_trace(trace, path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["trace.json"]


def test_a_folder_that_is_not_there_is_named(trace, tmp_path):
    with pytest.raises(BadInput, match=r"none/trace\.json: No such file or directory"):
        write_trace(trace, tmp_path / "none" / "trace.json")


def test_each_stage_can_be_said_in_words(trace):
    stages = [trace.request, trace.prefill, trace.transfer, *trace.decode, trace.result]
    said = [describe_stage(stage) for stage in stages]
    assert "input tokens 写(2) 诗(3)" in said[0]
    assert "2 tokens in, 2 rows of K and V per layer and head" in said[1] and "largest: 秋(4)" in said[1]
    assert "256 bytes, in hand 秋(4)" in said[2] and trace.transfer.checksums["layer_1"]["V"] in said[2]
    assert "秋(4) in, one row appended, 天(5) next" in said[3]
    assert "秋天的诗" in said[6] and "first token after" in said[6]


def test_stages_of_one_request_make_its_trace(trace):
    stages = [trace.request, trace.prefill, trace.transfer, *trace.decode, trace.result]
    assert trace_to_json(collect_trace(stages), full=True) == trace_to_json(trace, full=True)
    with pytest.raises(ValueError):
        collect_trace(stages[1:])


def test_records_cannot_be_changed(trace):
    assert [field.name for field in fields(RequestStage)] == ["request_id", "prompt", "input_tokens"]
    for record, name in ((trace, "result"), (trace.request, "prompt"), (trace.prefill, "next_token")):
        with pytest.raises(AttributeError):
            setattr(record, name, None)
    assert isinstance(trace.prefill, PrefillStage)
