"""A folder of transformers is a checkpoint of the evaluations, and the page's scripts work."""
import importlib
import json
import re
import runpy
import shlex
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F
from conftest import CPU, ROOT, call, read_result, refused, tiny_model

import eval_niah
import eval_posloss
import prepare
import sample
from lib import checkpoint
from lib.checkpoint import LoadConfig
from lib.data import Tokens

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

from test_hf import V, tokenizer  # noqa: E402

from ssmax_hf import add_ssmax  # noqa: E402

PAGE = (ROOT / "docs/models.md").read_text()
TINY = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.25,
        "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}


def folder_of(path, family="llama", **settings):
    """Save a tiny model of transformers with a tokenizer, and return it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**TINY, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(tokenizer().to_str())
    (path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>"}))
    return model


@pytest.fixture
def corpus_of_bytes(tmp_path):
    (tmp_path / "text.txt").write_text("A box 12 is red. " * 60)
    call(prepare, tmp_path / "text.txt", "--name=tiny", f"--data_dir={tmp_path}", "--split=test",
         f"--tokenizer={tmp_path}/m")
    return tmp_path / "tiny"


ASK = [*CPU, "--haystack=noise", "--context_sizes=200", "--n_samples=2", "--depths=[10,90]",
       "--prompt=completion"]


@pytest.mark.parametrize("family, settings", [
    ("llama", {}), ("qwen3", {"head_dim": 16}), ("gemma3_text", {
        "sliding_window": 16, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]})])
@torch.no_grad()
def test_a_folder_is_measured_as_transformers_computes_it(tmp_path, request, family, settings):
    folder = tmp_path / "m"
    theirs = folder_of(folder, family, **settings)
    (folder / "generation_config.json").write_text('{"repetition_penalty": 9.0}')
    theirs.set_attn_implementation("eager")
    corpus = request.getfixturevalue("corpus_of_bytes")

    call(eval_posloss, folder, *CPU, f"--data_dir={corpus}", "--seq_len=90", "--n_seqs=3",
         "--loss_chunk=11")
    header, records = read_result(folder, "posloss")
    assert header["variant"] == "softmax"
    tokens = Tokens(corpus, "test")
    cfg = eval_posloss.PosLossConfig(files=("x",), seq_len=90, n_seqs=3)
    pieces = torch.from_numpy(tokens.read(eval_posloss.choose_pieces(cfg, len(tokens)), 91))
    losses = F.cross_entropy(theirs(pieces[:, :-1]).logits.mT, pieces[:, 1:], reduction="none")
    for record in records:
        want = losses[record["i"], 81:].mean().item()
        assert record["losses"][-1] == pytest.approx(want, abs=1e-4)

    call(eval_niah, folder, *ASK)
    _, records = read_result(folder, "niah")
    assert len(records) == 4
    call(eval_niah, folder, *ASK, "--trials=2", "--trial_sizes=200")
    _, records = read_result(folder, "scores")
    model, state = checkpoint.load_model(folder)
    assert len(records[0]["scores"]) == 3 and len(records[0]["scores"][0]) == 4
    idx = torch.randint(V, (2, 70))
    weights = theirs(idx, output_attentions=True).attentions
    want = torch.stack([layer[:, :, -1] for layer in weights], dim=1)
    assert torch.allclose(model.last_query_attention(idx), want, atol=1e-5)
    greedy = idx
    for _ in range(8):
        logits = theirs(greedy).logits[:, -1]
        logits[:, 0] = -torch.inf
        greedy = torch.cat((greedy, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(model.generate(idx, 8, temperature=0, banned=(0,)), greedy)
    assert state["vocab"] == tokenizer().to_str()


@torch.no_grad()
def test_a_factor_is_put_into_a_folder_as_into_a_checkpoint(tmp_path):
    """head_scale and logn_clip give what an import and model.py give."""
    folder_of(tmp_path / "m")
    import hf
    call(hf, "import", tmp_path / "m", f"--out_dir={tmp_path}/ours")
    idx = torch.randint(V, (1, 200))
    for kind, scale in (("logn_clip", 1.0), ("head_scale", 1.7), ("ssmax_bias", 1.0)):
        cfg = LoadConfig(attention_type=kind, swap_scale=scale)
        theirs, ours = (checkpoint.load_model(tmp_path / name, cfg)[0] for name in ("m", "ours"))
        assert torch.allclose(theirs.hidden(idx), ours.hidden(idx), atol=1e-4)
        a, b = (model.last_query_attention(idx) for model in (theirs, ours))
        assert torch.allclose(a, b, atol=1e-5)
    # one that was saved with its factor
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    add_ssmax(model, "logn_clip").save_pretrained(tmp_path / "m")
    theirs, state = checkpoint.load_model(tmp_path / "m")
    ours, _ = checkpoint.load_model(tmp_path / "ours", LoadConfig(attention_type="logn_clip"))
    assert torch.allclose(theirs.hidden(idx), ours.hidden(idx), atol=1e-4)
    assert state["variant"] == theirs.config.attention_type == "logn_clip"
    refused("has a factor already", checkpoint.load_model, tmp_path / "m",
            LoadConfig(attention_type="ssmax"))


def test_what_a_folder_cannot_do_is_one_line(tmp_path, capsys):
    folder_of(tmp_path / "m")
    call(sample, tmp_path / "m", *CPU, "--num_samples=2", "--max_new_tokens=5", "--prompt=a")
    assert capsys.readouterr().out.count("-" * 80) == 2
    for says, changes in [("edit rope_parameters", {"rope_factor": 2.0}),
                          ("cannot get --attention_type=pn", {"attention_type": "pn"})]:
        refused(says, checkpoint.load_model, tmp_path / "m", LoadConfig(**changes))
    refused("is a model of transformers: make a checkpoint", checkpoint.load, tmp_path / "m")
    folder_of(tmp_path / "capped", "gemma2", final_logit_softcapping=1.0, head_dim=8,
              sliding_window=8)
    model, _ = checkpoint.load_model(tmp_path / "capped")
    refused("caps or scales its logits", model.hidden, torch.randint(V, (1, 9)))
    (tmp_path / "m/tokenizer.json").unlink()
    refused("has no tokenizer.json", checkpoint.load_model, tmp_path / "m")
    (tmp_path / "m/config.json").write_text("{}")
    refused("not a causal language model that", checkpoint.load_model, tmp_path / "m")
    refused("there is no checkpoint .*gone", checkpoint.load_model, tmp_path / "gone")


def test_a_folder_without_all_weights_is_refused(tmp_path):
    """transformers itself only warns, and takes random numbers."""
    folder_of(tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    tensors = safetensors_torch.load_file(path)
    del tensors["model.layers.1.self_attn.v_proj.weight"]
    safetensors_torch.save_file(tensors, path)
    refused("its settings and weights differ in model.layers.1.self_attn.v_proj.weight; get a",
            checkpoint.load_model, tmp_path / "m")


@torch.no_grad()
def test_a_config_cannot_choose_the_code_that_computes_attention(tmp_path):
    theirs = folder_of(tmp_path / "m")
    path = tmp_path / "m/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {
        "attn_implementation": "someone/kernel", "_attn_implementation": "someone/kernel"}))
    model, _ = checkpoint.load_model(tmp_path / "m")
    idx = torch.randint(V, (1, 9))
    assert torch.equal(model.hidden(idx), theirs.model(idx).last_hidden_state)


def test_a_checkpoint_of_ours_comes_before_a_config_json(tmp_path):
    from conftest import save_model
    folder_of(tmp_path)
    save_model(tmp_path / "ckpt.pt", tiny_model(), None)
    assert checkpoint.find(tmp_path).name == "ckpt.pt"
    (tmp_path / "ckpt.pt").rename(tmp_path / "ckpt_prev.pt")
    assert checkpoint.find(tmp_path).name == "ckpt_prev.pt"


# -----------------------------------------------------------------------------
# the scripts of docs/models.md, and hf.ipynb

SCRIPTS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize("script, kind, layers", [
    ("train_s.py", "LlamaForCausalLM", [0, 1, 2]), ("to_windows.py", "SmolLM3ForCausalLM", [1])])
def test_a_script_of_the_page_trains_a_tiny_model(tmp_path, monkeypatch, script, kind, layers):
    if script == "train_s.py":
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


class Shell:
    """What `!` and `%` of a notebook call: its programs run in this process."""

    def __init__(self, names):
        self.names, self.lines = names, []

    def system(self, line):
        python, program, *arguments = shlex.split(line.format(**self.names))
        assert python == sys.executable
        self.lines.append([program, *arguments])
        if program != "-m":  # pip
            call(importlib.import_module(program.removesuffix(".py")), *arguments)


def test_the_notebook_runs_on_a_tiny_model(tmp_path, monkeypatch, capsys):
    from IPython.core.inputtransformer2 import TransformerManager
    names = {}
    shell = names["shell"] = Shell(names)
    names["get_ipython"] = lambda: shell
    cells = [TransformerManager().transform_cell(cell.source)
             for cell in nbformat.read(ROOT / "hf.ipynb", as_version=4).cells
             if cell.cell_type == "code"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="upload the repository as a .zip"):
        exec(cells[0], names)
    with zipfile.ZipFile("code.zip", "w") as archive:
        archive.writestr("nanossmax-main/eval_niah.py", "")
    exec(cells[0], names)
    assert Path.cwd().name == "nanossmax-main" and "transformers" in shell.lines.pop()
    folder_of(Path("m"))
    Path("text.txt").write_text("A box 12 is red. " * 2000)
    small = {"MODEL": "m", "TEXT": "text.txt", "SIZES": "200,300", "LENGTH": 400}
    for name, value in small.items():
        assert re.search(f"(?m)^{name} = ", cells[1])
        cells[1] = re.sub(f"(?m)^{name} = .*", f"{name} = {value!r}", cells[1])
    for cell in cells[1:]:
        exec(cell, names)
    assert "[clip]" in capsys.readouterr().out
    assert Path("m/niah-clip.jsonl").exists() and Path("m/posloss.jsonl").exists()
    assert names["model"].config.ssmax["kind"] == "logn_clip"
