"""What the tests share: a tiny corpus, a tiny model, and the programs, in this process or apart."""
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.chdir(ROOT)  # the programs run from there
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")  # for programs in processes of their own
torch.set_num_threads(1)

import prepare  # noqa: E402
import train  # noqa: E402
from experiments import check  # noqa: E402
from lib import checkpoint, storage  # noqa: E402
from lib.errors import UserError  # noqa: E402
from lib.models import ModelConfig, code_of  # noqa: E402
from lib.text import GPT2  # noqa: E402

CPU = ["--device=cpu", "--dtype=float32"]
TINY = {"block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 32, "n_inner": 48}
TINY_RUN = [*CPU, *(f"--{key}={value}" for key, value in TINY.items()), *"""
    --data_order=sequence --batch_size=8 --micro_batch_size=8 --max_iters=6 --warmup_iters=2
    --learning_rate=0.003 --eval_interval=3 --eval_seqs=16 --save_interval=2
    --compile=False""".split()]  # takes a second on the fixture `corpus`
EVALS = {
    "eval_niah": [*CPU, "config/quick_niah.py", "--context_sizes=[64,100]", "--depths=[10,90]",
                  "--n_samples=5"],
    "eval_posloss": [*CPU, "--seq_len=90", "--n_seqs=12"]}


def call(module, *arguments):
    """module.main() in this process, as `python module.py *arguments` runs it."""
    try:
        with mock.patch("sys.argv", [f"{module.__name__}.py", *map(str, arguments)]):
            module.main()
    finally:  # train.py's own handlers would swallow the Ctrl-C that is meant for pytest
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        storage.LOCKS.clear()  # programs hold their locks until their process ends


def refused(message, work, /, *arguments, **options):
    """Check that work(...) ends in one line with `message` in it. Return its exit status."""
    with pytest.raises(UserError, match=message) as error:
        work(*arguments, **options)
    assert "\n" not in str(error.value), "more than one line"
    return error.value.status


def byte_tokenizer(*merged):
    """A tokenizer of bytes with an end of text, and with the tokens `merged`: "x y" is xy with a
    merge of x and y, and "xy" is xy without one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from tokenizers.pre_tokenizers import ByteLevel
    end = "<|endoftext|>"
    pieces = [end, *sorted(ByteLevel.alphabet()), *(piece.replace(" ", "") for piece in merged)]
    merges = [tuple(piece.split()) for piece in merged if " " in piece]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(end, normalized=False, special=True)])
    return tokenizer


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A small embedded corpus in blocks of 32 words, with a compact vocabulary."""
    folder = tmp_path_factory.mktemp("data")
    call(prepare, "--embedded=almanac", "--compact_vocab", "--name=tiny", f"--data_dir={folder}",
         "--block_size=32", "--n_copy=64", "--n_train=256")
    return folder / "tiny"


@pytest.fixture
def run(corpus):
    """run(out_dir, *arguments): train.py's main on TINY_RUN in this process."""
    return lambda out_dir, *arguments: call(
        train, *TINY_RUN, f"--data_dir={corpus}", f"--out_dir={out_dir}", *arguments)


def program(*arguments, folder=ROOT, status=0):
    """Return what `python *arguments` prints, with its errors, in a process of its own."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=240)
    print(done.stdout)  # pytest shows it if the test fails
    assert done.returncode == status
    return done.stdout


def two_ranks(code):
    """Return what `code`, which can import what tests can, prints on two ranks together."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    code += "\nimport torch\ntorch.distributed.destroy_process_group()"  # as launch does
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": f"{port}",
                           "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
    ranks = [subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=shared | {"RANK": rank})
             for rank in "01"]
    printed = "".join(process.communicate(timeout=240)[0] for process in ranks)
    print(printed)
    assert [process.returncode for process in ranks] == [0, 0]
    return printed


def held(path):
    """Lock `path` as another program does. Return the file that holds the lock until it closes."""
    storage.lock(path)
    return storage.LOCKS.pop(path)


def signal_in(update, number=signal.SIGTERM):
    """Return a context in which a signal comes to a run in its update number `update`."""

    def preempt(cfg, step):
        if step == update - 1:
            signal.raise_signal(number)
        return mock.DEFAULT

    return mock.patch("train.learning_rate", side_effect=preempt, wraps=train.learning_rate)


class Shapes(TorchDispatchMode):
    """Notes the shapes of all tensors that operators return."""

    def __enter__(self):
        super().__enter__()
        self.shapes = []
        return self.shapes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.shapes.append(out.shape)
        return out


def log(out_dir):
    """Return the records of a run's log."""
    return storage.read_lines(out_dir / "log.jsonl")


def state_of(path):
    """Return {name: CRC-32} of a checkpoint's weights and moments, and its number of updates."""
    state = checkpoint.load(path)
    tensors = state["model"]
    for number, optimizer in enumerate(state["optimizers"]):
        for i, moments in optimizer["state"].items():
            tensors |= {f"{name} of {i} in {number}": p for name, p in moments.items()}
    return {name: zlib.crc32(p.numpy()) for name, p in tensors.items()} | {"iter": state["iter"]}


def tiny_model(attention_type="ssmax", **changes):
    """Make a small model in which no parameter of the attention is where it starts."""
    return check.make_model(ModelConfig(attention_type, **check.SIZES | changes))


def save_model(folder, model, vocab=GPT2, **changes):
    """Save a checkpoint as train.py does, and return its path."""
    return checkpoint.save(folder, {
        "model": model.state_dict(), "model_config": dataclasses.asdict(model.config),
        "config": {"seed": 1, "data_dir": "data/x", "max_iters": 1}, "code": "c",
        "variant": model.config.attention_type, "iter": 1, "optimizers": [],
        "vocab": vocab, "data": {"digest": "x", "source": {}},
        "attention_code": code_of(model.config), **changes})


def squad_file(path):
    """Write SQuAD's JSON: 40 questions with an answer and 40 without, in 4 articles."""
    articles = [{"title": f"t{i}", "paragraphs": []} for i in range(4)]
    answer = {"text": "red", "answer_start": 4}
    for i in range(40):
        articles[i % 4]["paragraphs"].append({"context": f"The red box {i} is old.", "qas": [
            {"question": f"Which colour has box {i}?", "id": f"{i}", "answers": [answer]},
            {"question": "Who painted it?", "id": f"x{i}", "is_impossible": True, "answers": []}]})
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return path
