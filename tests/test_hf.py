"""Models in and out of transformers: the same numbers on both sides, and one line for the rest."""
import dataclasses
import fcntl
import json
import os
import random
import resource

import pytest
import torch
from conftest import CPU, byte_tokenizer, call, refused, save_model, tiny_model

import hf
import sample
from lib import checkpoint, text
from lib.checkpoint import LoadConfig
from lib.interop import mapping
from model import ATTENTION
from ssmax_hf import KINDS, add_ssmax

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")
EXPORTED = ["softmax", *KINDS]
V = 261  # tokens of `tokenizer`


def tokenizer(**options):
    """A tokenizer of bytes with three merges, a special token, and a word that no merge makes."""
    return byte_tokenizer("Ġ a", "1 2", "Ġ 1", "xy", **options)


def model_of(attention_type="ssmax", **changes):
    return tiny_model(attention_type, **{"vocab_size": V, **changes})


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def export(tmp_path, model, *options, vocab=None):
    """The model of transformers that hf.py makes of `model`."""
    save_model(tmp_path / "ours/ckpt.pt", model, vocab or tokenizer().to_str())
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/theirs", *options)
    return load(tmp_path / "theirs")


def import_(tmp_path, source="theirs"):
    call(hf, "import", tmp_path / source, f"--out_dir={tmp_path}/back")
    return checkpoint.load_model(tmp_path / "back")


def refuse_import(says, tmp_path, source="theirs"):
    refused(says, call, hf, "import", tmp_path / source, f"--out_dir={tmp_path}/x")
    left = {path.name for path in tmp_path.iterdir() if "x" in path.name}
    assert left <= {".x.lock"}, "something is left of it"


def refuse_export(says, tmp_path, model, *options):
    save_model(tmp_path / "ours/ckpt.pt", model, tokenizer().to_str())
    refused(says, call, hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/x", *options)
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["ours"], "something is left of it"


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def same_logits(theirs, model, tolerance=1e-4):
    idx = torch.randint(model.config.vocab_size, (2, min(70, model.max_len)))
    with torch.no_grad():
        far = (theirs(idx).logits - model(idx, idx)[0]).abs().max()
    assert far < tolerance


def same_answers(theirs, model):
    """The same text of both, with the caches and the padding of transformers."""
    prompt = torch.randint(model.config.vocab_size, (2, 9))
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ours, everything = model.generate(prompt, 9, temperature=0), torch.ones_like(prompt)
    assert torch.equal(theirs.generate(prompt, attention_mask=everything, **options), ours)
    static = theirs.generate(prompt, attention_mask=everything, cache_implementation="static",
                             disable_compile=True, **options)
    assert torch.equal(static, ours), "with a static cache"
    nothing = torch.zeros(2, 5, dtype=torch.long)
    padded = theirs.generate(torch.cat((nothing, prompt), 1),
                             attention_mask=torch.cat((nothing, everything), 1), **options)
    assert torch.equal(padded[:, 5:], ours), "padded on the left"


# -----------------------------------------------------------------------------
# export


WINDOWS = {"window": 8, "window_pattern": "SL", "attention_type": "ssmax"}
CASES = [({"attention_type": kind, "qk_norm": qk_norm, "n_kv_head": n_kv_head},
          "Qwen3" if qk_norm else "Llama")
         for kind, qk_norm, n_kv_head in [
             *((kind, i % 3 == 2, 1) for i, kind in enumerate(EXPORTED)),
             ("softmax", True, 1), ("ssmax", False, 0), ("ssmax", True, 1),
             ("head_scale", True, 0)]]
CASES += [({**WINDOWS, **changes}, kind) for changes, kind in [
    ({"qk_norm": True, "window_pattern": "SR"}, "Qwen3"),
    ({"window_pattern": "SR", "n_kv_head": 1}, "SmolLM3"),
    ({"attention_type": "softmax"}, "SmolLM3"), ({"attention_type": "head_scale"}, "SmolLM3"),
    ({"window_pattern": "SSLR", "n_layer": 5, "attention_type": "ssmax_bias"}, "SmolLM3"),
    ({"window_pattern": "L", "window": 0}, "SmolLM3"),
    ({"window_pattern": "S", "attention_type": "softmax"}, "SmolLM3")]]


@pytest.mark.parametrize("settings, kind", CASES, ids=str)
def test_every_model_becomes_its_class_and_computes_the_same(tmp_path, settings, kind):
    model = model_of(**settings)
    theirs = export(tmp_path, model)
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    kind_of_factor = settings["attention_type"]
    in_weights = kind_of_factor == "head_scale" and not settings.get("qk_norm")
    needs_ssmax_hf = kind_of_factor != "softmax" and not in_weights
    assert hasattr(theirs.config, "ssmax") == needs_ssmax_hf
    same_logits(theirs, model)
    same_answers(theirs, model)


@pytest.mark.parametrize("kind, n_kv_head", [
    ("ssmax", 1), ("ssmax", 0), ("ssmax_s1", 1), ("head_scale", 1)])
def test_for_llama_cpp_the_factor_is_in_the_weights(tmp_path, kind, n_kv_head):
    model = model_of(kind, n_kv_head=n_kv_head)
    theirs = export(tmp_path, model, "--llama_cpp")
    name = "Llama" if kind == "head_scale" else "Ministral3"
    assert type(theirs).__name__ == f"{name}ForCausalLM" and not hasattr(theirs.config, "ssmax")
    same_logits(theirs, model, 5e-3)  # Ministral3 adds 1 to its factor
    same_answers(theirs, model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_ssmax_is_loaded_in_half_precision(tmp_path, dtype):
    model = model_of()
    export(tmp_path, model, "--llama_cpp")
    theirs = load(tmp_path / "theirs", dtype=dtype)
    idx = torch.randint(V, (1, 300))
    position_ids = torch.arange(300)[None] + 10**6  # where log n is large
    assert theirs(idx, position_ids=position_ids).logits.isfinite().all(), "the factor overflows"
    near = (theirs(idx).logits - model(idx, idx)[0]).abs().mean()
    assert near < 0.1 * model(idx, idx)[0].std(), "another model"


@pytest.mark.parametrize("attention_type", ["softmax", "ssmax", "ssmax_bias"])
def test_an_export_that_computes_something_else_is_not_made(tmp_path, monkeypatch, attention_type):
    def wrong(*arguments):
        theirs = to_hf(*arguments)
        theirs.model.layers[1].self_attn.v_proj.weight.data *= 1.1
        return theirs

    to_hf = mapping.to_hf
    monkeypatch.setattr(mapping, "to_hf", wrong)
    save_model(tmp_path / "ours/ckpt.pt", model_of(attention_type), tokenizer().to_str())
    refused("has other logits than the checkpoint", call, hf, "export", tmp_path / "ours",
            f"--out_dir={tmp_path}/x")
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["ours"]


def test_a_model_is_exported_with_its_swap_and_its_theta(tmp_path):
    theirs = export(tmp_path, model_of("softmax", doc_mask=True),  # a mask of training only
                    "--attention_type=ssmax", "--rope_factor=50")
    model, _ = checkpoint.load_model(tmp_path / "ours", LoadConfig(
        attention_type="ssmax", rope_factor=50.0))
    same_logits(theirs, model)
    assert theirs.config.rope_parameters["rope_theta"] == 5e5


@pytest.mark.parametrize("options", [[], ["--llama_cpp"]], ids=str)
def test_batches_are_padded_and_every_embedding_is_trained(tmp_path, options):
    theirs = export(tmp_path, model_of(), *options)
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")(
        ["a", "a 12"], padding=True, return_tensors="pt")
    assert batch["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    idx = torch.tensor([[5, 11, 7, 11]])  # 11 is the padding of Ministral3's own tokenizer
    theirs(idx, labels=idx).loss.backward()
    assert theirs.get_input_embeddings().weight.grad[11].any()


@pytest.mark.parametrize("settings", [{}, WINDOWS], ids=str)
def test_a_folder_continues_prompts_as_sample_does(tmp_path, capsys, settings):
    model = model_of(**settings, vocab_size=text.GPT2_VOCAB)
    save_model(tmp_path / "ours/ckpt.pt", model, None)
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/theirs")
    theirs = load(tmp_path / "theirs")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for prompt in (" the", "of and\nto", ""):
        capsys.readouterr()
        call(sample, tmp_path / "ours", f"--prompt={prompt}", *CPU, "--temperature=0",
             "--num_samples=1", "--max_new_tokens=20")
        ours = capsys.readouterr().out.removesuffix("\n" + "-" * 80 + "\n")
        answer = theirs.generate(**read(prompt, return_tensors="pt"), max_new_tokens=20)
        assert read.decode(answer[0], skip_special_tokens=True) == ours


@pytest.mark.parametrize("settings, learned", [
    ({}, "ss"), ({"attention_type": "ssmax_bias"}, "sbsb"), ({"attention_type": "softmax"}, ""),
    ({"attention_type": "residual"}, "ss"), (WINDOWS, "s")], ids=str)
def test_what_is_learned_is_trained_in_transformers_and_comes_back(tmp_path, settings, learned):
    model = model_of(**settings)
    theirs = export(tmp_path, model)
    names = [name for name, _ in theirs.named_parameters() if "ssmax_norm" in name]
    assert "".join(name[-1] for name in names) == learned
    theirs.train()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    idx = torch.randint(V, (2, 30))
    theirs(idx, labels=idx).loss.backward()
    optimizer.step()
    theirs.eval().save_pretrained(tmp_path / "theirs")
    back, _ = import_(tmp_path)
    same_logits(theirs, back)
    assert back.config.attention_type == settings.get("attention_type", "ssmax")


def test_a_factor_that_is_put_in_with_another_mean_is_not_imported_as_ours(tmp_path):
    theirs = export(tmp_path, model_of("softmax"))
    add_ssmax(theirs, "logn_clip", scale=1.5, length=32).save_pretrained(tmp_path / "theirs")
    refuse_import("has a feature that model.py lacks", tmp_path)


def test_gpt2s_tokenizer_has_tiktokens_ids_and_comes_back_as_no_file(tmp_path):
    save_model(tmp_path / "ours/ckpt.pt", model_of("softmax", vocab_size=50257, n_layer=1), None)
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/theirs")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    vocab = (tmp_path / "theirs/tokenizer.json").read_text(encoding="utf-8")
    rng = random.Random(0)
    noise = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(160, 0x3000)]))
                    for _ in range(3000))
    for passage in ("two  spaces\n\n\ttabs \u00a0\u2003 12345 don't I'LL", "naïve 中文 😀🏽\u200d",
                    noise):
        ids = text.encode(passage)
        assert read(passage)["input_ids"] == [50256, *ids]
        assert text.encode(passage, vocab) == ids
        assert read.decode(ids) == text.decode(ids, vocab) == passage
    assert text.end_of_text(vocab) == read.eos_token_id == 50256
    assert import_(tmp_path)[1]["vocab"] is None


@pytest.mark.parametrize("options", [[], ["--llama_cpp"]], ids=str)
def test_gpt2s_vocabulary_comes_back_after_transformers_has_saved_it(tmp_path, options):
    """A corpus with the same ids would otherwise be refused as another vocabulary."""
    save_model(tmp_path / "ours/ckpt.pt",
               model_of("softmax", vocab_size=text.GPT2_VOCAB, n_layer=1), None)
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/theirs", *options)
    has_end = json.loads((tmp_path / "theirs/tokenizer.json").read_text())["post_processor"]
    assert bool(has_end) != bool(options), "llama.cpp's converter knows it without the end in front"
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    tokens(["a", "a a"], padding=True, truncation=True, max_length=4)
    tokens.save_pretrained(tmp_path / "theirs")
    assert checkpoint.load_model(tmp_path / "theirs")[1]["vocab"] is None
    assert import_(tmp_path)[1]["vocab"] is None


def test_what_cannot_be_exported_is_one_line(tmp_path):
    for kind in ATTENTION.keys() - EXPORTED:
        refuse_export(f"attention_type={kind} .* cannot be exported", tmp_path, model_of(kind))
    refuse_export("attention=sink cannot be exported", tmp_path, model_of(attention="sink"))
    refuse_export("rope_scaling=yarn cannot be exported", tmp_path,
                  model_of(rope_scaling="yarn", rope_factor=4.0))
    refuse_export("window_pattern=SL with qk_norm=True cannot be exported", tmp_path,
                  model_of(**WINDOWS, qk_norm=True))
    windows = WINDOWS | {"window_pattern": "SR"}
    stretched = model_of(**windows, rope_scaling="theta", rope_factor=50.0)
    refuse_export("rope_factor=50.0 with a window", tmp_path, stretched)
    refuse_export("rope_factor=50.0 with a window", tmp_path, model_of(**windows),
                  "--rope_factor=50")
    for settings in ({"attention_type": "ssmax_bias"}, {"qk_norm": True}, WINDOWS,
                     {"attention_type": "softmax", "window": 8, "window_pattern": "S"}):
        refuse_export("cannot be exported, .* of llama.cpp", tmp_path, model_of(**settings),
                      "--llama_cpp")
    refuse_export("already has attention_type", tmp_path, model_of(), "--attention_type=ssmax")
    save_model(tmp_path / "ours/ckpt.pt", model_of(vocab_size=11), [*range(10), 50256])
    refused("ours has a compact vocabulary, .* without --compact_vocab", call, hf, "export",
            tmp_path / "ours", f"--out_dir={tmp_path}/x")


# -----------------------------------------------------------------------------
# import


@pytest.mark.parametrize("settings", [
    {}, {"n_kv_head": 1}, {"qk_norm": True}, {"window": 8, "window_pattern": "S"},
    {"window": 8, "window_pattern": "SL"}, {"window_pattern": "L"},
    {"qk_norm": True, "window": 8, "window_pattern": "SR"}], ids=str)
def test_softmax_comes_back_bit_by_bit(tmp_path, capsys, settings):
    model = model_of("softmax", **settings)
    export(tmp_path, model)
    back, state = import_(tmp_path)
    pattern = "".join(model.config.letter(i) for i in range(2)).replace("RR", "")
    assert back.config == dataclasses.replace(
        model.config, n_kv_head=model.config.n_kv_head or 2, window_pattern=pattern)
    for name, p in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], p), name
    assert state["vocab"] == tokenizer().to_str()
    printed = capsys.readouterr().out
    assert float(printed.split()[-1]) < 1e-4, "the difference from transformers is printed"


@pytest.mark.parametrize("max_window_layers, pattern", [(2, "RRSS"), (4, "")])
def test_a_qwen3_with_windows_in_some_layers_or_none_is_imported(
        tmp_path, max_window_layers, pattern):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=V, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        num_hidden_layers=4, intermediate_size=48, max_position_embeddings=64,
        use_sliding_window=True, sliding_window=8, max_window_layers=max_window_layers,
        initializer_range=0.3)
    theirs = transformers.Qwen3ForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs/tokenizer.json").write_text(tokenizer().to_str())
    back, _ = import_(tmp_path)
    same_logits(theirs, back)
    assert back.config.window_pattern == pattern


def test_a_window_that_is_longer_than_the_training_length_stays_a_window(tmp_path):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**plain(
        "mistral", vocab_size=V, max_position_embeddings=20, sliding_window=40,
        initializer_range=0.3))
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs/tokenizer.json").write_text(tokenizer().to_str())
    back, _ = import_(tmp_path)
    same_logits(theirs, back)
    assert (back.config.window, back.config.window_pattern) == (40, "SS")


def test_an_instruct_model_keeps_its_chat_template_and_its_end(tmp_path):
    export(tmp_path, model_of("softmax", vocab_size=V + 1))
    source = tmp_path / "theirs"
    tokens = transformers.AutoTokenizer.from_pretrained(source)
    tokens.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"})
    tokens.chat_template = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
    tokens.save_pretrained(source)
    end = tokens.eos_token_id
    assert end == V
    # a temperature without do_sample, which transformers itself does not save
    generation = {"eos_token_id": [end, 0], "pad_token_id": end, "temperature": 0.6}
    (source / "generation_config.json").write_text(json.dumps(generation))
    call(hf, "import", source, f"--out_dir={tmp_path}/in")
    # a checkpoint that was trained from it, in a folder of its own
    state = checkpoint.load(tmp_path / "in")
    state["base"] = state["config"] | {"base": None}
    state["config"] = {"init_from": f"{tmp_path}/in"}
    checkpoint.save(tmp_path / "tuned/ckpt.pt", state)
    # and one of the third generation
    state["base"] = {"init_from": f"{tmp_path}/tuned", "base": state["config"] | {"base": None}}
    state["config"] = {"init_from": f"{tmp_path}/tuned_again"}
    checkpoint.save(tmp_path / "third/ckpt.pt", state)
    for name in ("in", "tuned", "third"):
        out = tmp_path / f"out_{name}"
        call(hf, "export", tmp_path / name, "--attention_type=ssmax", f"--out_dir={out}")
        exported = transformers.AutoTokenizer.from_pretrained(out)
        chat = [{"role": "user", "content": "two  spaces"}]
        assert exported.apply_chat_template(chat) == tokens.apply_chat_template(chat)
        assert exported.eos_token_id == exported.pad_token_id == end
        theirs = load(out)
        assert theirs.generation_config.temperature == 0.6
        assert theirs.generation_config.eos_token_id == [end, 0]
        assert theirs.config.pad_token_id is None, "its embedding would not be trained"
    # folders that were used again, for models with another tokenizer
    for folder in (source, tmp_path / "in"):
        (folder / "tokenizer.json").write_text(tokenizer(digits=True).to_str())
    call(hf, "export", tmp_path / "tuned", f"--out_dir={tmp_path}/x")
    assert load(tmp_path / "x").generation_config.eos_token_id == 0


def test_an_end_that_no_file_names_is_the_end_of_text_and_no_default(tmp_path):
    export(tmp_path, model_of("softmax"))
    path = tmp_path / "theirs/config.json"
    config = json.loads(path.read_text())
    del config["bos_token_id"], config["eos_token_id"]  # a Llama's are 1 and 2 then
    path.write_text(json.dumps(config))
    (tmp_path / "theirs/generation_config.json").unlink()
    import_(tmp_path)
    call(hf, "export", tmp_path / "back", f"--out_dir={tmp_path}/x")
    theirs = load(tmp_path / "x")
    assert theirs.generation_config.eos_token_id == 0 and theirs.config.eos_token_id is None


def test_a_tied_model_has_two_matrices_here_and_a_tokenizer_cuts_nothing(tmp_path):
    model = model_of("softmax")
    model.lm_head.weight.data = model.wte.weight.data.clone()
    export(tmp_path, model)
    folder = tmp_path / "theirs"
    tensors = safetensors_torch.load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    safetensors_torch.save_file(tensors, folder / "model.safetensors")
    refuse_import("differ in lm_head.weight", tmp_path)
    edit(folder / "config.json", tie_word_embeddings=True)
    edit(folder / "tokenizer.json", truncation={
        "max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"})
    back, state = import_(tmp_path)
    assert torch.equal(back.lm_head.weight, model.wte.weight)
    assert len(text.encode("abcdefg", state["vocab"])) == 7
    vocab = (folder / "tokenizer.json").read_text().replace("<|endoftext|>", "<end>")
    (folder / "tokenizer.json").write_text(vocab)
    refuse_import("the tokenizer has no end of text", tmp_path)
    more = tokenizer()
    more.add_tokens(["one more"])
    (folder / "tokenizer.json").write_text(more.to_str())
    refuse_import("its tokenizer.json has more tokens than the model", tmp_path)


def test_a_piece_of_text_gets_one_space_from_sentencepiece():
    from tokenizers import Tokenizer, models, normalizers
    ids = {piece: i for i, piece in enumerate(("▁", "a", "▁a", "b", "▁b", "</s>"))}
    pieces = Tokenizer(models.BPE(vocab=ids, merges=[("▁", "a"), ("▁", "b")]))
    pieces.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    for passage in (" a b", "a b"):
        assert text.encode(passage, pieces.to_str()) == [2, 4]


def plain(kind, **changes):
    """A config.json as people write them by hand."""
    return {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99,
            "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96,
            "max_position_embeddings": 128, "hidden_act": "silu", **changes}


@pytest.mark.parametrize("config, says", [
    ({"architectures": ["X"]}, "is not a .* model that transformers can read.*`model_type` key"),
    (plain("gpt2"), "is a gpt2, .* imports llama"),
    (plain("llama", ssmax={"kind": "ssmax", "layers": [1], "length": 128, "s": 1.0}),
     r"SSMax in the layers \[1\]"),
    (plain("smollm3", no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=8,
           layer_types=["sliding_attention"] * 2), "has windows without RoPE, which model.py"),
    (plain("llama", rope_theta=5e5, rope_scaling={  # Llama 3.1, 3.2
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}), r"scaled RoPE \(rope_type llama3\)"),
    (plain("llama", rope_scaling={"type": "yarn", "factor": 4.0}), "scaled RoPE"),
    (plain("qwen3", head_dim=32),  # Qwen3-0.6B and 4B
     "this qwen3 has heads 32 wide, where hidden_size / num_attention_heads is 16"),
    (plain("mistral", sliding_window=-3), "window=-3"),
    (plain("ministral3", head_dim=16, rope_parameters={
        "rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 16384}), "is a ministral3"),
    (plain("llama", hidden_size=None), "is not a .* model that")])
def test_a_feature_that_is_known_is_named_before_the_weights_are_read(tmp_path, config, says):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text(tokenizer().to_str())
    refused(says, call, hf, "import", tmp_path, f"--out_dir={tmp_path}/x")


@pytest.mark.parametrize("change, says", [
    ({"is_causal": False}, "a feature that model.py lacks.* difference: [0-9]"),
    ({"hidden_act": "gelu"}, "a feature that model.py lacks.* difference: [0-9]"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}},
     "broken numbers.* difference: nan"),
    ("nan", "broken numbers.* difference: nan"),
    ({"vocab_size": 300}, "its settings and weights differ in lm_head.weight"),
    ({"num_hidden_layers": 3}, "its settings and weights differ in model.layers.2"),
    ({"num_hidden_layers": 1}, "its settings and weights differ in model.layers.1"),
    ("config.json", "theirs is not a .* model that transformers can read"),
    ("tokenizer.json", "theirs has no tokenizer.json"),
    *((name, "theirs is not .* or it is incomplete")  # a file that is lost, or cut
      for name in ("model.safetensors", "cut"))], ids=str)
def test_a_broken_folder_is_one_line_and_leaves_nothing(tmp_path, change, says):
    model = model_of("softmax")
    export(tmp_path, model)
    folder = tmp_path / "theirs"
    if type(change) is dict:
        edit(folder / "config.json", **change)
    elif change == "nan":
        tensors = safetensors_torch.load_file(folder / "model.safetensors")
        tensors["model.norm.weight"][3] = float("nan")
        safetensors_torch.save_file(tensors, folder / "model.safetensors")
    elif change == "cut":
        os.truncate(folder / "model.safetensors", 5000)
    else:
        (folder / change).unlink()
    refuse_import(says, tmp_path)


def test_a_config_cannot_choose_the_code_that_computes_attention(tmp_path):
    export(tmp_path, model_of("softmax"))
    edit(tmp_path / "theirs/config.json", attn_implementation="someone/kernel",
         _attn_implementation="someone/kernel")
    assert import_(tmp_path)[0].num_params() == model_of("softmax").num_params()


# -----------------------------------------------------------------------------
# both


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    export(tmp_path, model_of("softmax"))
    before = sorted(tmp_path.glob("[!.]*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for arguments in (("import", tmp_path / "theirs", f"--out_dir={tmp_path}/x"),
                      ("export", tmp_path / "ours", f"--out_dir={tmp_path}/x")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))  # no file may be larger
        try:
            refused("cannot write .*x.*make space", call, hf, *arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert sorted(tmp_path.glob("[!.]*")) == before


def test_what_exists_is_never_written_over(tmp_path, monkeypatch):
    save_model(tmp_path / "run/ckpt.pt", model_of(), tokenizer().to_str())
    before = (tmp_path / "run/ckpt.pt").read_bytes()
    for command in ("import", "export"):
        refused("run exists, and is never overwritten; choose another --out_dir",
                call, hf, command, tmp_path / "run", f"--out_dir={tmp_path}/run")
    assert (tmp_path / "run/ckpt.pt").read_bytes() == before

    def by_another_program(*arguments):  # while the export is computed
        (tmp_path / "x").mkdir()
        (tmp_path / "x/theirs").write_text("x")
        return check_equal(*arguments)

    check_equal = hf.check_equal
    monkeypatch.setattr(hf, "check_equal", by_another_program)
    refused("cannot write .*x;", call, hf, "export", tmp_path / "run", f"--out_dir={tmp_path}/x")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["theirs"]


def test_of_two_commands_the_second_is_refused_before_it_reads(tmp_path):
    with open(tmp_path / ".x.lock", "a") as of_another_command:
        fcntl.flock(of_another_command, fcntl.LOCK_EX)
        refused("another program is writing .*x", call, hf, "export", "no/such",
                f"--out_dir={tmp_path}/x")


def test_mistakes_are_one_line(tmp_path):
    out = f"--out_dir={tmp_path}/x"
    for arguments in (["import"], ["import", "x"], ["copy", "x", out]):
        refused("give import SOURCE or export CHECKPOINT", call, hf, *arguments)
    for source in (f"{tmp_path}/gone", "models/of/mine", "./gone", "gone/model.gguf", "no/such"):
        refused(f"{source} is not a .* transformers can read", call, hf, "import", source, out)
    refused("there is no checkpoint", call, hf, "export", tmp_path / "gone", out)
    save_model(tmp_path / "ckpt.pt", model_of("softmax"), tokenizer().to_str())
    for option, says in [("--attention_type=max", "attention_type=max must be one of softmax"),
                         ("--rope_factor=0.5", "rope_factor"), ("--rope_factor=0", "rope_factor")]:
        refused(says, call, hf, "export", tmp_path, out, option)
