"""A Hugging Face folder is a checkpoint of the evaluations, and the page's scripts work."""
import importlib
import json
import re
import runpy
import shlex

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import CPU, ROOT, call, refused, save_model, tiny_model

import eval_niah
import eval_posloss
import prepare
import sample
from eval_niah import NiahConfig
from experiments import tables
from experiments.real import real
from lib import checkpoint, storage
from lib.checkpoint import LoadConfig
from lib.data import Tokens

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

from test_hf import TOKENIZER, V, export, model_of  # noqa: E402

from lib.interop import hf_model  # noqa: E402
from ssmax_hf import KINDS  # noqa: E402

TINY = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.25,
        "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
GEMMA = {"sliding_window": 16, "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
         "head_dim": 8}
FAMILIES = {"llama": {}, "qwen3": {"head_dim": 16}, "gemma3_text": GEMMA, "olmo2": {},
            "mistral": {"sliding_window": 20}, "phi3": {},
            "llama4_text": {"attention_chunk_size": 16, "no_rope_layers": [1, 1, 0],
                            "num_local_experts": 2, "attn_temperature_tuning": False},
            # its heads differ by layer
            "gemma4_text": {**GEMMA, "vocab_size_per_layer_input": V,
                            "hidden_size_per_layer_input": 8}}
OLD = {"gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4}, "bloom": {"n_layer": 2, "n_head": 4}}


def folder_of(path, family="llama", **settings):
    """Save a tiny Hugging Face model with a tokenizer, and return it."""
    torch.manual_seed(0)
    settings = {**TINY, **(FAMILIES | OLD).get(family, {}), **settings}
    config = transformers.AutoConfig.for_model(family, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(TOKENIZER)
    (path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>"}))
    return model


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def corpus_of_bytes(tmp_path):
    """A corpus with the tokenizer of the folder m."""
    (tmp_path / "text.txt").write_text("A box 12 is red. " * 400)
    call(prepare, tmp_path / "text.txt", "--name=tiny", f"--data_dir={tmp_path}", "--split=test",
         f"--tokenizer={tmp_path}/m")
    return tmp_path / "tiny"


ASK = [*CPU, "--haystack=noise", "--context_sizes=200", "--n_samples=2", "--depths=[10,90]",
       "--prompt=completion"]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@torch.no_grad()
def test_a_folder_is_measured_as_transformers_computes_it(tmp_path, family):
    folder = tmp_path / "m"
    theirs = folder_of(folder, family)
    theirs.set_attn_implementation("eager")
    corpus = corpus_of_bytes(tmp_path)
    call(eval_posloss, folder, *CPU, f"--data_dir={corpus}", "--seq_len=90", "--n_seqs=3",
         "--loss_chunk=11")
    tokens = Tokens(corpus, "test")
    cfg = eval_posloss.PosLossConfig(files=("x",), seq_len=90, n_seqs=3)
    pieces = torch.from_numpy(tokens.read(eval_posloss.choose_pieces(cfg, len(tokens)), 91))
    losses = F.cross_entropy(theirs(pieces[:, :-1]).logits.mT, pieces[:, 1:], reduction="none")
    records = storage.read_lines(folder / "posloss.jsonl")
    assert {record["variant"] for record in records} == {"m"}
    for record in records:
        want = losses[record["i"], 81:].mean().item()
        assert record["test loss"]["90"] == pytest.approx(want, abs=1e-4)

    call(eval_niah, folder, *ASK)
    assert len(storage.read_lines(folder / "niah.jsonl")) == 4
    call(eval_niah, folder, *ASK, "--trials=2", "--trial_sizes=200")
    scores = storage.read_lines(folder / "scores.jsonl")[0]["scores"]
    assert len(scores) == 3 and len(scores[0]) == 4
    model, state = checkpoint.load_model(folder)
    idx = torch.randint(V, (2, 70))
    weights = theirs(idx, output_attentions=True).attentions
    want = torch.stack([layer[:, :, -1] for layer in weights], dim=1)
    assert torch.allclose(model.last_query_attention(idx), want, atol=1e-5)
    banned = theirs(idx).logits[:, -1].argmax(-1).tolist()  # which would come next
    greedy = theirs.generate(idx, max_new_tokens=8, do_sample=False, eos_token_id=None,
                             bad_words_ids=[[token] for token in banned])
    assert torch.equal(model.generate(idx, 8, top_k=1, banned=banned), greedy)
    assert state["vocab"].stored == TOKENIZER


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_long_prompt_goes_through_in_pieces(tmp_path, monkeypatch, family):
    folder_of(tmp_path / "m", family)
    idx = torch.randint(V, (2, 100))
    model, _ = checkpoint.load_model(tmp_path / "m")
    whole = model.hidden(idx)
    answer = model.generate(idx, 5, temperature=0)
    monkeypatch.setattr(hf_model, "PIECE", 29)
    monkeypatch.setattr(hf_model, "FIRST_PIECE", 41)
    assert torch.allclose(model.hidden(idx), whole, atol=1e-4)
    assert torch.equal(model.generate(idx, 5, temperature=0), answer)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@torch.no_grad()
def test_a_hay_is_read_once_for_all_questions(tmp_path, monkeypatch, family):
    folder_of(tmp_path / "m", family)
    model, _ = checkpoint.load_model(tmp_path / "m", LoadConfig())
    idx = torch.randint(V, (1, 100)).repeat(3, 1)
    idx[:, 90:] = torch.randint(V, (3, 10))
    alone = [model.generate(row[None], 6, temperature=0) for row in idx]
    tokens, read = [], hf_model.HFModel.read
    monkeypatch.setattr(hf_model.HFModel, "read", lambda self, idx, cache: (
        tokens.append(idx.numel()), read(self, idx, cache))[1])
    assert torch.equal(model.generate(idx, 6, temperature=0), torch.cat(alone))
    assert sum(tokens) < 100 + 3 * 10
    other = torch.randint(V, (1, 100)).repeat(2, 1)
    other[:, 90:] = torch.randint(V, (2, 10))
    alone = [*alone[1:], *(model.generate(row[None], 6, temperature=0) for row in other)]
    tokens.clear()
    answers = model.generate(torch.cat((idx[1:], other)), 6, temperature=0)
    assert sum(tokens) < 2 * 100 + 4 * 10, "two hays, as after a kill within one"
    assert torch.equal(answers, torch.cat(alone))
    tokens.clear()
    call(eval_niah, tmp_path / "m", "--haystack=noise", "--task=every_depth", "--depths=10,50,90",
         "--context_sizes=5000", "--n_samples=1")
    assert sum(tokens) < 2 * 5000


@pytest.mark.parametrize("scaling, kind", [
    ("ntk", "logn_clip"), ("yarn", "logn_clip"), ("yarn_no_temperature", "logn_clip"),
    *(("theta", kind) for kind in KINDS)])
@torch.no_grad()
def test_a_model_is_changed_as_our_own_ones_are(tmp_path, scaling, kind):
    trained = model_of("softmax", rope_theta=5e4, n_embd=64, block_size=512, init_std=0.1)
    export(tmp_path, trained)
    cfg = LoadConfig(rope_scaling=scaling, rope_factor=4.0, attention_type=kind, swap_scale=1.7)
    ours, theirs = (checkpoint.load_model(tmp_path / name, cfg)[0] for name in ("ours", "theirs"))
    assert theirs.config.block_size == 512, "the clip begins at the length of the training"
    idx = torch.randint(V, (1, 640))
    assert torch.allclose(theirs.hidden(idx), ours.hidden(idx), atol=5e-4)


def test_only_layers_that_see_all_are_stretched_and_theta_stays(tmp_path):
    folder_of(tmp_path / "m", "gemma3_text", rope_parameters={
        "full_attention": {"rope_type": "default", "rope_theta": 777_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0}})
    cfg = LoadConfig(rope_scaling="yarn", rope_factor=4.0)
    model, state = checkpoint.load_model(tmp_path / "m", cfg)
    rope = model.hf_model.config.rope_parameters
    assert rope["sliding_attention"] == {"rope_type": "default", "rope_theta": 7000.0}
    assert rope["full_attention"]["rope_theta"] == 777_000.0
    assert (state["model_config"]["block_size"], rope["full_attention"]["factor"]) == (128, 4.0)


@pytest.mark.parametrize("changes", [{"rope_theta": 5e6}, {"rope_scaling": {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}])
def test_a_theta_that_transformers_would_not_read_is_refused(tmp_path, changes):
    """It keeps 1e6 in the first case, and takes 10,000 in the second."""
    folder_of(tmp_path / "m", rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    edit(tmp_path / "m/config.json", **changes)
    refused("says rope_theta=.*000.0, and transformers reads .*: write the right one",
            checkpoint.load_model, tmp_path / "m")


STRETCHED = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
             "original_max_position_embeddings": 32}


def test_the_training_length_is_that_of_the_config_or_the_command(tmp_path):
    folder_of(tmp_path / "m", rope_parameters=STRETCHED)
    model, _ = checkpoint.load_model(tmp_path / "m", LoadConfig(attention_type="logn_clip"))
    assert model.config.block_size == model.hf_model.config.ssmax["length"] == 32
    folder_of(tmp_path / "bloom", "bloom")
    edit(tmp_path / "bloom/config.json", max_position_embeddings=None)
    refused("does not say at which length .* also take --length", checkpoint.load_model,
            tmp_path / "bloom")
    model, _ = checkpoint.load_model(tmp_path / "bloom", LoadConfig(length=48))
    assert (model.config.block_size, model.max_len) == (48, float("inf"))
    save_model(tmp_path / "ours", tiny_model())
    refused('says 32 tokens: .* write "training_length": 48 into', checkpoint.load_model,
            tmp_path / "m", LoadConfig(length=48))
    before = checkpoint.load_model(tmp_path / "m")[1]["fingerprint"]
    assert checkpoint.load_model(tmp_path / "m")[1]["fingerprint"] == before
    edit(tmp_path / "m/config.json", training_length=48)
    model, state = checkpoint.load_model(tmp_path / "m")
    assert model.config.block_size == 48
    assert state["fingerprint"] != before, "an edited config is another model"
    refused("leave --length=48", checkpoint.load_model, tmp_path / "ours", LoadConfig(length=48))
    with_factor = hf_model.add_ssmax(folder_of(tmp_path / "f"), "logn_clip", length=24)
    with_factor.save_pretrained(tmp_path / "f")
    model, _ = checkpoint.load_model(tmp_path / "f")
    assert model.config.block_size == 24, "N of the factor is not that of the results"


@pytest.mark.parametrize("family, settings, cfg, message", [
    ("llama", {"rope_parameters": {**STRETCHED, "rope_type": "dynamic"}}, LoadConfig(),
     "rope_type=dynamic: its RoPE.* on the longest text of a batch"),
    ("llama", {"rope_parameters": STRETCHED}, LoadConfig(rope_factor=2.0),
     "has rope_type=yarn, .* so it cannot be stretched"),
    ("llama", {"layer_rope_theta": [1e4] * 3}, LoadConfig(rope_factor=2.0),
     "a theta for each layer, .* so it cannot be stretched"),
    ("gpt2", {}, LoadConfig(rope_factor=2.0), "without RoPE in layers that see all tokens"),
    ("cohere2", GEMMA, LoadConfig(rope_factor=2.0), "has the same RoPE in layers with a"),
    ("mistral", {"sliding_window": 20}, LoadConfig(rope_factor=2.0), "without RoPE in layers that"),
    ("llama4_text", {"attn_temperature_tuning": True}, LoadConfig(attention_type="logn_clip"),
     r"has a factor of n of its own \(attn_temperature_tuning\)"),
    ("llama", {"training_length": 1}, LoadConfig(), "a training length of 1 tokens.* above 1"),
    ("bloom", {}, LoadConfig(attention_type="ssmax"), "cannot get --attention_type=ssmax"),
    ("llama", {}, LoadConfig(attention="gated"), "leave --attention=gated out"),
    ("llama", {}, NiahConfig(files=("x",), trials=2, trial_sizes=(10**12,)), "ask for shorter"),
    ("llama", {}, eval_posloss.PosLossConfig(files=("x",), seq_len=10**12),
     "needs more than .* for 1,000,000,000,000 tokens, .*: ask for shorter texts")])
def test_a_refusal_comes_before_weights_are_read(tmp_path, family, settings, cfg, message):
    folder_of(tmp_path / "m", family, **settings)
    (tmp_path / "m/model.safetensors").unlink()
    refused(message, checkpoint.load_model, tmp_path / "m", cfg)


def test_layers_without_a_cache_of_all_tokens_need_no_memory_for_it(tmp_path, monkeypatch):
    folder_of(tmp_path / "m", "lfm2", layer_types=["conv", "conv", "full_attention"])
    monkeypatch.setattr(hf_model.os, "sysconf", lambda name: 2**15)  # 1 GiB
    checkpoint.load_model(tmp_path / "m", eval_posloss.PosLossConfig(
        files=("x",), seq_len=3 * 10**6))


def test_what_a_folder_cannot_do_is_one_line(tmp_path, capsys):
    folder_of(tmp_path / "m")
    call(sample, tmp_path / "m", *CPU, "--num_samples=2", "--max_new_tokens=5", "--prompt=a")
    assert capsys.readouterr().out.count("-" * 80) == 2
    refused("is a Hugging Face model", checkpoint.load, tmp_path / "m")
    folder_of(tmp_path / "capped", "gemma2", final_logit_softcapping=1.0, **GEMMA)
    model, _ = checkpoint.load_model(tmp_path / "capped")
    refused("caps or scales its logits", model.hidden, torch.randint(V, (1, 9)))
    path = tmp_path / "m/model.safetensors"
    tensors = safetensors_torch.load_file(path)
    del tensors["model.layers.1.self_attn.v_proj.weight"]
    safetensors_torch.save_file(tensors, path)  # transformers would take random numbers for it
    refused("its settings and weights differ in model.layers.1.self_attn.v_proj.weight; get a",
            checkpoint.load_model, tmp_path / "m")
    (tmp_path / "m/tokenizer.json").unlink()
    refused("tokenizer.json is not a file", checkpoint.load_model, tmp_path / "m")
    (tmp_path / "m/config.json").write_text("{}")
    refused("not a causal language model that", checkpoint.load_model, tmp_path / "m")


@pytest.mark.parametrize("family, settings", [
    ("mamba", {}), ("bamba", {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16}),
    ("minimax", {})])
def test_a_model_that_cannot_read_in_pieces_is_refused(tmp_path, family, settings):
    folder_of(tmp_path / "m", family, **settings)
    refused(f"m is a {family}, which cannot read a text", checkpoint.load_model, tmp_path / "m")


@torch.no_grad()
def test_the_loss_of_a_text_begins_with_the_models_first_token(tmp_path):
    from tokenizers import Tokenizer, processors
    theirs = folder_of(tmp_path / "m")
    template = Tokenizer.from_str(TOKENIZER)
    template.post_processor = processors.TemplateProcessing("xy $A", None, [("xy", V - 1)])
    (tmp_path / "m/tokenizer.json").write_text(template.to_str())
    model, _ = checkpoint.load_model(tmp_path / "m")
    idx = torch.randint(V, (2, 50))
    want = theirs.model(F.pad(idx, (1, 0), value=V - 1)).last_hidden_state[:, 1:]
    assert torch.allclose(model.hidden(idx), want, atol=1e-5)


@torch.no_grad()
def test_a_config_cannot_choose_the_code_that_computes_attention(tmp_path):
    theirs = folder_of(tmp_path / "m")
    edit(tmp_path / "m/config.json", attn_implementation="someone/kernel",
         _attn_implementation="someone/kernel")
    model, _ = checkpoint.load_model(tmp_path / "m")
    idx = torch.randint(V, (1, 9))
    assert torch.equal(model.hidden(idx), theirs.model(idx).last_hidden_state)


def test_one_command_compares_factors(tmp_path, monkeypatch, capsys):
    folder_of(tmp_path / "m", max_position_embeddings=200)
    corpus = corpus_of_bytes(tmp_path)
    monkeypatch.setattr(real, "FACTORS", {"step_1.5": real.FACTORS["step_1.5"]})
    arguments = (tmp_path / "m", f"--data_dir={corpus}", f"--out={tmp_path}/out",
                 "--niah=--n_samples=2 --depths=20,80")
    refused("begin at the training length: write 200,400", call, real, *arguments, "--lengths=400,")
    refused("must be whole numbers of tokens", call, real, *arguments, "--lengths=16k,")
    folder_of(tmp_path / "bloom", "bloom", max_position_embeddings=128)
    refused("no factor can be put into .*bloom: .*must name layers", call, real,
            tmp_path / "bloom", *arguments[1:], "--lengths=128,")
    capsys.readouterr()
    call(real, *arguments)
    for line in capsys.readouterr().out.splitlines():
        program, *settings = shlex.split(line)
        call(importlib.import_module(program.removesuffix(".py")), *settings, *CPU)
    capsys.readouterr()
    call(real, *arguments, "--table=True")
    table = capsys.readouterr().out
    row = dict(line.split(maxsplit=1) for line in table.splitlines() if "±" in line)
    assert row["as_it_is"].split()[18:21] == [".000", "±", ".000"], "no price"
    assert row["step_1.5"].split()[18:21] == row["yarn_plain"].split()[18:21]
    assert row["step_1.5"].split()[-3:] != row["yarn_plain"].split()[-3:], "beyond 200 tokens"
    folder_of(tmp_path / "gpt2", "gpt2")  # the estimate keeps to its 128 positions
    call(real, tmp_path / "gpt2", *arguments[1:], "--lengths=128,")
    assert "gpt2 --n_seqs=8" in capsys.readouterr().out
    assert "For this model" in table and (tmp_path / "out/real.png").exists()
    rows = tables.stored(tmp_path / "out/results.csv").set_index(tables.INDEX)["value"].sort_index()
    assert [*rows["yarn", "needles", 400].index] == [0, 1, 100, 101]  # text, noise
    piece = storage.read_lines(tmp_path / "out/m/posloss-yarn.jsonl")[3]
    at, losses = np.array([*piece["test loss"].items()], float).T
    assert rows["yarn", "loss", 800, piece["i"]] == round(losses[-1], 4)
    beyond = np.average(losses[at > 210], weights=np.diff(at)[at[1:] > 210])
    assert rows["yarn|beyond", "loss", 800, piece["i"]] == round(beyond, 4)


PAGE = (ROOT / "docs/models.md").read_text()
SCRIPTS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize("script, kind, layers", [
    ("train_s.py", "LlamaForCausalLM", [0, 1, 2]), ("to_windows.py", "SmolLM3ForCausalLM", [1])])
def test_a_script_of_the_page_trains_a_tiny_model(tmp_path, monkeypatch, script, kind, layers):
    for package in ("trl", "peft", "datasets"):
        pytest.importorskip(package)
    folder_of(tmp_path / "m")
    (tmp_path / "text.txt").write_text("A box 12 is red.\n\n" * 400)
    (tmp_path / script).write_text(SCRIPTS[script])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [script, "m", "text.txt", "out", "3"])
    runpy.run_path(script)
    model = transformers.AutoModelForCausalLM.from_pretrained("out")
    trained = [layer for layer, module in enumerate(model.model.layers)
               if hasattr(module.self_attn, "ssmax_norm")
               and module.self_attn.ssmax_norm.s.unique().numel() > 1]
    assert type(model).__name__ == kind and trained == layers
    call(eval_niah, "out", *ASK)
