"""Text in, text out: what a request costs, where it ends, what it refuses."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

import tinyinfer
from tinyinfer import BadInput
from tinyinfer.model.llama import Llama
from tinyinfer.serving import language_model

POEM = "尽，黄河入海流。欲穷千里目，更上一层楼。"


@pytest.fixture
def forwards(monkeypatch):
    """The number of new tokens of each forward pass, and the cache length after it."""
    right, seen = Llama.forward, []

    def forward(decoder, token_ids, cache):
        hidden = right(decoder, token_ids, cache)
        seen.append((len(token_ids), cache.length))
        return hidden

    monkeypatch.setattr(Llama, "forward", forward)
    return seen


@pytest.fixture
def endless(tang):
    """tang without an end token, so that an answer has the length that was asked for."""
    model = copy(tang)
    model.config = replace(tang.config, eos_ids=())
    return model


def test_tang_recites_the_poem(tang):
    done = tang.generate("白日依山", max_new_tokens=20)
    assert done.text == POEM
    assert len(done.prompt_token_ids) == 4
    assert done.token_ids == tang.tokenizer.encode(POEM)


def test_tang_answers_with_a_poem_that_ends_by_itself(tang):
    done = tang.generate("写诗", max_new_tokens=80)
    assert len(done.prompt_token_ids) == 2
    assert len(done.token_ids) < 80
    assert done.token_ids[-1] in tang.config.eos_ids
    assert "<eos>" not in done.text and done.text.endswith("。")


def test_a_second_prompt_is_answered_as_by_a_fresh_model(endless, backend):
    def answer(model, prompt):
        session = model.start(capacity=24)
        logits = [session.prefill(model.tokenizer.encode(prompt))]
        for _ in range(7):
            logits.append(session.decode_step(int(logits[-1].argmax())))
        return np.stack(logits)

    used = answer(endless, "春眠不觉晓，处处"), answer(endless, "白日依山")
    name, device = backend
    fresh = tinyinfer.load("tang", backend=name, device=device)
    np.testing.assert_array_equal(used[1], answer(fresh, "白日依山"))
    assert endless.generate("白日依山", 7).token_ids == [int(row.argmax()) for row in used[1][:7]]


def test_five_prompt_tokens_and_four_new_ones_take_four_forwards_and_eight_rows(endless, forwards):
    done = endless.generate("白日依山尽", max_new_tokens=4)
    assert len(done.token_ids) == 4
    assert forwards == [(5, 5), (1, 6), (1, 7), (1, 8)]


@pytest.mark.parametrize("new_tokens", [1, 2, 7])
def test_n_tokens_cost_one_prefill_and_n_minus_one_steps(endless, forwards, new_tokens):
    endless.generate("白日依山", max_new_tokens=new_tokens)
    assert [new for new, _ in forwards] == [4] + [1] * (new_tokens - 1)


def test_generate_is_the_stream_put_together(endless):
    events = list(endless.stream("白日依山", max_new_tokens=13))
    done = endless.generate("白日依山", max_new_tokens=13)
    assert done.token_ids == [event.token_id for event in events]
    assert done.text == "".join(event.text for event in events)
    assert len(events) == 13
    seconds = [event.seconds for event in events]
    assert seconds == sorted(seconds) and seconds[0] > 0


def test_greedy_tokens_are_the_largest_logits_of_the_naive_model(endless):
    done = endless.generate("白日依山", max_new_tokens=11)
    naive = endless.logits(done.prompt_token_ids + done.token_ids)
    assert naive[3:-1].argmax(axis=-1).tolist() == done.token_ids


def test_generation_stops_at_the_end_token_and_does_not_say_it(endless, tang, forwards):
    free = endless.generate("白日依山", max_new_tokens=7)
    end = free.token_ids[3]
    assert end not in free.token_ids[:3]
    forwards.clear()
    ended = tinyinfer.LanguageModel(
        tinyinfer.ModelConfig(**{**vars(tang.config), "eos_ids": (0, end)}),
        tang.weights,
        tang.tokenizer,
        tang.decoder.ops,
    )
    done = ended.generate("白日依山", max_new_tokens=7)
    assert done.token_ids == free.token_ids[:4]
    assert len(forwards) == 4  # the end token is not fed


def test_a_special_end_token_adds_no_text(tang):
    stream = tang.tokenizer.stream()
    assert stream.add(tang.tokenizer.encode("山")[0]) == "山"
    assert stream.add(tang.config.eos_ids[0]) == ""
    assert stream.finish() == ""


def test_a_character_of_several_tokens_is_said_when_it_is_whole(smollm2):
    stream = smollm2.tokenizer.stream()
    ids = smollm2.tokenizer.encode("依")
    assert len(ids) > 1
    pieces = [stream.add(token_id) for token_id in ids]
    assert pieces == [""] * (len(ids) - 1) + ["依"]
    assert stream.finish() == ""


def test_an_unfinished_character_is_shown_as_such_at_the_end(smollm2):
    ids = smollm2.tokenizer.encode("a依")
    stream = smollm2.tokenizer.stream()
    said = "".join(stream.add(token_id) for token_id in ids[:-1])
    assert said == "a"
    assert set(stream.finish()) == {"\N{REPLACEMENT CHARACTER}"}


def test_an_answer_cut_inside_a_character_still_says_what_it_has(smollm2, monkeypatch):
    ids = smollm2.tokenizer.encode("a依")[:-1]
    chosen = iter(ids)
    monkeypatch.setattr(language_model, "choose_token", lambda *_: next(chosen))
    done = smollm2.generate("The", max_new_tokens=len(ids))
    assert done.text[0] == "a" and set(done.text[1:]) == {"\N{REPLACEMENT CHARACTER}"}


@pytest.mark.parametrize("prompt", ["Once upon a time", "def f(x):\n    return", "été 日本 🙂"])
def test_streamed_text_is_the_decoded_text(smollm2, prompt):
    ids = smollm2.tokenizer.encode(prompt)
    stream = smollm2.tokenizer.stream()
    text = "".join(stream.add(token_id) for token_id in ids) + stream.finish()
    assert text == smollm2.tokenizer.decode(ids) == prompt


def test_a_prompt_may_be_token_ids(endless):
    ids = endless.tokenizer.encode("白日依山")
    assert endless.generate(ids, 5).token_ids == endless.generate("白日依山", 5).token_ids
    assert endless.generate(np.array(ids), 5).prompt_token_ids == ids


def test_equal_seeds_give_equal_tokens_and_others_differ(endless):
    def tokens(seed):
        return endless.generate("白日依山", 20, temperature=1.5, top_k=100, top_p=0.97, seed=seed).token_ids

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "empty"),
        ({"prompt": [2502]}, "token id 2502 is outside the vocabulary; allowed are 0 to 2501"),
        ({"prompt": [-1]}, "token id -1"),
        ({"prompt": [True]}, "token id True"),
        ({"prompt": [1.0]}, "token id 1.0"),
        ({"prompt": "abc"}, "does not know 'a'"),
        ({"prompt": "白日<unk>"}, "does not know '<unk>'"),
        ({"prompt": 5}, "prompt is 5"),
        ({"prompt": None}, "prompt is None"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": None}, "max_new_tokens is None"),
        (
            {"max_new_tokens": 254},
            "4 prompt tokens and max_new_tokens 254 need 257 slots; model tang reads at most 256",
        ),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_k": 0}, "top_k is 0"),
    ],
)
def test_a_bad_request_is_refused_when_it_is_made_and_by_name(tang, forwards, options, reason):
    with pytest.raises(BadInput) as refusal:
        tang.stream(**{"prompt": "白日依山"} | options)  # not even iterated over
    assert reason in str(refusal.value)
    with pytest.raises(BadInput):
        tang.generate(**{"prompt": "白日依山"} | options)
    assert forwards == []


def test_the_longest_request_fits_exactly(endless):
    done = endless.generate("白日依山", max_new_tokens=253)
    assert len(done.token_ids) == 253


@pytest.mark.parametrize("bad", [[], [2502], [-1], [3] * 257])
def test_naive_logits_refuse_what_the_model_cannot_read(tang, bad):
    with pytest.raises(BadInput, match=r"empty|token id|257 tokens; model tang reads at most 256"):
        tang.logits(bad)


def test_a_model_shows_its_sizes(tang):
    assert repr(tang).startswith("<tang: layers=4, model_dim=128, heads=4, kv_heads=2, head_dim=32")
