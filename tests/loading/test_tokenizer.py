import re

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyinfer import BadInput
from tinyinfer.loading.checkpoint import smollm2_path
from tinyinfer.loading.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def backend():
    """One is enough: nothing here depends on it."""
    return ("numpy", None)


TEXTS = {
    "english": "The white sun sets behind the mountains; don't wait!",
    "chinese": "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。",
    "mixed": "白日 means the white sun, 山 a mountain.",
    "emoji": "🙂👍🏽 👨‍👩‍👧 🇨🇳",
    "digits": "12345 007 3.14159 １２３ 2024-01-31",
    "code": "def f(x):\n\treturn {x: [1, 2]}  # 注释\n\n\nprint(f(7))\n",
    "spaces": "  two,   three\t\ttabs \r\n\n   ",
    "only space": " ",
    "only newlines": "\n\n\n",
    "accents": "café cafe\u0301 Ünïcödé ﷺ",
    "zero": "a\x00b",
    "rare": "𠮷野家 𝕏 \u200b|\ufeff|\ufffd",
}
each_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())


@each_text
def test_decoding_what_was_encoded_gives_the_text(smollm2, text):
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text)) == text


@each_text
def test_streamed_pieces_are_together_the_text(smollm2, text):
    stream = smollm2.tokenizer.stream()
    pieces = [stream.add(token_id) for token_id in smollm2.tokenizer.encode(text)]
    assert "".join(pieces) + stream.finish() == text


# Some control characters and the private planes need bytes that have no piece in this file, and are refused: see below.
characters = st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x3FFFF)


@given(st.text(characters, min_size=1, max_size=40))
@settings(max_examples=200)
def test_any_text_survives_encoding_decoding_and_streaming(smollm2, text):
    tokenizer = smollm2.tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join(stream.add(token_id) for token_id in ids) + stream.finish() == text


def test_a_stream_waits_for_the_bytes_of_a_character(smollm2):
    ids = smollm2.tokenizer.encode("白日")
    assert len(ids) == 5  # 白 is three tokens, 日 two
    stream = smollm2.tokenizer.stream()
    assert [stream.add(token_id) for token_id in ids] == ["", "", "白", "", "日"]
    assert stream.finish() == ""


def test_a_stream_that_ends_inside_a_character_says_so(smollm2):
    stream = smollm2.tokenizer.stream()
    pieces = [stream.add(token_id) for token_id in smollm2.tokenizer.encode("山尽")[:3]]
    assert pieces == ["", "山", ""]
    assert stream.finish() == "\ufffd"


def test_streams_of_one_tokenizer_do_not_disturb_each_other(smollm2):
    first, second = smollm2.tokenizer.stream(), smollm2.tokenizer.stream()
    said = [(first.add(a), second.add(b)) for a, b in zip(*map(smollm2.tokenizer.encode, "日山"), strict=True)]
    assert said == [("", ""), ("日", "山")]


@pytest.fixture(scope="module")
def reference():
    transformers = pytest.importorskip("transformers")
    path = smollm2_path()
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)


@each_text
def test_ids_agree_with_hugging_face(smollm2, reference, text):
    assert smollm2.tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)


def test_special_tokens_in_a_prompt_agree_with_hugging_face(smollm2, reference):
    prompt = smollm2.tokenizer.apply_chat_template("What is 山?")
    ids = smollm2.tokenizer.encode(prompt)
    assert ids == reference.encode(prompt, add_special_tokens=False)
    assert ids[0] == smollm2.tokenizer.inner.token_to_id("<|im_start|>")


def test_the_chat_template_agrees_with_hugging_face(smollm2, reference):
    prompt = smollm2.tokenizer.apply_chat_template("Name a river.")
    assert prompt.startswith("<|im_start|>")
    assert prompt.endswith("<|im_start|>user\nName a river.<|im_end|>\n<|im_start|>assistant\n")
    message = {"role": "user", "content": "Name a river."}
    assert prompt == reference.apply_chat_template([message], tokenize=False, add_generation_prompt=True)


def test_special_tokens_are_left_out_of_the_text(smollm2):
    end = smollm2.config.eos_ids[0]
    assert smollm2.tokenizer.decode([*smollm2.tokenizer.encode("Yes."), end]) == "Yes."


def test_tang_has_one_token_per_character_and_no_bos(tang):
    prompt = "白日依山"
    ids = tang.tokenizer.encode(prompt)
    assert len(ids) == 4
    assert [tang.tokenizer.decode([token_id]) for token_id in ids] == list(prompt)
    assert tang.tokenizer.decode(ids) == prompt


@pytest.mark.parametrize(
    ("prompt", "character", "position"), [("x白日", "x", 1), ("白日🙂山", "🙂", 3), ("山 ", " ", 2)]
)
def test_an_unknown_character_is_refused_by_name_and_position(tang, prompt, character, position):
    with pytest.raises(BadInput, match=rf"does not know '{character}' \(character {position} of the prompt\)"):
        tang.tokenizer.encode(prompt)


@pytest.mark.parametrize("character", ["\x06", "\U00040000"])
def test_a_character_that_needs_a_byte_without_a_piece_is_refused_by_name(smollm2, character):
    with pytest.raises(BadInput, match=re.escape(f"does not know {character!r}")):
        smollm2.tokenizer.encode("白" + character)


@pytest.mark.parametrize("name", ["tang", "smollm2"])
def test_an_empty_prompt_is_refused(name, request):
    model = request.getfixturevalue(name)
    with pytest.raises(BadInput, match="the prompt is empty"):
        model.tokenizer.encode("")
    with pytest.raises(BadInput, match="the prompt is empty"):
        model.stream("")


@pytest.mark.parametrize("name", ["tang", "smollm2"])
def test_half_of_a_surrogate_pair_is_refused(name, request):
    with pytest.raises(BadInput, match=r"'\\ud83d', which is no character"):
        request.getfixturevalue(name).tokenizer.encode("山\ud83d")


def test_a_model_without_a_chat_template_says_so(tang):
    with pytest.raises(BadInput, match="no chat template"):
        tang.tokenizer.apply_chat_template("山")


def test_a_chat_template_gets_the_models_own_bos_and_eos(tang):
    template = "{{ bos_token }}[U]{{ messages[0].content }}{{ eos_token }}"
    assert Tokenizer(tang.tokenizer.inner, template, "<s>", "</s>").apply_chat_template("Q") == "<s>[U]Q</s>"


def test_truncation_and_padding_stored_with_a_tokenizer_are_not_applied(tang):
    inner = tokenizers.Tokenizer.from_str(tang.tokenizer.inner.to_str())
    inner.enable_truncation(2)
    inner.enable_padding(length=8)
    assert Tokenizer(inner).encode("白日依山") == tang.tokenizer.encode("白日依山")


@pytest.mark.parametrize("wrong", [[-1], ["a"], [2**40]])
def test_ids_that_are_none_are_refused(tang, wrong):
    with pytest.raises(BadInput, match="token id"):
        tang.tokenizer.decode(wrong)


def test_a_character_that_the_library_would_drop_is_refused():
    pieces = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    assert pieces.encode("axzb").ids  # the library's own answer hides the loss
    assert Tokenizer(pieces).encode("abab") == [2, 2]
    with pytest.raises(BadInput, match="'x' \\(character 2"):
        Tokenizer(pieces).encode("axzb")


def test_missing_bytes_are_noticed_within_a_sequence_of_decoders():
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.ByteLevel()])
    with pytest.raises(BadInput, match="'z'"):
        Tokenizer(inner).encode("azb")
