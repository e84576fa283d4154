"""Models in and out: transformers computes the same, and every folder that is none is one line."""
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
    idx = torch.randint(50257, (2, min(70, model.max_len)))
    assert (theirs(idx).logits - model(idx, idx)[0]).abs().max() < 1e-4
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
    if attention_type == "softmax":
        tokenizer = import_(tmp_path, "theirs", model)["vocab"]
        assert tokenizer == (tmp_path / "theirs/tokenizer.json").read_text(encoding="utf-8")


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
    assert text.encode("ab 12<|endoftext|>", vocab) == [3, 6, 4, 5, 0]
    os.truncate(tmp_path / "m.gguf", os.path.getsize(tmp_path / "m.gguf") // 2)
    refused("m.gguf is no model .* or incomplete",
            call, hf, "import", f"{tmp_path}/m.gguf", f"--out_dir={tmp_path}/x")


@pytest.mark.parametrize("change, says", [
    ({"attention_bias": True}, "biases"), ({"head_dim": 99}, "heads that are not"),
    ({"model_type": "mixtral"}, "another architecture"),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "scaled RoPE"),
    ({"model_type": "mistral"}, "a sliding window"),  # its class has one where config.json does not
    ({"vocab_size": 50300}, "config.json and weights differ in lm_head.weight"),
    ({"hidden_act": "gelu"}, "another activation"), ({"hidden_size": None}, "is no model of"),
    ({"num_hidden_layers": 3}, "config.json and weights differ in model.layers.2"),
    ({"num_hidden_layers": 1}, "config.json and weights differ in model.layers.1"),
    *((name, "theirs is no model .* or incomplete")  # a file that is lost, or cut
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
        refused("say import SOURCE or export CHECKPOINT", call, hf, *arguments)
    refused("no/such is no model", call, hf, "import", "no/such", f"--out_dir={tmp_path}/x")
    for attention_type in ATTENTION.keys() - EXPORTED:
        save_model(tmp_path / "ckpt.pt", tiny_model(attention_type), None)
        refused(f"{attention_type} has no form in transformers",
                call, hf, "export", tmp_path, f"--out_dir={tmp_path}/x")
    save_model(tmp_path / "ckpt.pt", tiny_model("softmax", sink="learned"), None)
    refused("sink=learned of this checkpoint has no form there",
            call, hf, "export", tmp_path, f"--out_dir={tmp_path}/x")
    assert not (tmp_path / "x").exists()
