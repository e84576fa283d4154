"""A .gguf holds the model that was exported, and llama.cpp computes the same where it is there."""
import importlib.util
import json
import sys

import numpy as np
import pytest
import torch
from conftest import call, refused, save_model, tiny_model

import hf
from lib import checkpoint, gguf_files, text

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
KINDS = {"llama": "Llama", "qwen3": "Qwen3", "mistral3": "Ministral3"}
RUNS = importlib.util.find_spec("llama_cpp") is not None


@pytest.fixture(autouse=True)
def no_llama_cpp(monkeypatch):
    """As in an environment without the package; one test takes this back."""
    monkeypatch.setitem(sys.modules, "llama_cpp", None)


def tokenizer(pre="gpt-2", end="<|endoftext|>"):
    """A tokenizer of bytes with three merges and a special token, which is read in no time."""
    from tokenizers.pre_tokenizers import ByteLevel
    pieces = [end, *sorted(ByteLevel.alphabet()), "Ġa", "12", "Ġ1"]
    return gguf_files.byte_level({piece: i for i, piece in enumerate(pieces)},
                                 [("Ġ", "a"), ("1", "2"), ("Ġ", "1")], [end], pre)


V = 260  # its tokens


def export(tmp_path, model, *arguments, vocab=None):
    save_model(tmp_path / "ours/ckpt.pt", model, vocab or tokenizer().to_str())
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/m.gguf", *arguments)
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
@torch.no_grad()
def test_the_file_holds_the_same_model(tmp_path, capsys, attention_type, qk_norm, arch, n_kv_head):
    model = tiny_model(attention_type, qk_norm=qk_norm, n_kv_head=n_kv_head, vocab_size=V)
    theirs, keys = load(export(tmp_path, model))
    assert keys["general.architecture"] == arch
    idx = torch.randint(V, (2, 70))
    tolerance = 5e-3 if arch == "mistral3" else 1e-4  # the 1 that is added to a log n
    assert (theirs(idx).logits - model(idx, idx)[0]).abs().max() < tolerance
    printed = capsys.readouterr().out
    assert f"m.gguf: {arch}, float32, the file was read back" in printed
    assert "but was not run in llama.cpp" in printed
    if attention_type == "ssmax":  # what is cached keeps its size
        k = model.blocks[0].attn.qkv.weight[32:].split(32 // (2 // (n_kv_head or 2)))[0]
        assert theirs.model.layers[0].self_attn.k_proj.weight.equal(k)


@torch.no_grad()
def test_a_softmax_file_comes_back_and_ssmax_is_refused_in_one_line(tmp_path):
    model = tiny_model("softmax", vocab_size=V)
    path = export(tmp_path, model)
    call(hf, "import", path, f"--out_dir={tmp_path}/back")
    back, _ = checkpoint.load_model(tmp_path / "back")
    idx = torch.randint(V, (1, 30))
    assert (back(idx, idx)[0] - model(idx, idx)[0]).abs().max() < 1e-5
    # a swap
    call(hf, "export", tmp_path / "ours", "--attention_type=ssmax", f"--out_dir={tmp_path}/e.gguf")
    theirs, keys = load(tmp_path / "e.gguf")
    model, _ = checkpoint.load_model(tmp_path / "ours", attention_type="ssmax")
    assert (theirs(idx).logits - model(idx, idx)[0]).abs().max() < 5e-3
    assert keys["general.name"] == "softmax>ssmax"
    refused("architecture mistral3 is not supported",
            call, hf, "import", tmp_path / "e.gguf", f"--out_dir={tmp_path}/x")


@torch.no_grad()
def test_theta_of_the_evaluation_is_written_where_it_is_asked_for(tmp_path):
    model = tiny_model(vocab_size=V)
    keys, _ = gguf_files.read(export(tmp_path, model))
    assert keys["mistral3.rope.freq_base"] == 1e4
    assert "RoPE's theta is 10,000, as trained" in keys["general.description"]
    model, _ = checkpoint.load_model(tmp_path / "ours", rope_scaling="theta", rope_factor=50.0)
    idx = torch.randint(V, (1, 70))
    for name in ("x.gguf", "x"):
        call(hf, "export", tmp_path / "ours", "--rope_factor=50", f"--out_dir={tmp_path}/{name}")
        if name == "x.gguf":
            theirs, keys = load(tmp_path / name)
            assert "500,000, 50 times that of training" in keys["general.description"]
        else:
            theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).eval()
        assert (theirs(idx).logits - model(idx, idx)[0]).abs().max() < 5e-3


def test_bfloat16_is_of_matrices(tmp_path):
    model = tiny_model(vocab_size=V)
    _, tensors = gguf_files.read(export(tmp_path, model, "--dtype=bfloat16"))
    down = tensors["blk.0.ffn_down.weight"]
    assert down.tensor_type.name == "BF16"
    assert tensors["output_norm.weight"].tensor_type.name == "F32", "as llama.cpp wants it"
    ours = model.blocks[0].mlp.down.weight.detach()
    assert torch.tensor(gguf.dequantize(down.data, down.tensor_type)).equal(ours.bfloat16().float())


@torch.no_grad()
def test_an_id_that_a_compact_vocabulary_lacks_is_never_the_likeliest(tmp_path):
    vocab = [*range(100, 160), 50256]
    model = tiny_model(vocab_size=61)
    model.lm_head.weight.data -= 2 * model.norm.weight  # most logits are below 0
    theirs, keys = load(export(tmp_path, model, vocab=vocab))
    idx = torch.randint(61, (1, 40))
    logits, ids = theirs(torch.tensor(vocab)[idx]).logits, torch.tensor(vocab)
    assert logits.size(-1) == 50257
    assert [keys[f"tokenizer.ggml.{end}_token_id"] for end in ("bos", "eos")] == [50256, 50256]
    assert keys["tokenizer.ggml.add_bos_token"], "documents stand behind an end of text"
    assert keys["tokenizer.ggml.tokens"][50256] == "<|endoftext|>"
    assert (logits[..., ids] - model(idx, idx)[0]).abs().max() < 5e-3
    assert (logits[..., ids].amax(-1) < 0).any() and set(logits.argmax(-1)[0].tolist()) <= {*vocab}


@pytest.mark.parametrize("pre", gguf_files.pre_tokenizers())
def test_a_tokenizer_that_llama_cpp_knows_is_named_and_comes_back(tmp_path, pre):
    vocab = tokenizer(pre).to_str()
    model = tiny_model("softmax", vocab_size=V + 2)  # two rows without a token
    keys, _ = gguf_files.read(export(tmp_path, model, vocab=vocab))
    assert keys["tokenizer.ggml.pre"] == pre
    assert keys["tokenizer.ggml.token_type"] == [3] + [1] * (V - 1) + [5, 5]
    assert not keys["tokenizer.ggml.add_bos_token"], "its tokenizer adds none"
    assert gguf_files.tokenizer_config(keys)["eos_token"] == "<|endoftext|>"
    back = gguf_files.tokenizer_json(keys)
    sample = "a 1212 a  12\n\nI'LL a"
    assert text.encode(sample, back) == text.encode(sample, vocab)


def test_a_token_that_is_never_split_comes_back(tmp_path):
    ours = tokenizer("gpt-2")
    ours.add_tokens(["a1a"])
    keys, _ = gguf_files.read(export(tmp_path, tiny_model("softmax", vocab_size=V + 1),
                                     vocab=ours.to_str()))
    assert text.encode("a a1a", gguf_files.tokenizer_json(keys)) == ours.encode("a a1a").ids
    assert ours.encode("a a1a").ids[-1] == V


def test_a_softmax_model_keeps_its_training_length(tmp_path):
    path = export(tmp_path, tiny_model("softmax", vocab_size=V), vocab=tokenizer("gpt-2").to_str())
    hf.import_model(str(path), tmp_path / "back")
    _, state = checkpoint.load_model(tmp_path / "back")
    assert state["model_config"]["block_size"] == tiny_model().config.block_size


def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_refused(tmp_path):
    from tokenizers import normalizers, pre_tokenizers
    strange = tokenizer("gpt-2")
    strange.pre_tokenizer = pre_tokenizers.Whitespace()
    sentencepiece = tokenizer("gpt-2")
    sentencepiece.normalizer = normalizers.Replace(" ", "▁")
    for vocab in (strange.to_str(), sentencepiece.to_str()):
        refused("has no name in llama.cpp that hf.py knows; it knows gpt-2, smollm, llama-bpe",
                export, tmp_path, tiny_model(vocab_size=V), vocab=vocab)


def test_an_instruct_model_keeps_its_chat_template_and_its_end(tmp_path):
    vocab = tokenizer("smollm")
    vocab.add_special_tokens(["<|im_end|>"])
    vocab = vocab.to_str()
    path = tmp_path / "ours"
    save_model(path / "ckpt.pt", tiny_model("softmax", vocab_size=V + 1), vocab)
    (path / "tokenizer.json").write_text(vocab, encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [V, 0]}))
    call(hf, "export", path, f"--out_dir={tmp_path}/m.gguf")
    keys, _ = gguf_files.read(tmp_path / "m.gguf")
    assert keys["tokenizer.ggml.eos_token_id"] == V
    assert "tokenizer.ggml.bos_token_id" not in keys
    assert keys["tokenizer.chat_template"] == "{{ messages }}"


def test_what_has_no_form_in_llama_cpp_is_refused_by_name_and_leaves_nothing(tmp_path, monkeypatch):
    for settings, says in [
            ({"attention_type": "ssmax_bias"}, "ssmax_bias cannot be exported to .* a folder"),
            ({"attention_type": "pn"}, "pn cannot be exported to llama.cpp"),
            ({"attention_type": "asentmax"}, "asentmax cannot be exported to llama.cpp"),
            ({"qk_norm": True}, "ssmax with qk_norm cannot be exported to llama.cpp"),
            ({"sink": "learned"}, "sink=learned of this checkpoint cannot be exported"),
            ({"window": 8, "window_pattern": "SL"}, "window_pattern=SL of this .* llama.cpp")]:
        refused(says, export, tmp_path, tiny_model(**settings))
    refused("already has attention_type", export, tmp_path, tiny_model(), "--attention_type=ssmax")
    windows = tiny_model(window=8, window_pattern="SL")
    refused("RoPE inside a window is never stretched", export, tmp_path, windows, "--rope_factor=2")
    for arguments, says in [(["--dtype=float16"], "dtype=float16 must be one of float32, bfloat16"),
                            (["--rope_factor=0.5"], "rope_factor=0.5 must be at least 1")]:
        refused(says, export, tmp_path, tiny_model(), *arguments)
    refused("dtype=bfloat16 is for a .gguf", call, hf, "export", "x", "--out_dir=x",
            "--dtype=bfloat16")
    refused("rope_factor is a setting of export", call, hf, "import", "x", "--out_dir=x",
            "--rope_factor=2")
    model = tiny_model(vocab_size=V)
    with monkeypatch.context() as patch:  # a disk that loses a byte
        patch.setattr(gguf_files, "read", lambda path: ({"general.name": "other"}, {}))
        refused("differs from what was written to it .general.name", export, tmp_path, model)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    before = export(tmp_path, model).read_bytes()
    refused("m.gguf exists, and is never overwritten; choose another", export, tmp_path, model)
    assert (tmp_path / "m.gguf").read_bytes() == before


@pytest.mark.skipif(not RUNS, reason="llama_cpp is not installed")
@pytest.mark.parametrize("attention_type, qk_norm, dtype, vocab", [
    ("ssmax", False, "float32", [*range(100, 160), 50256]), ("ssmax", False, "bfloat16", None),
    ("softmax", False, "float32", None), ("softmax", True, "float32", None)])
def test_llama_cpp_computes_the_same(
        tmp_path, capsys, monkeypatch, attention_type, qk_norm, dtype, vocab):
    monkeypatch.delitem(sys.modules, "llama_cpp")
    model = tiny_model(attention_type, qk_norm=qk_norm, n_kv_head=1,
                       vocab_size=len(vocab) if vocab else V)
    export(tmp_path, model, f"--dtype={dtype}", vocab=vocab)
    says = capsys.readouterr().out
    assert "logits differ from the checkpoint's by" in says
    assert dtype == "bfloat16" or "30 of 30 tokens of a greedy continuation are the same" in says
    (tmp_path / "m.gguf").unlink()

    def wrong(*arguments):
        keys = model_keys(*arguments)
        return keys | {key: 3.0 for key in keys if key.endswith("freq_base")}

    model_keys = gguf_files.model_keys
    monkeypatch.setattr(gguf_files, "model_keys", wrong)
    refused("its logits differ by .* must not be used", export, tmp_path, model, vocab=vocab)
    assert not (tmp_path / "m.gguf").exists()
