"""Models in and out: transformers computes the same, and every folder that is none is one line."""
import dataclasses
import json
import os
import random

import pytest
import torch
from conftest import call, refused, save_model, tiny_model

import hf
from lib import checkpoint, text
from model import ATTENTION, log_n, mean_log_n, one, p_n

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")
gguf = pytest.importorskip("gguf")
KINDS = {("softmax", False): "Llama", ("softmax", True): "Qwen3", ("head_scale", False): "Llama",
         ("ssmax", False): "Ministral3", ("ssmax_s1", False): "Ministral3"}
# the types whose f(n) has a form in transformers
EXPORTED = [kind for kind, factor in ATTENTION.items()
            if factor.f in (one, log_n, mean_log_n, p_n)]


def export(tmp_path, model, vocab=None):
    save_model(tmp_path / "ours/ckpt.pt", model, vocab)
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/theirs")
    return transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "theirs", trust_remote_code=True, dtype=torch.float32).eval()


def import_(tmp_path, source, model):
    """The checkpoint that import makes, which must hold `model`."""
    call(hf, "import", tmp_path / source, f"--out_dir={tmp_path}/back")
    back, state = checkpoint.load_model(tmp_path / "back")
    for name, p in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], p), name
    if source == "theirs":  # else a swap would have another 1 / mean log n
        assert back.config.block_size == model.config.block_size, "trained at another length"
    idx = torch.arange(model.config.vocab_size)[None, :30]
    far = (back(idx, idx)[0] - model(idx, idx)[0]).abs().max()
    assert far < 1e-5, f"the same weights, but logits are {far} apart: another config"
    return state


@pytest.mark.parametrize("n_kv_head", [0, 1])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("attention_type", EXPORTED)
@torch.no_grad()
def test_transformers_computes_the_same(tmp_path, attention_type, qk_norm, n_kv_head):
    model = tiny_model(attention_type, qk_norm=qk_norm, n_kv_head=n_kv_head, vocab_size=50257)
    theirs = export(tmp_path, model)
    kind = KINDS.get((attention_type, qk_norm), "NanoSSMax")
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    # Ministral3 adds 1 to its factor; hf.py itself checks that all else is equal
    same_answers(theirs, model, 5e-3 if kind == "Ministral3" else 1e-4)
    if attention_type == "softmax":
        assert import_(tmp_path, "theirs", model)["vocab"] is None, "GPT-2's, as of any corpus"


def same_answers(theirs, model, tolerance=1e-4):
    """The same logits and text of both, with caches and padding of transformers as well."""
    idx = torch.randint(50257, (2, min(70, model.max_len)))
    assert (theirs(idx).logits - model(idx, idx)[0]).abs().max() < tolerance
    prompt, how = idx[:, :9], {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None,
                               "pad_token_id": 0}
    ours, all_of_it = model.generate(prompt, 9, temperature=0), torch.ones_like(prompt)
    assert torch.equal(theirs.generate(prompt, attention_mask=all_of_it, **how), ours)
    static = theirs.generate(prompt, attention_mask=all_of_it, cache_implementation="static",
                             disable_compile=True, **how)
    assert torch.equal(static, ours), "with a static cache"
    nothing = torch.zeros(2, 5, dtype=torch.long)
    padded = theirs.generate(torch.cat((nothing, prompt), 1),
                             attention_mask=torch.cat((nothing, all_of_it), 1), **how)
    assert torch.equal(padded[:, 5:], ours), "padded on the left"


@pytest.mark.parametrize("settings", [
    {"qk_norm": True}, {"global_rope": True, "n_kv_head": 1}, {"attention_type": "softmax"},
    {"attention_type": "pn"}, {"window_pattern": "S", "attention_type": "softmax"},
    {"window_pattern": "SSL", "n_layer": 5, "attention_type": "ssmax_bias"}], ids=str)
@torch.no_grad()
def test_transformers_computes_windows(tmp_path, settings):
    settings = {"attention_type": "ssmax", "window": 8, "window_pattern": "SL", **settings}
    model = tiny_model(**settings, vocab_size=50257)
    theirs = export(tmp_path, model)
    assert type(theirs).__name__ == "NanoSSMaxForCausalLM"
    same_answers(theirs, model)


@pytest.mark.parametrize("n_kv_head", [1, 2])
@pytest.mark.parametrize("attention_type", ["ssmax", "ssmax_s1"])
def test_an_exported_ssmax_comes_back_as_it_was(tmp_path, attention_type, n_kv_head):
    model = tiny_model(attention_type, n_kv_head=n_kv_head, vocab_size=50257)
    export(tmp_path, model)
    call(hf, "import", tmp_path / "theirs", f"--out_dir={tmp_path}/back")
    back, state = checkpoint.load_model(tmp_path / "back")
    assert state["vocab"] is None
    assert dataclasses.replace(back.config, init_std=model.config.init_std) == model.config
    for name, p in model.state_dict().items():
        came = back.state_dict()[name]
        if name.endswith("qkv.weight"):
            # The product of W_q and s was rounded, so that the last bit of W_q may be another.
            last_bit = torch.finfo(torch.float32).eps if attention_type == "ssmax" else 0
            assert torch.allclose(came[:32], p[:32], rtol=last_bit, atol=0), name
            came, p = came[32:], p[32:]
        assert torch.equal(came, p), name
    call(hf, "export", tmp_path / "back", f"--out_dir={tmp_path}/again")
    files = [tmp_path / name / "model.safetensors" for name in ("theirs", "again")]
    first, second = (safetensors_torch.load_file(file) for file in files)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), f"{name}: s W_q is another number than before"


def test_an_exported_ssmax_whose_s_is_not_recorded_keeps_it_in_its_weights(tmp_path):
    model = tiny_model(vocab_size=50257)
    export(tmp_path, model)
    path = tmp_path / "theirs/config.json"
    config = json.loads(path.read_text())
    s = config.pop("ssmax_s")
    path.write_text(json.dumps(config | {"ssmax_s": s[:1]}))
    refused("ssmax_s in config.json does not fit the layers",
            call, hf, "import", tmp_path / "theirs", f"--out_dir={tmp_path}/back")
    path.write_text(json.dumps(config))  # as folders of older versions
    call(hf, "import", tmp_path / "theirs", f"--out_dir={tmp_path}/back")
    back, _ = checkpoint.load_model(tmp_path / "back")
    idx = torch.randint(50257, (2, 30))
    assert back.config.attention_type == "ssmax_s1"
    assert (back(idx, idx)[0] - model(idx, idx)[0]).abs().max() < 1e-4


def test_a_head_without_a_query_comes_back(tmp_path):
    model = tiny_model(vocab_size=50257)
    model.blocks[1].attn.s.data[1] = 0.0
    export(tmp_path, model)
    call(hf, "import", tmp_path / "theirs", f"--out_dir={tmp_path}/back")
    back, _ = checkpoint.load_model(tmp_path / "back")
    idx = torch.randint(50257, (2, 30))
    assert (back(idx, idx)[0] - model(idx, idx)[0]).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_ssmax_is_loaded_in_half_precision(tmp_path, dtype):
    model = tiny_model(vocab_size=50257)
    export(tmp_path, model)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=dtype)
    idx = torch.randint(50257, (1, 300))
    position_ids = torch.arange(300)[None] + 10**6  # where log n is large
    far = theirs(idx, position_ids=position_ids).logits
    assert far.isfinite().all(), "the factor overflows"
    near = (theirs(idx).logits - model(idx, idx)[0]).abs().mean()
    assert near < 0.1 * model(idx, idx)[0].std(), "another model"


def test_a_folder_that_computes_something_else_is_not_made(tmp_path, monkeypatch):
    def wrong(model):
        tensors = to_tensors(model)
        tensors["model.layers.1.self_attn.v_proj.weight"] *= 1.1
        return tensors

    to_tensors = hf.to_tensors
    monkeypatch.setattr(hf, "to_tensors", wrong)
    for attention_type in ("softmax", "ssmax", "ssmax_bias"):
        save_model(tmp_path / "ckpt.pt", tiny_model(attention_type, vocab_size=50257), None)
        refused("logits differ by .* must not be used",
                call, hf, "export", tmp_path, f"--out_dir={tmp_path}/x")
        assert not (tmp_path / "x").exists()


def test_every_embedding_of_an_exported_ssmax_is_trained(tmp_path):
    theirs = export(tmp_path, tiny_model(vocab_size=50257))
    idx = torch.tensor([[5, 11, 7, 11]])  # 11 is the padding of Ministral3's own tokenizer
    theirs(idx, labels=idx).loss.backward()
    assert theirs.get_input_embeddings().weight.grad[11].any()


@torch.no_grad()
def test_a_swapped_model_is_exported(tmp_path):
    save_model(tmp_path / "ours/ckpt.pt", tiny_model("softmax", vocab_size=50257), None)
    call(hf, "export", tmp_path / "ours", "--attention_type=ssmax", f"--out_dir={tmp_path}/e")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "e").eval()
    model, _ = checkpoint.load_model(tmp_path / "ours", attention_type="ssmax")
    idx = torch.randint(50257, (2, 70))
    assert type(theirs).__name__ == "Ministral3ForCausalLM"
    assert (theirs(idx).logits - model(idx, idx)[0]).abs().max() < 5e-3
    for attention_type, says in [("softmax", "nothing is swapped"),
                                 ("max", "attention_type=max must be one of softmax, ssmax"),
                                 ("pn", "equals softmax until it is trained"),
                                 ("logn_clip", "cannot be exported to transformers")]:
        refused(says, call, hf, "export", tmp_path / "ours", f"--attention_type={attention_type}",
                f"--out_dir={tmp_path}/x")


def test_an_instruct_model_keeps_its_chat_template_and_its_end(tmp_path):
    export(tmp_path, tiny_model("softmax", vocab_size=50260))
    source = tmp_path / "theirs"
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"})
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
    tokenizer.save_pretrained(source)
    end = tokenizer.eos_token_id
    assert end == 50257
    # a temperature without do_sample, which transformers itself does not save
    (source / "generation_config.json").write_text(json.dumps(
        {"eos_token_id": [end, 50256], "pad_token_id": end, "temperature": 0.6}))
    call(hf, "import", source, f"--out_dir={tmp_path}/in")
    # a checkpoint that was trained from it, in a folder of its own
    state = checkpoint.load(tmp_path / "in")
    state["base"], state["config"] = state["config"], {"init_from": f"{tmp_path}/in"}
    checkpoint.save(tmp_path / "tuned/ckpt.pt", state)
    # and one of the third generation
    state["base"] = {"init_from": f"{tmp_path}/tuned", "base": state["config"]}
    state["config"] = {"init_from": f"{tmp_path}/tuned_again"}
    checkpoint.save(tmp_path / "third/ckpt.pt", state)
    for name in ("in", "tuned", "third"):
        out = tmp_path / f"out_{name}"
        call(hf, "export", tmp_path / name, "--attention_type=ssmax", f"--out_dir={out}")
        exported = transformers.AutoTokenizer.from_pretrained(out)
        chat = [{"role": "user", "content": "two  spaces"}]
        assert exported.apply_chat_template(chat) == tokenizer.apply_chat_template(chat)
        assert exported.eos_token_id == exported.pad_token_id == end
        theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
        assert theirs.generation_config.eos_token_id == [end, 50256]
        assert theirs.generation_config.temperature == 0.6
        assert theirs.config.eos_token_id == [end, 50256]
        assert theirs.config.pad_token_id is None, "its embedding would not be trained"


@pytest.mark.parametrize("n_kv_head", [1, 2])
@torch.no_grad()
def test_the_window_of_mistral_is_a_window_here(tmp_path, n_kv_head):
    export(tmp_path, tiny_model("softmax", vocab_size=50257))
    config = transformers.MistralConfig(
        vocab_size=50257, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=n_kv_head, max_position_embeddings=64,
        sliding_window=8, initializer_range=0.2)
    torch.manual_seed(0)
    theirs = transformers.MistralForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "mistral")
    tokenizer = (tmp_path / "theirs/tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "mistral/tokenizer.json").write_text(tokenizer, encoding="utf-8")
    call(hf, "import", tmp_path / "mistral", f"--out_dir={tmp_path}/back")
    model, _ = checkpoint.load_model(tmp_path / "back")
    idx = torch.randint(50257, (2, 50))
    assert (theirs(idx).logits - model(idx, idx)[0]).abs().max() < 1e-4
    wide = theirs(idx, attention_mask=torch.ones(1, 1, 50, 50).tril().bool()).logits
    assert (wide - model(idx, idx)[0]).abs().max() > 0.01, "the window does not show"
    prompt = idx[:, :20]
    again = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20,
                            do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(again, model.generate(prompt, 20, temperature=0))


def plain(kind, **changes):
    """A config.json as people write them by hand."""
    return {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99,
            "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96,
            "max_position_embeddings": 128, "hidden_act": "silu", **changes}


@pytest.mark.parametrize("config, says", [
    (transformers.GPT2Config().to_dict(), "has another architecture, gpt2; .* imports llama, "),
    (transformers.Qwen2Config().to_dict(), "has another architecture, qwen2; .* imports llama"),
    (plain("mamba9"), "has another architecture, mamba9; "),
    (plain("llama", rope_theta=5e5, rope_scaling={  # Llama 3.1, 3.2
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}),
     r"this llama has scaled RoPE \(rope_type llama3\), .* hf.py imports .*rope_type default"),
    (plain("qwen3", head_dim=32),  # Qwen3-0.6B and 4B
     "this qwen3 has heads 32 wide, where hidden_size / num_attention_heads is 16, "),
    (plain("mistral", head_dim=12, sliding_window=None),  # Nemo
     "this mistral has heads 12 wide, where hidden_size / num_attention_heads is 16, "),
    (plain("mistral", sliding_window=4096),
     "a sliding window of 4,096, longer than its context of 128"),
    (plain("qwen3", head_dim=16, use_sliding_window=True, sliding_window=8, max_window_layers=1),
     "a sliding window in some of its layers"),
    (plain("ministral3", head_dim=16, rope_parameters={
        "rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 16384}),
     "this ministral3 has another temperature than SSMax"),
    (plain("llama", attention_bias=True, hidden_act="gelu"), "biases and another activation than"),
])
def test_what_does_not_come_in_is_said_before_the_weights_are_read(tmp_path, config, says):
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(says, call, hf, "import", tmp_path, f"--out_dir={tmp_path}/x")


def test_a_folder_that_exists_is_never_written_over(tmp_path):
    save_model(tmp_path / "run/ckpt.pt", tiny_model(vocab_size=50257), None)
    before = (tmp_path / "run/ckpt.pt").read_bytes()
    for what in ("import", "export"):
        refused("run exists, and is never overwritten; choose another --out_dir",
                call, hf, what, tmp_path / "run", f"--out_dir={tmp_path}/run")
    assert (tmp_path / "run/ckpt.pt").read_bytes() == before
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "ckpt.pt"]


def test_a_source_that_is_not_there_is_called_missing(tmp_path):
    for source, says in [(f"{tmp_path}/gone", "there is no folder .*gone; name one with config"),
                         ("models/of/mine", "there is no folder models/of/mine"),
                         ("./gone", "there is no folder ./gone"),
                         ("gone/model.gguf", "there is no file gone/model.gguf"),
                         ("no/such", "no/such is no folder here, and not a model that")]:
        refused(says, call, hf, "import", source, f"--out_dir={tmp_path}/x")


def test_a_tied_model_has_two_matrices_here_and_a_tokenizer_cuts_nothing(tmp_path):
    model = tiny_model("softmax", vocab_size=50257)
    model.lm_head.weight.data = model.wte.weight.data.clone()
    export(tmp_path, model)
    folder = tmp_path / "theirs"
    tensors = safetensors_torch.load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    safetensors_torch.save_file(tensors, folder / "model.safetensors")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0,
                               "direction": "Right"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused("differ in lm_head.weight", call, hf, "import", folder, f"--out_dir={tmp_path}/x")
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    vocab = import_(tmp_path, "theirs", model)["vocab"]
    assert len(text.encode("a b c d e f g", vocab)) == 7
    refused("the tokenizer has no end of text",
            text.end_of_text, vocab.replace("<|endoftext|>", "<end>"))
    tokenizer["added_tokens"][0] |= {"content": "<one more>", "id": 50257}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused("its tokenizer.json has more tokens than the model",
            call, hf, "import", folder, f"--out_dir={tmp_path}/x")


def test_a_piece_of_text_gets_one_space_from_sentencepiece():
    from tokenizers import Tokenizer, models, normalizers
    ids = {piece: i for i, piece in enumerate(("▁", "a", "▁a", "b", "▁b", "</s>"))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[("▁", "a"), ("▁", "b")]))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    for sample in (" a b", "a b"):
        assert text.encode(sample, tokenizer.to_str()) == [2, 4]


def test_a_compact_vocabulary_is_scattered_to_gpt2s(tmp_path):
    vocab = sorted(random.Random(0).sample(range(50256), 60)) + [50256]
    model = tiny_model(vocab_size=61)
    theirs = export(tmp_path, model, vocab)
    idx = torch.randint(61, (1, 20))
    ours = model.generate(idx, 9, temperature=0)[0]
    ids = torch.tensor(vocab)
    found = theirs.generate(ids[idx], attention_mask=torch.ones_like(idx), max_new_tokens=9,
                            eos_token_id=None, do_sample=False)
    assert found[0].tolist() == ids[ours].tolist(), "ids that the model never saw come"


def test_the_tokenizer_has_tiktokens_ids(tmp_path):
    export(tmp_path, tiny_model("softmax", vocab_size=50257, n_layer=1))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    vocab = (tmp_path / "theirs/tokenizer.json").read_text(encoding="utf-8")
    rng = random.Random(0)
    noise = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(160, 0x3000)]))
                    for _ in range(3000))
    for sample in ("two  spaces\n\n\ttabs \u00a0\u2003 12345 don't I'LL", "naïve 中文 😀🏽\u200d",
                   noise):
        ids = text.encode(sample)
        assert tokenizer(sample)["input_ids"] == text.encode(sample, vocab) == ids
        assert tokenizer.decode(ids) == text.decode(ids, vocab) == sample
    assert text.end_of_text(vocab) == tokenizer.eos_token_id == 50256
    assert text.vocab_size(vocab) == 50257


def write_gguf(path, model, tokens):
    """What llama.cpp would make of a model: neighbouring pairs in q and k."""
    c, D = model.config, model.config.n_embd // model.config.n_head
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in {
            "embedding_length": c.n_embd, "block_count": c.n_layer, "context_length": 64,
            "feed_forward_length": c.n_inner, "attention.head_count": c.n_head,
            "attention.head_count_kv": c.n_kv_head}.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", c.norm_eps)
    writer.add_float32("llama.rope.freq_base", c.rope_theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.n_layer)
    for name, w in hf.to_hf(model, None).state_dict().items():
        if "q_proj" in name or "k_proj" in name:
            w = w.view(-1, 2, D // 2, w.size(1)).transpose(1, 2).reshape(w.shape)
        writer.add_tensor(names.get_name(name, [".weight"]), w.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_is_the_same_model(tmp_path):
    tokens = ["<|endoftext|>", "a", "b", "ab", "1", "2", "Ġ"]
    model = tiny_model("softmax", vocab_size=len(tokens), n_kv_head=1)
    write_gguf(tmp_path / "m.gguf", model, tokens)
    vocab = import_(tmp_path, "m.gguf", model)["vocab"]
    assert text.encode("ab 12<|endoftext|>", vocab, special=True) == [3, 6, 4, 5, 0]
    settings = json.loads((tmp_path / "back/tokenizer_config.json").read_text())
    assert settings == {"eos_token": "b", "chat_template": "{{ messages }}"}
    generation = json.loads((tmp_path / "back/generation_config.json").read_text())
    assert generation["eos_token_id"] == 2
    os.truncate(tmp_path / "m.gguf", os.path.getsize(tmp_path / "m.gguf") // 2)
    refused("m.gguf is not a model .* or it is incomplete",
            call, hf, "import", f"{tmp_path}/m.gguf", f"--out_dir={tmp_path}/x")


@pytest.mark.parametrize("change, says", [
    # the class of Mistral has a window of 4,096 where config.json does not say
    ({"model_type": "mistral", "max_position_embeddings": 64}, "a sliding window of 4,096"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "scaled RoPE"),
    ({"vocab_size": 50300}, "config.json and weights differ in lm_head.weight"),
    ({"hidden_size": None}, "is not a model that"),
    ({"num_hidden_layers": 3}, "config.json and weights differ in model.layers.2"),
    ({"num_hidden_layers": 1}, "config.json and weights differ in model.layers.1"),
    *((name, "theirs is not a model .* or it is incomplete")  # a file that is lost, or cut
      for name in ("config.json", "model.safetensors", "tokenizer.json", "cut"))])
def test_what_the_model_cannot_represent_or_lacks_is_refused_by_name(tmp_path, change, says):
    export(tmp_path, tiny_model("softmax", vocab_size=50257))
    path = tmp_path / "theirs/config.json"
    if type(change) is dict:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    elif change == "cut":
        os.truncate(tmp_path / "theirs/model.safetensors", 5000)
    else:
        (tmp_path / "theirs" / change).unlink()
    refused(says, call, hf, "import", f"{tmp_path}/theirs", f"--out_dir={tmp_path}/x")
    assert not (tmp_path / "x").exists()


def test_arguments_and_unknown_types_are_one_line(tmp_path):
    for arguments in (["import"], ["import", "x"], ["copy", "x", "--out_dir=y"]):
        refused("give import SOURCE or export CHECKPOINT", call, hf, *arguments)
    refused("attention_type is a setting of export", call, hf, "import", "x",
            "--attention_type=ssmax", f"--out_dir={tmp_path}/x")
    for attention_type in ATTENTION.keys() - EXPORTED:
        save_model(tmp_path / "ckpt.pt", tiny_model(attention_type), None)
        refused(f"{attention_type} cannot be exported to transformers",
                call, hf, "export", tmp_path, f"--out_dir={tmp_path}/x")
    for settings, says in [({"sink": "learned"}, "sink=learned"), ({"gate": True}, "gate=True"),
                           ({"window": 8, "window_pattern": "SL", "gate": True}, "gate=True")]:
        save_model(tmp_path / "ckpt.pt", tiny_model("softmax", **settings), None)
        refused(f"{says} of this checkpoint cannot be exported to transformers;",
                call, hf, "export", tmp_path, f"--out_dir={tmp_path}/x")
    # stretched in training, or now
    windows = {"window": 8, "window_pattern": "SL", "global_rope": True}
    for settings, options in [({"rope_scaling": "theta", "rope_factor": 50.0}, []),
                              ({}, ["--rope_factor=50"]),
                              ({"global_rope": False}, ["--rope_factor=50"])]:
        save_model(tmp_path / "ckpt.pt", tiny_model("softmax", **windows | settings), None)
        refused("windows and rope_factor=50.0 cannot be exported", call, hf, "export", tmp_path,
                f"--out_dir={tmp_path}/x", *options)
    assert not (tmp_path / "x").exists()


def test_a_mask_of_training_does_not_hinder_an_export(tmp_path):
    assert type(export(tmp_path, tiny_model("softmax", vocab_size=50257, doc_mask=True))
                ).__name__ == "LlamaForCausalLM"
