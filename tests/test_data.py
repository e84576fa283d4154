"""Bins and batches: the order of the data follows from (seed, split, step) alone, and nothing damaged is read."""
import json
import shutil

import numpy as np
import pytest

import data
from data import Tokens, shuffled
from runtime import UserError, sealed


@pytest.fixture
def copy(corpus, tmp_path):
    return shutil.copytree(corpus, tmp_path / "tiny")


def make(folder, shards, split="train", **changes):
    """A corpus of hand-written shards of GPT-2 ids."""
    import hashlib
    folder.mkdir(exist_ok=True)
    entries = []
    for i, ids in enumerate(shards):
        raw = np.array(ids, dtype=np.uint16).tobytes()
        (folder / f"{split}-{i}.bin").write_bytes(raw)
        entries.append({"file": f"{split}-{i}.bin", "tokens": len(ids), "documents": 1, "bytes": len(raw), "max_id": max(ids),
                        "sha256": hashlib.sha256(raw).hexdigest()})
    manifest = {"tokenizer": "gpt2", "dtype": "uint16", "vocab": None, "slice": [1, 1], "complete": True, "source": {},
                "splits": {split: {"shards": entries}}, **changes}
    (folder / f"{split}.json").write_text(json.dumps(sealed(manifest)))
    return folder


@pytest.mark.parametrize("order", data.ORDERS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_number_of_ranks_reads_the_same_global_batch(corpus, monkeypatch, order, ranks):
    whole = Tokens(corpus, "train").batch(7, 5, 12, 32, order)
    for r in range(ranks):
        monkeypatch.setattr(data, "rank", lambda: r)
        monkeypatch.setattr(data, "world_size", lambda: ranks)
        part = Tokens(corpus, "train").batch(7, 5, 12, 32, order)
        assert all((p == w[r::ranks]).all() for p, w in zip(part, whole))


def test_a_batch_follows_from_seed_split_and_step_alone(corpus):
    train, val = Tokens(corpus, "train"), Tokens(corpus, "val")
    first = train.batch(1, 3, 8, 32)[0]
    train.batch(1, 9, 8, 32), val.batch(1, 3, 8, 32)
    assert (train.batch(1, 3, 8, 32)[0] == first).all()
    for other in (train.batch(2, 3, 8, 32), train.batch(1, 4, 8, 32)):
        assert (other[0] != first).any()


def test_targets_are_one_ahead_and_windows_cross_shards(tmp_path):
    tokens = Tokens(make(tmp_path / "c", [list(range(10)), list(range(10, 13)), list(range(13, 40))]), "train")
    assert len(tokens) == 40
    assert tokens.read([0, 8, 30], 10).tolist() == [list(range(10)), list(range(8, 18)), list(range(30, 40))]
    x, y = tokens.batch(0, 0, 200, 9)
    assert (y == x + 1).all() and x.min() == 0 and y.max() == 39


def test_blocks_come_once_an_epoch_and_sequence_in_order(tmp_path):
    tokens = Tokens(make(tmp_path / "c", [list(range(4 + 23 * 5))]), "train")  # 23 blocks of 5 behind the 4 tokens before the first
    epochs = [np.concatenate([tokens.batch(3, e * 23 + i, 1, 4, "blocks")[0][:, 0] for i in range(23)]) for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(4, 4 + 23 * 5, 5))
    assert list(epochs[0]) != sorted(epochs[0]) and list(epochs[0]) != list(epochs[1])
    assert tokens.batch(3, 0, 30, 4, "sequence")[0][:, 0].tolist() == [4 + 5 * (i % 23) for i in range(30)]


@pytest.mark.parametrize("n", [1, 2, 3, 64, 1000, 4097])
def test_shuffled_is_a_permutation(n):
    i = np.arange(n, dtype=np.uint64)
    assert sorted(shuffled(i, n, 1, np.uint64(0))) == list(range(n))
    if n >= 64:
        moved = shuffled(i, n, 1, np.uint64(0)).astype(float)
        assert abs(np.corrcoef(moved, i)[0, 1]) < 0.3


def test_embedded_documents_fill_their_blocks(corpus):
    tokens = Tokens(corpus, "train")
    x, y = tokens.batch(0, 0, 200, 32, "sequence")
    eot = data.end_of_text(tokens.vocab)
    assert (x[:, 0] == eot).all() and (x[:, 1:] != eot).all() and (y != eot).all()
    text = data.decode(x[100, 1:], tokens.vocab)
    assert data.encode(text, tokens.vocab) == x[100, 1:].tolist()


@pytest.mark.parametrize("at", [0, 1, 1000, -1])
def test_a_changed_byte_is_refused(copy, at):
    path = copy / "train-00000.bin"
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match="train-00000.bin was changed"):
        Tokens(copy, "train")
    Tokens(copy, "val")


def test_cut_or_missing_shard_is_refused(copy):
    path = copy / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match="bytes, its manifest says"):
        Tokens(copy, "train")
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        Tokens(copy, "train")


@pytest.mark.parametrize("change, message", [
    (dict(complete=False), "not finished"), (dict(tokenizer="llama"), "not a manifest that"), (dict(dtype="uint32"), "not a manifest that"),
    (dict(slice=[1, 2]), "slices 1/2"), (dict(splits=3), "not a manifest"), (dict(vocab=[5, 50256]), "outside the vocabulary"),
    (dict(vocab=[]), "not a manifest that"), (dict(vocab=[1.5, 50256]), "not a manifest that"), (dict(slice="12"), "not a manifest"),
    (dict(slice=[1, "a"]), "not a manifest"), (dict(slice=[1, 1.5]), "not a manifest")])
def test_unusable_manifest_is_refused(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        Tokens(make(tmp_path / "c", [[1, 2, 3]], **change), "train")


def test_slices_of_different_preparations_are_refused(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3]], slice=[1, 2])
    manifest = json.loads((folder / "train.json").read_text())
    (folder / "train-02of03.json").write_text(json.dumps(sealed({**manifest, "slice": [2, 3]})))
    with pytest.raises(UserError, match="slices 1/2, 2/3"):
        Tokens(folder, "train")
    (folder / "train-02of03.json").write_text(json.dumps(sealed({**manifest, "slice": [2, 2], "source": {"limit": 5}})))
    with pytest.raises(UserError, match="different sources"):
        Tokens(folder, "train")


def test_manifest_reads_nothing_outside_its_folder(tmp_path):
    folder = make(tmp_path / "c", [[1, 2, 3]])
    (tmp_path / "secret.bin").write_bytes((folder / "train-0.bin").read_bytes())
    manifest = (folder / "train.json").read_text().replace("train-0.bin", "../secret.bin")
    (folder / "train.json").write_text(json.dumps(sealed(json.loads(manifest))))
    with pytest.raises(UserError, match="not a manifest that"):
        Tokens(folder, "train")


def test_missing_corpus_split_and_short_split_say_what_to_do(tmp_path):
    with pytest.raises(UserError, match="prepare.py"):
        Tokens(tmp_path / "nowhere", "train")
    folder = make(tmp_path / "c", [[1, 2, 3]])
    with pytest.raises(UserError, match="no split 'val', only train"):
        Tokens(folder, "val")
    for order in data.ORDERS:
        with pytest.raises(UserError, match="has 3 tokens"):
            Tokens(folder, "train").batch(0, 0, 1, 3, order)


def test_gpt2_vocabulary_comes_without_network(tmp_path, monkeypatch):
    import tiktoken
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setattr(tiktoken.load, "read_file", lambda path: pytest.fail("asked the network"))
    assert data.gpt2_encoding().encode_ordinary("Hello world") == [15496, 995]
    assert len(list(tmp_path.iterdir())) == 2


def test_compact_vocabulary_says_which_word_it_lacks(corpus):
    with pytest.raises(UserError, match="has no token"):
        data.encode("zebra", Tokens(corpus, "train").vocab)
