"""Damaged, hostile and unsupported files: each is refused by name, none crashes, hangs or fills the memory."""

import json
import struct
import sys

import gguf
import numpy as np
import pytest
import safetensors.numpy
from checkpoint_files import LLAMA_FIELDS, character_tokenizer, random_weights, write_folder, write_gguf

import tinyinfer
from tinyinfer import BadInput
from tinyinfer.loading.gguf_header import read_header

HUGE = 2**60


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model")


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf").read_bytes()


def edit_config(folder, **changes):
    fields = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(fields))


def edit_weights(folder, edit):
    weights = random_weights(LLAMA_FIELDS)
    edit(weights)
    safetensors.numpy.save_file(weights, folder / "model.safetensors")


def write_safetensors(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def loads_or_is_refused(source) -> bool:
    """True when it loads. Anything but `BadInput` escapes, and so fails the test."""
    try:
        model = tinyinfer.load(source)
    except BadInput as refusal:
        assert str(source) in str(refusal) or source.stem in str(refusal) or "config" in str(refusal), refusal
        assert len(str(refusal)) < 1000
        return False
    with np.errstate(all="ignore"):  # a flipped exponent makes a weight huge, which is no error
        assert model.logits([3, 1, 2]).shape == (3, model.config.vocab)
    return True


# What is not there


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(BadInput, match=f"{missing} does not exist"):
        tinyinfer.load(folder)


@pytest.mark.parametrize("source", ["no/such/folder", "/no/such/file.gguf", "./nothing", "a" * 5000, "", "a\0b"])
def test_a_path_that_leads_nowhere_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput):
        tinyinfer.load(source)


def test_an_unknown_name_brings_a_near_one_to_mind():
    with pytest.raises(BadInput, match=r"unknown model 'tagn'.*Did you mean 'tang'\?"):
        tinyinfer.load("tagn")
    with pytest.raises(BadInput, match=r"Did you mean 'smollm2-135m'\?"):
        tinyinfer.load("smollm-135m")


def test_a_name_unlike_any_other_brings_no_suggestion():
    with pytest.raises(BadInput, match="unknown model") as refusal:
        tinyinfer.load("zzzz")
    assert "Did you mean" not in str(refusal.value)


def test_a_hub_id_without_a_network_is_refused(monkeypatch, tmp_path):
    import huggingface_hub.constants

    # Read once at import, so the environment variable alone would come too late.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(BadInput, match="'somebody/some-model' is not on this machine and cannot be fetched"):
        tinyinfer.load("somebody/some-model")


def test_a_hub_id_without_the_hub_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BadInput, match=r"cannot be fetched from the hub: .*huggingface_hub"):
        tinyinfer.load("somebody/some-model")


def test_a_gguf_file_without_the_gguf_package_is_refused(gguf_bytes, tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(gguf_bytes)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(BadInput, match="pip install 'tinyinfer\\[gguf\\]'"):
        tinyinfer.load(tmp_path / "model.gguf")


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x04pickle")
    with pytest.raises(BadInput, match=r"neither a folder nor a \.gguf file"):
        tinyinfer.load(tmp_path / "model.bin")


# config.json


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "\x00", '{"model_type": "llama"}', "[" * 100_000])
def test_a_config_that_is_no_json_object_with_every_field_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(BadInput, match=r"config\.json"):
        tinyinfer.load(folder)


def test_a_config_that_is_no_utf8_is_refused(folder):
    (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(BadInput, match=r"config\.json is not readable JSON"):
        tinyinfer.load(folder)


@pytest.mark.parametrize("field", sorted(LLAMA_FIELDS))
@pytest.mark.parametrize("value", ["x", [], {}, True, -1, 0, 1.5, float("nan"), float("inf"), HUGE, 10**400, None])
def test_a_field_of_any_wrong_kind_is_refused_or_harmless(folder, field, value):
    edit_config(folder, **{field: value})
    try:
        model = tinyinfer.load(folder)
    except BadInput as refusal:
        assert "Traceback" not in str(refusal)
    else:
        assert np.isfinite(model.logits([3, 1, 2])).all()


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("model_type", "gemma3", "model_type"),
        ("hidden_act", "gelu", "hidden_act"),
        ("quantization_config", {"quant_method": "gptq"}, "quantization_config"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0}, "rope_type is 'yarn'"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_type is 'linear'"),
        ("rope_scaling", {"rope_type": "llama3", "factor": 2.0}, "low_freq_factor"),
        ("rope_scaling", "llama3", "RoPE"),
        ("rope_parameters", {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}, "RoPE"),
        (
            "rope_parameters",
            {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
            "partial_rotary",
        ),
        ("partial_rotary_factor", 0.5, "partial_rotary_factor"),
        ("num_local_experts", 8, "num_local_experts"),
        ("mlp_bias", True, "mlp_bias"),
        ("sliding_window", "x", "sliding_window"),
        ("num_hidden_layers", HUGE, "layers"),
        ("num_key_value_heads", 4, "kv_heads"),
    ],
)
def test_a_config_that_asks_for_more_than_the_decoder_has_is_refused_by_name(folder, field, value, named):
    edit_config(folder, **({"model_type": "mistral"} if field == "sliding_window" else {}), **{field: value})
    with pytest.raises(BadInput, match=named):
        tinyinfer.load(folder)


def test_an_active_window_shorter_than_the_request_is_refused_at_the_request(folder):
    edit_config(folder, model_type="mistral", sliding_window=7)
    model = tinyinfer.load(folder)
    assert len(model.generate("abc", max_new_tokens=5).token_ids) == 5  # 3 + 5 - 1 = 7 slots
    with pytest.raises(BadInput, match="sliding_window is 7 and capacity 8"):
        model.generate("abc", max_new_tokens=6)


def test_the_end_tokens_of_generation_config_count(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert tinyinfer.load(folder).config.eos_ids == (5, 7)


# Weights


def test_a_missing_tensor_is_named(folder):
    edit_weights(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(BadInput, match=r"1 weights are missing, among them layers\.1\.up"):
        tinyinfer.load(folder)


def test_a_wrong_shape_is_named_with_both_shapes(folder):
    def turn(weights):
        name = "model.layers.0.mlp.down_proj.weight"
        weights[name] = np.ascontiguousarray(weights[name].T)

    edit_weights(folder, turn)
    with pytest.raises(BadInput, match=r"layers\.0\.down has shape \(160, 64\); the config asks for \(64, 160\)"):
        tinyinfer.load(folder)


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.experts.0.up_proj.weight", "model.layers.2.input_layernorm.weight", "vision.weight"]
)
def test_a_superfluous_tensor_is_refused_not_ignored(folder, name):
    edit_weights(folder, lambda weights: weights.update({name: np.ones(3, np.float32)}))
    with pytest.raises(BadInput, match=r"vision|experts|layers\.2"):
        tinyinfer.load(folder)


def test_a_stored_head_beside_a_tied_embedding_is_left_out(folder):
    edit_config(folder, tie_word_embeddings=True)
    assert "head" not in tinyinfer.load(folder).weights


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_named(folder, value):
    def poison(weights):
        weights["model.layers.1.self_attn.v_proj.weight"][5, 7] = value

    edit_weights(folder, poison)
    with pytest.raises(BadInput, match=r"layers\.1\.value holds NaN or infinite"):
        tinyinfer.load(folder)


def test_infinities_of_both_signs_do_not_cancel(folder):
    def poison(weights):
        weights["model.norm.weight"][3:5] = np.inf, -np.inf

    edit_weights(folder, poison)
    with pytest.raises(BadInput, match="final_norm holds NaN or infinite"):
        tinyinfer.load(folder)


def test_a_float64_beyond_float32_is_refused(folder):
    weights = {name: weight.astype(np.float64) for name, weight in random_weights(LLAMA_FIELDS).items()}
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    tinyinfer.load(folder)
    weights["model.norm.weight"][3] = 1e300
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    with pytest.raises(BadInput, match="final_norm holds NaN or infinite"):
        tinyinfer.load(folder)


def test_an_unsupported_dtype_is_named(folder):
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": np.ones(64, np.int8)}))
    with pytest.raises(BadInput, match=r"model\.norm\.weight has dtype I8"):
        tinyinfer.load(folder)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"weight_map": {"a": "../elsewhere.safetensors"}}, "must be a file of the same folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "must be a file of the same folder"),
        ({"weight_map": {"a": ".."}}, "not a whole safetensors file"),
        ({"weight_map": {"a": "a\0b"}}, "not a whole safetensors file"),
        ({"weight_map": {"a": "model-00002-of-00002.safetensors"}}, "model-00002-of-00002.safetensors does not exist"),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": ["model.safetensors"]}, "no weight_map"),
        ([], "a JSON object is needed"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(folder, index, reason):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match=reason):
        tinyinfer.load(folder)


# Damaged safetensors


def test_every_cut_of_a_safetensors_file_is_refused(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    cuts = {*range(0, 40), *np.random.default_rng(0).integers(0, len(whole), 40).tolist(), len(whole) - 1}
    for cut in cuts:
        path.write_bytes(whole[:cut])
        with pytest.raises(BadInput, match=r"model\.safetensors is not a whole safetensors file"):
            tinyinfer.load(folder)


def test_no_flipped_bit_of_a_safetensors_file_escapes_as_another_error(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    generator = np.random.default_rng(1)
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    places = [*range(8), *generator.integers(8, header, 150), *generator.integers(header, len(whole), 20)]
    loaded = 0
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        loaded += loads_or_is_refused(folder)
    assert loaded < len(places) // 2


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b"\xff\xff",
        {"a": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}},
        {"a": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [12, 0]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [-12, 0]}},
        {"a": {"dtype": "F99", "shape": [3], "data_offsets": [0, 12]}},
        {"a": {"dtype": "F32", "shape": [-3], "data_offsets": [0, 12]}},
    ],
)
def test_a_safetensors_header_that_lies_is_refused(folder, header):
    write_safetensors(folder / "model.safetensors", header, bytes(12))
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        tinyinfer.load(folder)


def test_a_safetensors_header_of_a_huge_length_is_refused(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", HUGE) + b"{}")
    with pytest.raises(BadInput, match="not a whole safetensors file"):
        tinyinfer.load(folder)


# Damaged GGUF


def test_every_cut_of_a_gguf_file_is_refused(gguf_bytes, tmp_path):
    path = tmp_path / "cut.gguf"
    header = gguf_bytes.index(b"output_norm.weight") + 400
    cuts = {*range(0, 60), *range(60, header, 17), *range(header, len(gguf_bytes), 9973), len(gguf_bytes) - 1}
    for cut in cuts:
        path.write_bytes(gguf_bytes[:cut])
        assert not loads_or_is_refused(path), cut


def test_no_flipped_bit_of_a_gguf_file_escapes_as_another_error(gguf_bytes, tmp_path):
    path = tmp_path / "flipped.gguf"
    generator = np.random.default_rng(2)
    header = gguf_bytes.index(b"output_norm.weight") + 400
    places = [*range(24), *generator.integers(24, header, 500), *generator.integers(header, len(gguf_bytes), 20)]
    refused = 0
    for place in places:
        damaged = bytearray(gguf_bytes)
        damaged[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        refused += not loads_or_is_refused(path)
    assert refused > 100


def test_no_number_of_a_gguf_header_set_to_something_huge_escapes_or_hangs(gguf_bytes, tmp_path):
    path = tmp_path / "huge.gguf"
    header = gguf_bytes.index(b"output_norm.weight") + 400
    for place in range(4, header, 3):
        path.write_bytes(gguf_bytes[:place] + struct.pack("<Q", HUGE) + gguf_bytes[place + 8 :])
        loads_or_is_refused(path)


@pytest.mark.parametrize(("tensors", "fields"), [(HUGE, 0), (0, HUGE), (HUGE, HUGE), (2**64 - 1, 2**64 - 1)])
def test_huge_counts_in_a_gguf_header_are_refused(tmp_path, tensors, fields):
    path = tmp_path / "counts.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, tensors, fields) + bytes(5000))
    with pytest.raises(BadInput, match="truncated or damaged"):
        tinyinfer.load(path)


@pytest.mark.parametrize("kind", [0, 1, 6, 7, 8, 9, 10, 12, 99])
def test_a_huge_array_in_a_gguf_header_is_refused(tmp_path, kind):
    path = tmp_path / "array.gguf"
    name = b"tokenizer.ggml.scores"
    entry = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, kind, HUGE)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + entry + bytes(100))
    with pytest.raises(BadInput, match="truncated or damaged"):
        tinyinfer.load(path)


def test_a_huge_number_of_layers_in_a_gguf_header_is_refused(gguf_bytes, tmp_path):
    place = gguf_bytes.index(b"llama.block_count") + len(b"llama.block_count") + 4
    path = tmp_path / "layers.gguf"
    path.write_bytes(gguf_bytes[:place] + struct.pack("<I", 2**32 - 1) + gguf_bytes[place + 4 :])
    with pytest.raises(BadInput, match=r"holds 21 tensors, too few for 4294967295 layers"):
        tinyinfer.load(path)


def test_tensors_that_claim_the_same_bytes_again_and_again_are_refused(gguf_bytes, tmp_path):
    path = tmp_path / "overlap.gguf"
    path.write_bytes(gguf_bytes)
    header, damaged = read_header(path), bytearray(gguf_bytes)
    for tensor in header.tensors:
        name = tensor.name.encode()
        place = gguf_bytes.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4 + 8 * len(tensor.shape) + 4
        damaged[place : place + 8] = bytes(8)  # the offset behind name, axes, shape and quantisation
    path.write_bytes(damaged[: header.tensors[0].start + 160 * 64 * 4])
    with pytest.raises(BadInput, match="its tensors claim more bytes than it has"):
        tinyinfer.load(path)


@pytest.mark.parametrize("start", [b"", b"GGU", b"GGML\x03\0\0\0", b"ggjt", b"PK\x03\x04" * 20, b"\0" * 100])
def test_wrong_magic_is_shown(tmp_path, start):
    (tmp_path / "model.gguf").write_bytes(start)
    with pytest.raises(BadInput, match="a GGUF file begins with b'GGUF'"):
        tinyinfer.load(tmp_path / "model.gguf")


@pytest.mark.parametrize("version", [0, 1, 4, 0x03000000])
def test_an_unknown_gguf_version_is_shown(gguf_bytes, tmp_path, version):
    (tmp_path / "model.gguf").write_bytes(gguf_bytes[:4] + struct.pack("<I", version) + gguf_bytes[8:])
    with pytest.raises(BadInput, match=f"is GGUF version {version}; supported are 2 and 3"):
        tinyinfer.load(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"llama__rope__scaling__type": "yarn"}, r"llama\.rope\.scaling\.type is 'yarn'"),
        ({"llama__expert_count": 8}, r"llama\.expert_count is 8"),
        ({"llama__rope__dimension_count": 8}, r"llama\.rope\.dimension_count is 8, head_dim 16"),
        ({"tokenizer__ggml__pre": "tekken"}, r"tokenizer\.ggml\.pre is 'tekken'"),
        ({"tokenizer__ggml__bos_token_id": 9999}, "bos_token_id is 9999"),
        ({"tokenizer__ggml__eos_token_id": 9999}, "eos_token_id is 9999"),
        ({"tokenizer__ggml__eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"without": ("tokenizer.ggml.tokens",)}, r"tokenizer\.ggml\.tokens"),
        ({"without": ("blk.1.ffn_up.weight",)}, r"among them layers\.1\.up"),
    ],
)
def test_a_gguf_header_that_asks_for_more_than_there_is_is_refused_by_name(tmp_path, changes, reason):
    path = write_gguf(tmp_path / "model.gguf", **changes)
    with pytest.raises(BadInput, match=reason):
        tinyinfer.load(path)


def test_another_gguf_architecture_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadInput, match=r"general\.architecture is 'mamba'; supported: llama"):
        tinyinfer.load(path)


@pytest.mark.parametrize(
    ("name", "weight", "reason"),
    [
        ("rope_freqs.weight", np.ones(8, np.float32), "rope_freqs.weight"),
        ("blk.0.ffn_gate_inp.weight", np.ones((5, 64), np.float32), "blk.0.ffn_gate_inp.weight is not part"),
        ("blk.0.attn_q.bias", np.ones(95, np.float32), r"blk\.0\.attn_q\.bias has shape \(95,\)"),
        ("model.norm.weight", np.full(64, np.nan, np.float32), "final_norm holds NaN"),
        ("model.norm.weight", np.ones(64, np.int8), "output_norm.weight has quantisation I8"),
        ("lm_head.weight", np.ones((64, 41), np.float32), r"output.weight has shape \(64, 41\)"),
    ],
)
def test_a_tensor_that_does_not_belong_in_a_gguf_file_is_named(tmp_path, name, weight, reason):
    path = write_gguf(tmp_path / "model.gguf", weights=random_weights(LLAMA_FIELDS) | {name: weight})
    with pytest.raises(BadInput, match=reason):
        tinyinfer.load(path)


# Tokenizers


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": "1.0", "model": {"type": "Magic"}}'])
def test_a_corrupt_tokenizer_is_named(folder, text):
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(BadInput, match=r"tokenizer\.json is not a tokenizer"):
        tinyinfer.load(folder)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder):
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["白", "日"])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(BadInput, match=r"tokenizer\.json has 43 tokens, config\.json a vocab_size of only 41"):
        tinyinfer.load(folder)


def test_a_tokenizer_s_unknown_character_is_refused_with_its_place(folder):
    with pytest.raises(BadInput, match=r"does not know '日' \(character 3 of the prompt\)"):
        tinyinfer.load(folder).generate("ab日c")


def test_a_broken_chat_template_is_refused(folder):
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(BadInput, match="chat template cannot be used"):
        tinyinfer.load(folder).tokenizer.apply_chat_template("hello")


@pytest.mark.parametrize(
    "template", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ 1 / 0 }}", "{{ 1 + '' }}"]
)
def test_a_hostile_chat_template_cannot_leave_its_sandbox(folder, template):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(BadInput, match="chat template cannot be used"):
        tinyinfer.load(folder).tokenizer.apply_chat_template("hello")
