"""
No input, however broken, gives a traceback: random command lines, config files, manifests, results, texts, checkpoints and SQuAD files. NANOSSMAX_FUZZ
is the number of examples of each test; runs/torture.sh takes many.
"""
import json
import os
import shutil
import sys

import pytest
import torch
from conftest import TINY_RUN
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import bench
import checkpoint
import claims
import configurator
import data
import eval_niah
import eval_posloss
import plot
import prepare
import runtime
import sample
import sft
import train
from runtime import UserError

EXAMPLES = int(os.environ.get("NANOSSMAX_FUZZ", 40))
fuzz = settings(max_examples=EXAMPLES, deadline=None, derandomize="NANOSSMAX_FUZZ" not in os.environ, database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck))
CONFIGS = {train: train.TrainConfig, sft: sft.SFTConfig, prepare: prepare.PrepareConfig, eval_posloss: eval_posloss.PosLossConfig,
           eval_niah: eval_niah.NiahConfig, plot: plot.PlotConfig, sample: sample.SampleConfig, bench: bench.BenchConfig,
           claims: claims.ClaimsConfig}

numbers = st.one_of(st.integers(-3, 70), st.sampled_from([0, 10**18, -10**18, 2**63, 1e300, -0.5, 0.1, 1e-30]), st.floats())
values = st.one_of(numbers.map(repr), st.booleans().map(repr), st.text(max_size=12), st.lists(numbers, max_size=3).map(repr),
                   st.sampled_from(["auto", "cpu", "cuda", "softmax", "ssmax", "pn", "none", "linear", "overwrite", "1/2", "None", "{}", "()", "''", "é", "\0"]))
NOT_HERE = {"n_layer", "num_proc", "out_dir", "data_dir", "resume", "wandb_log", "compile", "hf", "out", "device"}  # slow, or they write elsewhere


def lines_of(cls):
    keys = st.sampled_from(sorted(set(configurator.fields(cls)) - NOT_HERE - {"files"}) or ["files"])
    return st.lists(st.one_of(st.builds("--{}={}".format, keys, values), st.builds("--{}".format, keys),
                              st.text(max_size=10).filter(lambda t: not t.endswith(".py"))), max_size=4)


def ends_well(main, program, argv, capsys, statuses=(0, 2)):
    """Run main() as a program would be: it must end with one of `statuses`, and a mistake in one line. Returns the status."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(sys, "argv", [program, *map(str, argv)])
        try:
            runtime.launch(main)
            status = 0
        except SystemExit as e:
            status = e.code or 0
    err = capsys.readouterr().err
    assert status in statuses, (argv, status, err)
    if status:
        assert sum(line.startswith("error: ") for line in err.splitlines()) == 1, (argv, err)
    return status


@pytest.mark.parametrize("module", CONFIGS, ids=lambda m: m.__name__)
def test_any_command_line_is_a_config_or_one_line(module, capsys):
    @fuzz
    @given(lines_of(CONFIGS[module]))
    def check(argv):
        ends_well(lambda: configurator.configure(CONFIGS[module]), f"{module.__name__}.py", argv, capsys)
    check()


@pytest.fixture(scope="module")
def here(corpus, tmp_path_factory):
    """Folder with a finished tiny run, its results, and the corpus."""
    folder = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as m:
        for module, argv in ((train, [*TINY_RUN, f"--data_dir={corpus}", f"--out_dir={folder}"]),
                             (eval_posloss, [folder / "ckpt.pt", f"--data_dir={corpus}", "--seq_len=50", "--n_seqs=2", "--device=cpu"]),
                             (eval_niah, ["config/quick_niah.py", folder / "ckpt.pt", f"--data_dir={corpus}", "--context_sizes=[64]", "--depths=[50]",
                                          "--n_samples=2", "--device=cpu"])):
            m.setattr(sys, "argv", [module.__name__, *map(str, argv)])
            module.main()
    return folder


@pytest.mark.parametrize("module", [train, eval_posloss, eval_niah, sample], ids=lambda m: m.__name__)
def test_any_settings_run_or_are_one_line(module, here, corpus, capsys, monkeypatch, tmp_path):
    """The programs themselves, up to where the work would begin."""
    monkeypatch.setattr(train, "fit", lambda cfg, model, train_batch, val_batch, **kwargs: (train_batch(0), cfg.eval_interval and val_batch()))
    monkeypatch.setattr(eval_posloss, "loss_sums", lambda model, window, chunk: torch.zeros(2, window.size(1) - 1))
    monkeypatch.setattr(eval_niah, "answer", lambda cfg, model, sampler, batch, device: [
        {**{k: s[k] for k in ("size", "depth", "i", "city", "number")}, "exact": True, "first": True, "substring": True, "top": 0.5, "text": ""} for s in batch])
    monkeypatch.setattr(train.GPT, "generate", lambda self, idx, *args, **kwargs: idx)
    here = shutil.copytree(here, tmp_path / "here")
    base = {train: [*TINY_RUN, f"--data_dir={corpus}", f"--out_dir={tmp_path}/o"], sample: [here / "ckpt.pt", "--device=cpu"],
            eval_posloss: [here / "ckpt.pt", f"--data_dir={corpus}", "--n_seqs=2", "--seq_len=50", "--device=cpu"],
            eval_niah: ["config/quick_niah.py", here / "ckpt.pt", f"--data_dir={corpus}", "--n_samples=1", "--device=cpu"]}[module]

    @fuzz
    @given(lines_of(CONFIGS[module]).filter(lambda argv: not any(a.startswith(("--n_s", "--trials", "--haystack", "--cities", "--tag", "--num_samples")) and
                                                                  len(a) > 12 for a in argv)))
    def check(argv):
        for old in here.glob("*.json*"):
            if old.name != "log.jsonl":
                old.unlink()
        ends_well(module.main, f"{module.__name__}.py", [*base, *argv], capsys)
    check()


@fuzz
@given(st.one_of(st.text(max_size=60), st.lists(st.tuples(st.sampled_from(["n_layer", "learning_rate", "out_dir", "zzz", "_x", "max_iters"]), values), max_size=3)
                 .map(lambda pairs: "\n".join(f"{k} = {v}" for k, v in pairs)), st.binary(max_size=30)))
def test_any_config_file_is_a_config_or_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("config") / "c.py"
    if isinstance(text, str) and any(word in text for word in ("import", "exit", "quit", "input", "open")):
        return  # a config file is code
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(configurator.configure(train.TrainConfig, [str(path)]), train.TrainConfig)
    except UserError as e:
        assert str(e).strip()
    shutil.rmtree(path.parent)


json_values = st.recursive(st.one_of(st.none(), st.booleans(), st.integers(-5, 70000), st.floats(), st.text(max_size=8)),
                           lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)), max_leaves=8)


def changed(content, draw):
    """`content` with one value, somewhere inside, replaced or left out."""
    if isinstance(content, dict) and content and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(content)))
        rest = {k: v for k, v in content.items() if k != key}
        return rest if draw(st.integers(0, 4)) == 0 else {**rest, key: changed(content[key], draw)}
    if isinstance(content, list) and content and draw(st.integers(0, 9)):
        i = draw(st.integers(0, len(content) - 1))
        return content[:i] + [changed(content[i], draw)] + content[i + 1:]
    return draw(json_values)


@fuzz
@given(st.data())
def test_any_manifest_is_refused_or_means_what_it_says(corpus, tmp_path_factory, data_):
    """A manifest that somebody wrote (its seal is right) cannot make the reader fail, nor read outside its folder."""
    folder = tmp_path_factory.mktemp("m")
    for path in corpus.iterdir():
        os.link(path, folder / path.name)
    path = folder / "train.json"
    manifest = changed(runtime.unsealed(json.loads(path.read_text())), data_.draw)
    path.unlink()
    path.write_text(json.dumps(runtime.sealed(manifest) if isinstance(manifest, dict) else manifest))
    try:
        tokens = data.Tokens(folder, "train")
        tokens.batch(0, 0, 2, 8)
        assert all(p.parent == folder for p in tokens.paths)
    except UserError:
        pass
    shutil.rmtree(folder)


@fuzz
@given(st.data())
def test_a_changed_byte_of_a_manifest_shows(corpus, tmp_path_factory, data_):
    raw = (corpus / "train.json").read_bytes()
    at, bit = data_.draw(st.integers(0, len(raw) - 1)), data_.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("m") / "train.json"
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1:])
    try:
        assert data.read_manifest(path) == data.read_manifest(corpus / "train.json")  # a space for a space
    except UserError:
        pass
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("name", ["posloss.json", "niah.jsonl", "niah.json", "log.jsonl"])
def test_any_result_file_is_read_or_one_line(name, here, corpus, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(plot.plt.Figure, "savefig", lambda self, path: None)  # the slow part
    shutil.copytree(here, tmp_path, dirs_exist_ok=True)
    good = (tmp_path / name).read_text()
    lines = [json.loads(line) for line in good.splitlines()]
    evaluate = {"posloss.json": (eval_posloss, ["--seq_len=50", "--n_seqs=2"]), "log.jsonl": (train, TINY_RUN)}.get(
        name, (eval_niah, ["config/quick_niah.py", "--context_sizes=[64]", "--depths=[50]", "--n_samples=2"]))

    @fuzz
    @given(st.data())
    def check(data_):
        new = changed(lines, data_.draw) if data_.draw(st.booleans()) else data_.draw(st.one_of(st.text(max_size=30), st.lists(json_values, max_size=3)))
        forged = isinstance(new, list) and data_.draw(st.booleans())
        if forged:
            new = [runtime.sealed(x) if isinstance(x, dict) else x for x in new]
        (tmp_path / name).write_text(new if isinstance(new, str) else "".join(json.dumps(x) + "\n" for x in new) if isinstance(new, list) else json.dumps(new))
        for figure in {"posloss.json": ["posloss", "table"], "niah.json": ["niah", "table"], "log.jsonl": ["learning_curves", "learned_s"]}.get(name, []):
            ends_well(plot.main, "plot.py", [figure, tmp_path, f"--out={tmp_path}/f"], capsys)
        ends_well(claims.main, "claims.py", [tmp_path], capsys)
        if forged:
            return  # an evaluation goes on with what has its seal
        module, argv = evaluate
        own = [f"--out_dir={tmp_path}"] if module is train else [tmp_path / "ckpt.pt"]
        ends_well(module.main, module.__name__, [*argv, *own, f"--data_dir={corpus}", "--device=cpu"], capsys)
    check()


def test_any_record_of_claims_is_read_or_one_line(here, tmp_path, capsys):
    ends_well(claims.main, "claims.py", [here, f"--out={tmp_path}"], capsys, statuses=(0,))
    path, = tmp_path.glob("*.json")
    good = runtime.unsealed(json.loads(path.read_text()))

    @fuzz
    @given(st.data())
    def check(data_):
        new, sealed = changed(good, data_.draw), data_.draw(st.booleans())
        path.write_text(json.dumps(runtime.sealed(new) if sealed and isinstance(new, dict) else new))
        ends_well(claims.main, "claims.py", [tmp_path], capsys, statuses=(0, 2) if sealed or new == good else (2,))
    check()


@fuzz
@given(st.sampled_from(["a.txt", "a.jsonl", "a.json", "a.jsonl.zst", "a.txt.gz", "a.parquet"]), st.one_of(
    st.binary(max_size=60), st.text(max_size=40).map(lambda t: t.encode("utf-8", "surrogatepass")),
    st.lists(json_values, max_size=3).map(lambda rows: "\n".join(map(json.dumps, rows)).encode()),
    st.lists(st.text(max_size=9), max_size=3).map(lambda rows: "\n".join(json.dumps({"text": t}) for t in rows).encode())), st.booleans())
def test_any_text_file_is_prepared_or_one_line(tmp_path_factory, capsys, name, raw, skip_bad):
    folder = tmp_path_factory.mktemp("p")
    (folder / name).write_bytes(raw)
    status = ends_well(prepare.main, "prepare.py", [folder / name, "--name=c", f"--data_dir={folder}", "--num_proc=1", f"--skip_bad={skip_bad}"], capsys)
    if status == 0:
        assert len(data.Tokens(folder / "c", "train")) > 0
    shutil.rmtree(folder)


@fuzz
@given(st.one_of(st.binary(max_size=60), json_values.map(lambda v: json.dumps(v).encode())))
def test_any_squad_file_is_prepared_or_one_line(tmp_path_factory, capsys, raw):
    folder = tmp_path_factory.mktemp("s")
    (folder / "s.json").write_bytes(raw)
    status = ends_well(prepare.main, "prepare.py", ["--squad", folder / "s.json", "--name=q", f"--data_dir={folder}"], capsys)
    assert (folder / "q/train.squad.jsonl").exists() == (status == 0)  # all or nothing
    shutil.rmtree(folder)


@fuzz
@given(st.data())
def test_a_changed_squad_file_shows(tmp_path_factory, capsys, data_):
    from conftest import squad_file
    folder = tmp_path_factory.mktemp("s")
    ends_well(prepare.main, "prepare.py", ["--squad", squad_file(folder / "s.json", 4), "--name=q", f"--data_dir={folder}"], capsys)
    raw = (folder / "q/train.squad.jsonl").read_bytes()
    at = data_.draw(st.integers(0, len(raw) - 1))
    (folder / "q/train.squad.jsonl").write_bytes(raw[:at] + bytes([raw[at] ^ 1 << data_.draw(st.integers(0, 7))]) + raw[at + 1:])
    with pytest.raises(UserError):
        data.read_examples(folder / "q", "train")
    shutil.rmtree(folder)


@fuzz
@given(st.data())
def test_a_changed_or_cut_checkpoint_is_refused(here, tmp_path_factory, data_):
    raw, folder = (here / "ckpt.pt").read_bytes(), tmp_path_factory.mktemp("c")
    at = data_.draw(st.integers(0, len(raw) - 1))
    new = raw[:at] if data_.draw(st.booleans()) else raw[:at] + bytes([raw[at] ^ 1 << data_.draw(st.integers(0, 7))]) + raw[at + 1:]
    (folder / "ckpt.pt").write_bytes(new)
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load(folder / "ckpt.pt")
    shutil.rmtree(folder)
