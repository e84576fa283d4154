"""What the tests share: a tiny corpus, a tiny model, and the programs, in this process or apart."""
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.chdir(ROOT)  # the programs run from there
os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

import prepare  # noqa: E402
import train  # noqa: E402
from lib import checkpoint  # noqa: E402
from model import ATTENTION, GPT, GPTConfig  # noqa: E402

TINY = {"block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 32, "n_inner": 48}
TYPES = list(ATTENTION)
# a run of a second, on the corpus below
TINY_RUN = [f"--{key}={value}" for key, value in TINY.items()] + [
    "--data_order=sequence", "--batch_size=8", "--micro_batch_size=8", "--max_iters=6",
    "--warmup_iters=2", "--learning_rate=0.003", "--eval_interval=3", "--eval_seqs=16",
    "--save_interval=2", "--device=cpu", "--dtype=float32", "--compile=False",
    "--switch_warmup_iters=2"]


def call(module, *arguments):
    """module.main() in this process, as `python module.py *arguments` runs it."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    with pytest.MonkeyPatch.context() as m:
        m.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, arguments)])
        try:
            module.main()
        finally:  # train.py's own would swallow the Ctrl-C that is meant for pytest
            for number, handler in handlers.items():
                signal.signal(number, handler)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Folder of a small embedded corpus in blocks of 32 words, with compact vocabulary."""
    folder = tmp_path_factory.mktemp("data")
    call(prepare, "--embedded", "--compact_vocab", "--name=tiny", f"--data_dir={folder}",
         "--block_size=32", "--n_copy=64", "--n_train=192")
    return folder / "tiny"


@pytest.fixture
def run(corpus):
    """run(out_dir, *arguments): train.py's main on TINY_RUN in this process."""

    def run(out_dir, *arguments):
        call(train, *TINY_RUN, f"--data_dir={corpus}", f"--out_dir={out_dir}", *arguments)

    return run


def program(*arguments, status=0, **kwargs):
    """`python *arguments` from the root of the repo to its end -> what it printed, stderr too."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **kwargs.pop("env", {})}
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, **kwargs)
    assert done.returncode == status, f"ended with {done.returncode}, not {status}\n{done.stdout}"
    return done.stdout


def torchrun(ranks, *arguments):
    return program("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}",
                   *arguments)


@contextlib.contextmanager
def sigterm_in_update(update):
    """Preempt the run within: SIGTERM comes during its update number `update`."""
    updates, batch_loss = itertools.count(1), train.batch_loss

    def preempted(*args):
        if torch.is_grad_enabled() and next(updates) == update:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch_loss(*args)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(train, "batch_loss", preempted)
        yield


def state_of(path):
    """{name: CRC-32} of the weights and moments of a checkpoint, and its number of updates."""
    state = checkpoint.load(path)
    tensors = dict(state["model"])
    for i, moments in state["optimizer"]["state"].items():
        tensors.update({f"{name} of parameter {i}": p for name, p in moments.items()})
    found = {name: zlib.crc32(p.numpy().tobytes()) for name, p in tensors.items()}
    return {**found, "iter": state["iter"]}


def tiny_model(attention_type="ssmax", seed=0, **changes):
    """A small model whose s, b, p_n and norms differ by head, so that a broadcast error shows."""
    torch.manual_seed(seed)
    settings = {"vocab_size": 61, "init_std": 0.15, **TINY, **changes}
    model = GPT(GPTConfig(attention_type=attention_type, **settings))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p += 0.4 * torch.rand_like(p)
    return model.eval()


def squad_file(path, n=40):
    """Official SQuAD JSON of 2n questions, half of them without an answer, in 4 articles."""
    paragraphs = []
    for i in range(n):
        context = f"The box number {i} is red. It stands in the garden."
        answer = {"text": "red", "answer_start": context.index("red")}
        paragraphs.append({"context": context, "qas": [
            {"question": f"Which colour has box {i}?", "id": str(i), "answers": [answer]},
            {"question": "Who painted it?", "id": f"x{i}", "is_impossible": True, "answers": []}]})
    articles = [{"title": f"t{i}", "paragraphs": paragraphs[i::4]} for i in range(4)]
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return path
