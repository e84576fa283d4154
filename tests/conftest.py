"""What the tests share: a tiny prepared corpus, a tiny model, and the programs run in this process or in one of their own."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

import configurator  # noqa: E402
import model as model_module  # noqa: E402
import prepare  # noqa: E402
import train  # noqa: E402

TINY = dict(block_size=32, n_layer=2, n_head=2, n_embd=32, n_inner=48)
# a run of a second or two, on the corpus below
TINY_RUN = [f"--{k}={v}" for k, v in TINY.items()] + [
    "--data_order=sequence", "--batch_size=8", "--micro_batch_size=8", "--max_iters=6", "--warmup_iters=2", "--learning_rate=0.003",
    "--eval_interval=3", "--eval_seqs=16", "--save_interval=2", "--device=cpu", "--dtype=float32", "--compile=False", "--switch_warmup_iters=2"]
TYPES = list(model_module.ATTENTION)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Folder of a small embedded corpus in blocks of 32 words, with compact vocabulary."""
    folder = tmp_path_factory.mktemp("data")
    prepare.prepare(configurator.configure(prepare.PrepareConfig, [
        "--embedded", "--compact_vocab", "--name=tiny", f"--data_dir={folder}", "--block_size=32", "--n_copy=64", "--n_train=192"]))
    return folder / "tiny"


@pytest.fixture
def run(corpus, monkeypatch):
    """run(out_dir, *arguments): train.py's main in this process."""

    def run(out_dir, *arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *TINY_RUN, f"--data_dir={corpus}", f"--out_dir={out_dir}", *arguments])
        train.main()

    return run


def program(*arguments, status=0, **kwargs):
    """Run `python *arguments` from the root of the repo to its end; returns what it printed on stdout + stderr."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **kwargs.pop("env", {})}
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=240, **kwargs)
    assert done.returncode == status, f"status {done.returncode}, not {status}\n{done.stdout}"
    return done.stdout


def tiny_model(attention_type="ssmax", seed=0, **changes):
    """A small model with s, b, p_n (and norms) that differ from head to head, so that a broadcast error shows."""
    torch.manual_seed(seed)
    config = model_module.GPTConfig(**{"attention_type": attention_type, "vocab_size": 61, "init_std": 0.15, **TINY, **changes})
    model = model_module.GPT(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p += 0.4 * torch.rand_like(p)
    return model.eval()


def squad_file(path, n=40):
    """Official SQuAD JSON of 2n questions, half of them without an answer."""
    paragraphs = [{"context": f"The box number {i} is red. It stands in the garden.", "qas": [
        {"question": f"Which colour has box {i}?", "id": str(i), "answers": [{"text": "red", "answer_start": len(f"The box number {i} is ")}]},
        {"question": "Who painted it?", "id": f"x{i}", "is_impossible": True, "answers": []}]} for i in range(n)]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": f"t{i}", "paragraphs": paragraphs[i::4]} for i in range(4)]}))
    return path
