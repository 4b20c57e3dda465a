"""GGUF files say the same as the Hugging Face folders they were made from."""

import gguf
import numpy as np
import pytest
from checkpoint_files import LLAMA_FIELDS, random_weights, write_folder, write_gguf

import tinyinfer
from tinyinfer import BadInput
from tinyinfer.loading.gguf_header import read_header

QWEN2_FIELDS = LLAMA_FIELDS | {"model_type": "qwen2"}
PROMPT = [3, 7, 1, 19, 2, 23, 5, 11, 13, 17, 29]


@pytest.mark.parametrize("fields", [LLAMA_FIELDS, QWEN2_FIELDS], ids=["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_gguf_file_gives_the_logits_of_its_folder(tmp_path, fields, tied):
    fields = fields | {"tie_word_embeddings": tied}
    folder = tinyinfer.load(write_folder(tmp_path / "folder", fields))
    file = tinyinfer.load(write_gguf(tmp_path / "model.gguf", fields))
    for field in ("layers", "model_dim", "heads", "kv_heads", "head_dim", "ffn_dim", "vocab", "rope_base", "tied_head"):
        assert getattr(file.config, field) == getattr(folder.config, field), field
    assert file.config.rms_eps == pytest.approx(folder.config.rms_eps, rel=1e-6)
    for name, weight in folder.weights.items():
        np.testing.assert_array_equal(file.weights[name], weight, err_msg=name)
    np.testing.assert_allclose(file.logits(PROMPT), folder.logits(PROMPT), rtol=1e-5, atol=1e-5)


def test_only_files_of_architecture_llama_have_permuted_rows(tmp_path):
    weights = random_weights(QWEN2_FIELDS)
    query = weights["model.layers.1.self_attn.q_proj.weight"]
    stored = {
        architecture: next(
            tensor.data
            for tensor in gguf.GGUFReader(write_gguf(tmp_path / f"{architecture}.gguf", fields)).tensors
            if tensor.name == "blk.1.attn_q.weight"
        )
        for architecture, fields in (("llama", LLAMA_FIELDS), ("qwen2", QWEN2_FIELDS))
    }
    np.testing.assert_array_equal(stored["qwen2"], query)
    # Row 1 of a llama file is the first row of the second half of head 0: row 8 of 16.
    llama_query = random_weights(LLAMA_FIELDS)["model.layers.1.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(stored["llama"][:4], llama_query[[0, 8, 1, 9]])


@pytest.mark.parametrize("quantisation", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_dequantised_values_equal_those_of_the_gguf_package(tmp_path, quantisation):
    weights = random_weights(QWEN2_FIELDS, seed=5)
    model = tinyinfer.load(write_gguf(tmp_path / "model.gguf", QWEN2_FIELDS, weights, quantisation))
    kind = gguf.GGMLQuantizationType[quantisation]
    for ours, theirs in (
        ("embedding", "model.embed_tokens.weight"),
        ("head", "lm_head.weight"),
        ("layers.1.query", "model.layers.1.self_attn.q_proj.weight"),
        ("layers.0.down", "model.layers.0.mlp.down_proj.weight"),
    ):
        expected = gguf.quants.dequantize(gguf.quants.quantize(weights[theirs], kind), kind)
        np.testing.assert_array_equal(model.weights[ours], expected)
        assert model.weights[ours].dtype == np.float32
        assert 0 < np.abs(expected - weights[theirs]).max() < 0.1  # rounded, but the same weight
    np.testing.assert_array_equal(
        model.weights["layers.1.ffn_norm"], weights["model.layers.1.post_attention_layernorm.weight"]
    )


def test_fields_of_every_type_are_read_as_the_gguf_package_reads_them(tmp_path):
    path = tmp_path / "fields.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for index, kind in enumerate(("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")):
        getattr(writer, f"add_{kind}")(f"a.{kind}", 101 + index if kind.startswith("u") else -101 - index)
    writer.add_float32("a.float32", 0.37)
    writer.add_float64("a.float64", 0.37)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "白日依山")
    writer.add_array("a.texts", ["白", "", "th"])
    writer.add_array("a.numbers", [-3, 5, 70_000])
    writer.add_array("a.fractions", [0.25, 1.5])
    writer.add_custom_alignment(1024)
    writer.add_tensor("a", np.arange(7, dtype=np.float32))
    writer.add_tensor("b", np.arange(15, dtype=np.float32).reshape(5, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header, reader = read_header(path), gguf.GGUFReader(path)
    theirs = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert header.fields == theirs
    for ours, tensor in zip(header.tensors, reader.tensors, strict=True):
        assert (ours.name, ours.shape, ours.start) == (tensor.name, tensor.data.shape, tensor.data_offset)


def test_smollm2_has_the_published_shape(smollm2):
    config = smollm2.config
    assert (config.layers, config.model_dim, config.heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.ffn_dim, config.vocab, config.rope_base, config.tied_head) == (1536, 49_152, 100_000.0, True)
    assert config.rms_eps == pytest.approx(1e-5)
    assert config.max_context == 8192
    assert config.eos_ids == (2,)
    assert smollm2.tokenizer.inner.id_to_token(2) == "<|im_end|>"
    assert sum(weight.size for weight in smollm2.weights.values()) == 134_515_008


def test_smollm2_knows_the_capital_of_france(smollm2):
    answer = smollm2.generate("The capital of France is", max_new_tokens=1)
    assert (answer.prompt_token_ids, answer.text) == ([504, 3575, 282, 4649, 314], " Paris")


def test_smollm2_refuses_a_byte_that_its_vocabulary_lacks(smollm2):
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode("naïve 白日依山")) == "naïve 白日依山"
    with pytest.raises(BadInput, match=r"does not know '\\x04'"):
        smollm2.tokenizer.encode("end of\x04transmission")


def test_a_chat_message_stands_between_the_models_own_marks(smollm2):
    text = smollm2.tokenizer.apply_chat_template("Hello")
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    ids = smollm2.tokenizer.encode(text, special=False)
    assert ids.count(1) == text.count("<|im_start|>") and ids.count(2) == text.count("<|im_end|>")


def test_files_of_llama_3_take_whole_pieces_and_begin_with_bos(tmp_path):
    def tokenizer(name, **fields):
        return tinyinfer.load(write_gguf(tmp_path / name, tokenizer__ggml__bos_token_id=3, **fields)).tokenizer

    plain = tokenizer("plain.gguf", tokenizer__ggml__pre="gpt-2")
    llama3 = tokenizer("llama3.gguf", tokenizer__ggml__pre="llama-bpe")
    silent = tokenizer("silent.gguf", tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=False)
    assert llama3.encode("th") == [3, *plain.encode("th")]
    assert silent.encode("th") == plain.encode("th")
    assert '"ignore_merges":true' in llama3.inner.to_str() and '"ignore_merges":false' in plain.inner.to_str()
