"""A .gguf holds the model that was exported, and llama.cpp computes the same where it is there."""
import importlib.util
import json

import numpy as np
import pytest
import torch
from conftest import call, refused, save_model
from test_hf import V, import_, model_of, refuse_import, same_logits, tokenizer

import hf
from lib import checkpoint, text
from lib.checkpoint import LoadConfig
from lib.interop import gguf_files

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
KINDS = {"llama": "Llama", "qwen3": "Qwen3", "mistral3": "Ministral3"}
RUNS = importlib.util.find_spec("llama_cpp") is not None


def export(tmp_path, model, *options, vocab=None):
    save_model(tmp_path / "ours/ckpt.pt", model, vocab or tokenizer().to_str())
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/m.gguf", *options)
    return tmp_path / "m.gguf"


def load(path):
    """The model of transformers that a .gguf describes, by what llama.cpp's source does with it."""
    keys, tensors = gguf_files.read(path)
    arch = keys["general.architecture"]
    get = {key.removeprefix(f"{arch}."): value for key, value in keys.items()}.get
    width, layers = get("attention.key_length"), get("block_count")
    rope = {"rope_type": "default", "rope_theta": get("rope.freq_base")}
    special = {}
    if arch == "mistral3":
        assert get("rope.scaling_beta") == get("attention.temperature_scale"), "Ollama's engine"
        rope |= {"llama_4_scaling_beta": get("attention.temperature_scale"),
                 "original_max_position_embeddings": get("rope.scaling.original_context_length")}
        special["sliding_window"] = None
    config = getattr(transformers, f"{KINDS[arch]}Config")(
        vocab_size=len(get("tokenizer.ggml.tokens")),
        hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"),
        num_hidden_layers=layers, head_dim=width, num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"), tie_word_embeddings=False,
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"), rope_parameters=rope,
        rope_theta=get("rope.freq_base"), pad_token_id=None, **special)
    names = gguf.get_tensor_name_map(
        {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[arch], layers)
    arrays = {name: gguf.dequantize(t.data, t.tensor_type) for name, t in tensors.items()}
    theirs = getattr(transformers, f"{KINDS[arch]}ForCausalLM")(config).eval()
    state = {}
    for name in theirs.state_dict():
        tensor = torch.tensor(np.array(arrays.pop(names.get_name(name, [".weight"]))))
        if arch != "qwen3" and ("q_proj" in name or "k_proj" in name):
            # llama.cpp's RoPE of this architecture turns rows 2i and 2i + 1 of a head
            parts = [head[start::2] for head in tensor.split(width) for start in (0, 1)]
            tensor = torch.cat(parts)
        state[name] = tensor
    assert not arrays, "tensors that no model has"
    theirs.load_state_dict(state)
    return theirs, keys


@pytest.mark.parametrize("n_kv_head", [0, 1])
@pytest.mark.parametrize("attention_type, qk_norm, arch", [
    ("softmax", False, "llama"), ("softmax", True, "qwen3"), ("head_scale", False, "llama"),
    ("ssmax", False, "mistral3"), ("ssmax_s1", False, "mistral3")])
def test_the_file_holds_the_same_model(tmp_path, attention_type, qk_norm, arch, n_kv_head):
    model = model_of(attention_type, qk_norm=qk_norm, n_kv_head=n_kv_head)
    theirs, keys = load(export(tmp_path, model))
    assert keys["general.architecture"] == arch and keys[f"{arch}.rope.freq_base"] == 1e4
    same_logits(theirs, model, 5e-3 if arch == "mistral3" else 1e-4)  # 1 is added to a log n
    if attention_type == "ssmax":  # what is cached keeps its size
        k = model.blocks[0].attn.qkv.weight[32:].split(32 // (2 // (n_kv_head or 2)))[0]
        assert theirs.model.layers[0].self_attn.k_proj.weight.equal(k)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_softmax_file_comes_back_bit_by_bit(tmp_path, qk_norm):
    model = model_of("softmax", qk_norm=qk_norm)
    path = export(tmp_path, model)
    back, state = import_(tmp_path, path.name)
    assert back.config.block_size == model.config.block_size
    for name, p in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], p), name
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
    refuse_import("m.gguf is not a model .* or it is incomplete", tmp_path, path.name)


def test_a_length_that_is_a_lie_is_one_line_at_once(tmp_path):
    path = export(tmp_path, model_of("softmax"))
    whole = path.read_bytes()
    start = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type")
    whole += bytes((start - len(whole)) % 4)  # so that no element of the array is cut in half
    for where in (start + 8, 8, 16):  # numbers of elements, tensors and keys
        for length in (2**40, 2**63):
            path.write_bytes(whole[:where] + length.to_bytes(8, "little") + whole[where + 8:])
            refuse_import("m.gguf is not a model .* or it is incomplete", tmp_path, path.name)


@pytest.mark.parametrize("name, value", [
    ("rope_freqs.weight", np.full(8, 8, dtype=np.float32)),  # Llama 3.1 and 3.2
    ("blk.0.attn_q.bias", np.ones(32, dtype=np.float32)),
    ("llama.rope.scaling.type", "yarn"), ("llama.attention.sliding_window", 8),
    ("llama.rope.dimension_count", 8)])
def test_what_transformers_skips_in_a_file_is_refused(tmp_path, monkeypatch, name, value):
    write_header = gguf.GGUFWriter.write_header_to_file

    def add_and_write(writer):
        if type(value) is np.ndarray:
            writer.add_tensor(name, value)
        else:
            writer.kv_data[0].pop(name, None)
            writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
        write_header(writer)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", add_and_write)
    path = export(tmp_path, model_of("softmax"))
    refuse_import(f"m.gguf has {name}, which model.py lacks", tmp_path, path.name)


def test_a_swapped_and_stretched_model_is_written_and_is_no_softmax(tmp_path):
    path = export(tmp_path, model_of("softmax"), "--attention_type=ssmax", "--rope_factor=50")
    theirs, keys = load(path)
    model, _ = checkpoint.load_model(tmp_path / "ours", LoadConfig(
        attention_type="ssmax", rope_factor=50.0))
    same_logits(theirs, model, 5e-3)
    assert keys["general.name"] == "softmax>ssmax" and keys["mistral3.rope.freq_base"] == 5e5
    refuse_import("architecture mistral3 is not supported", tmp_path, path.name)


def test_a_compact_vocabulary_keeps_its_ids_and_its_probabilities(tmp_path):
    vocab = [*range(100, 160), 50256]
    model = model_of(vocab_size=61)
    theirs, keys = load(export(tmp_path, model, vocab=vocab))
    same_logits(theirs, model, 5e-3)
    tokens = text.tokenizer(hf.tokenizer_text(None)).get_vocab()
    assert [tokens[token] for token in keys["tokenizer.ggml.tokens"]] == vocab
    assert [keys[f"tokenizer.ggml.{end}_token_id"] for end in ("bos", "eos")] == [60, 60]
    assert keys["tokenizer.ggml.add_bos_token"], "documents come after an end of text"
    assert keys["tokenizer.ggml.token_type"] == [1] * 60 + [3]


@pytest.mark.parametrize("pre", gguf_files.pre_tokenizers())
def test_a_tokenizer_that_llama_cpp_knows_is_named_and_comes_back(tmp_path, pre):
    ours = tokenizer(pre)
    ours.add_tokens(["a1a"])  # is never split
    vocab = ours.to_str()
    model = model_of("softmax", vocab_size=V + 3)  # two rows without a token
    keys, _ = gguf_files.read(export(tmp_path, model, vocab=vocab))
    assert keys["tokenizer.ggml.pre"] == pre
    assert keys["tokenizer.ggml.token_type"] == [3] + [1] * (V - 1) + [4, 5, 5]
    assert not keys["tokenizer.ggml.add_bos_token"], "its tokenizer adds none"
    back = gguf_files.tokenizer_json(keys)
    sample = "a 1212 a  12\n\nI'LL a1a<|endoftext|>"
    assert text.encode(sample, back, special=True) == text.encode(
        sample, vocab, special=True)
    assert text.encode(sample, back, special=True)[-2:] == [V, 0]
    whole_words_first = len(text.encode("xy", back)) == 1
    assert whole_words_first == (pre == "llama-bpe"), "as llama.cpp does"


def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_refused(tmp_path):
    from tokenizers import normalizers, pre_tokenizers
    strange = tokenizer()
    strange.pre_tokenizer = pre_tokenizers.Whitespace()
    sentencepiece = tokenizer()
    sentencepiece.normalizer = normalizers.Replace(" ", "▁")
    for vocab in (strange.to_str(), sentencepiece.to_str()):
        refused("has no name in llama.cpp that hf.py knows; it knows gpt-2, smollm, llama-bpe",
                export, tmp_path, model_of(), vocab=vocab)
    without_merges = gguf_files.byte_level(tokenizer().get_vocab(), [], ["<|endoftext|>"])
    refused("has no merges, and llama.cpp does not load", export, tmp_path, model_of(),
            vocab=without_merges.to_str())
    refused("does not know the tokenizer of this GGUF .llama, default.", gguf_files.tokenizer_json,
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"})


def test_an_instruct_model_keeps_its_chat_template_and_its_end(tmp_path):
    vocab = tokenizer("smollm")
    vocab.add_special_tokens(["<|im_end|>"])
    path = tmp_path / "ours"
    path.mkdir()
    hf.write_texts(path, vocab.to_str(), {"chat_template": "{{ messages }}", "eos_token":
                                          "<|im_end|>"}, {"eos_token_id": [V, 0]})
    file = export(tmp_path, model_of("softmax", vocab_size=V + 1), vocab=vocab.to_str())
    keys, _ = gguf_files.read(file)
    assert keys["tokenizer.ggml.eos_token_id"] == V
    assert "tokenizer.ggml.bos_token_id" not in keys
    assert keys["tokenizer.chat_template"] == "{{ messages }}"
    call(hf, "import", file, f"--out_dir={tmp_path}/back")
    settings = json.loads((tmp_path / "back/tokenizer_config.json").read_text())
    assert settings == {"eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}
    generation = json.loads((tmp_path / "back/generation_config.json").read_text())
    assert generation["eos_token_id"] == V


@pytest.mark.parametrize("settings", [
    {"attention_type": "ssmax_bias"}, {"attention_type": "pn"}, {"qk_norm": True},
    {"window": 8, "window_pattern": "SL"},
    {"attention_type": "softmax", "window": 8, "window_pattern": "S"}], ids=str)
def test_what_llama_cpp_cannot_compute_is_refused_and_leaves_nothing(tmp_path, settings):
    refused("cannot be exported to llama.cpp, .* export to a folder", export, tmp_path,
            model_of(**settings))
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.mark.skipif(not RUNS, reason="llama_cpp is not installed")
@pytest.mark.parametrize("attention_type, qk_norm, vocab", [
    ("ssmax", False, [*range(100, 160), 50256]), ("ssmax", False, None),
    ("softmax", False, None), ("softmax", True, None)])
@torch.no_grad()
def test_llama_cpp_computes_the_same(tmp_path, attention_type, qk_norm, vocab):
    import llama_cpp
    model = model_of(attention_type, qk_norm=qk_norm, n_kv_head=1,
                     vocab_size=len(vocab) if vocab else V)
    path = export(tmp_path, model, vocab=vocab)
    f32 = llama_cpp.GGML_TYPE_F32
    llm = llama_cpp.Llama(str(path), n_ctx=300, logits_all=True, type_k=f32, type_v=f32,
                          n_gpu_layers=0, verbose=False)
    ids = torch.randint(model.config.vocab_size, (1, 300))
    llm.eval(ids[0, :270].tolist())
    for i in ids[0, 270:].tolist():  # one by one, as in generation
        llm.eval([i])
    logits = torch.tensor(np.array(llm.scores[:300]))
    assert (logits - model(ids, ids)[0][0]).abs().max() < 0.01
    sample = "It's  1,234 needles:\n\n\tnaïve 中文 don't I'LL"
    if not vocab:
        assert llm.tokenize(sample.encode(), add_bos=False) == text.encode(
            sample, tokenizer().to_str())
    llm.close()
