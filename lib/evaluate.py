"""
Shared by the evaluations: their settings, the result file of a checkpoint, which is continued after
a kill, and the division of the work among ranks.

An evaluation is a program that calls `evaluate` with a function, as eval_posloss.py does. Tables,
differences from the baseline and figures then come from lib/results.py, which describes the files.
"""
import dataclasses
import itertools
import json
import math
import os
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from lib import checkpoint, ranks, results, runtime, storage
from lib.checkpoint import LoadConfig
from lib.config import NOT_IN_A_RESULT, changes
from lib.data import Tokens
from lib.errors import MALFORMED, UserError, explain
from lib.ranks import print0
from lib.text import GPT2_VOCAB, NoText, check_same_vocab


@dataclass(frozen=True)
class EvalConfig(LoadConfig):
    """Settings of every evaluation."""
    # data
    data_dir: str = ""  # a corpus made by prepare.py; empty: that of the training
    split: str = "test"  # split of that corpus
    # evaluation
    seed: int = 1337  # seed of the random choices, which are the same for every checkpoint
    tag: str = ""  # added to the names of the result files and of their lines in tables
    out: str = ""  # folder for the results; empty: beside each checkpoint
    overwrite: bool = False  # measure again and replace the results
    # machine
    micro_batch_size: int = 0  # pieces or prompts computed at once; 0: chosen for the device

    def __post_init__(self):
        super().__post_init__()
        if {"/", "\\"} & set(self.tag):
            raise ValueError(f"tag={self.tag} would be part of a file name: write it without a "
                             "slash")
        if not self.files:
            raise ValueError("name one or more checkpoints; see --help")
        if self.attention_type and not self.tag:
            raise ValueError(f"attention_type={self.attention_type} makes another model of each "
                             f"checkpoint: give it a name in tables, as in "
                             f"--tag={self.attention_type}")


# settings that change no record, or that X.json has elsewhere (attention: in `run`)
NOT_IN_SETTINGS = NOT_IN_A_RESULT | {
    "files", "attention", "tag", "context_sizes", "trial_sizes", "n_samples"}


@torch.no_grad()
def evaluate(cfg, name, ask):
    """
    Measure all checkpoints that cfg names, and print the tables of their results.

    name: of the evaluation and of its files. ask(cfg, path, model, state) returns what is asked of
    one checkpoint (model and state: see checkpoint.load_model):

        items    a list of dicts: "size" in tokens and "i" for each prompt or piece, and, if there
                 are some, "task" and "depth"
        measure  a function. It gets some of these dicts, all of one size, and returns a dict for
                 each: the "digest" of its text (see `digest_of`) and numbers, under their names
        more     what else the numbers depend on: the "data" of the text, and settings
    """
    device = runtime.setup(cfg.device)
    files = result_files(cfg, name)
    for out in files.values():
        storage.lock(out)
    for path, out in files.items():
        model, state = checkpoint.load_model(path, cfg, device)
        items, measure, more = ask(cfg, path, model, state)
        items = list({key_of(item): item for item in items}.values())  # each once
        meta = meta_of(cfg, name, model, state, more)
        n_updates = meta["run"]["iter"]
        updates = f", update {n_updates:,}" if n_updates else ""
        print0(f"{path}: {results.name_of(meta['variant'], cfg.tag)}{updates}")
        measure_missing(cfg, out, meta, items, measure, device)
        del model, measure  # memory for the next one
    if ranks.RANK == 0:
        rows = results.load(files.values())
        if len(rows):  # a size that was not asked for again may be unfinished
            results.print_tables(rows)


def digest_of(ids):
    """Return 8 hex digits that identify token ids."""
    return f"{zlib.crc32(np.asarray(ids, dtype=np.int64).tobytes()):08x}"


def corpus_of(cfg, path, state):
    """Return the Tokens of cfg.data_dir, or of the corpus that the checkpoint was trained on.
    UserError if the checkpoint has another vocabulary."""
    folder = cfg.data_dir or state["config"].get("data_dir")
    if not folder:
        raise UserError(f"{path} does not say which corpus it was trained on; give --data_dir")
    vocab = state["vocab"]
    tokens = Tokens(folder, cfg.split, vocab.size if isinstance(vocab, NoText) else GPT2_VOCAB)
    check_same_vocab(path, state["vocab"], folder, tokens.vocab,
                     "choose the --data_dir of a corpus with the checkpoint's vocabulary")
    return tokens


def check_length(path, model, length):
    """Raise a UserError if p_n (Eq. 3), or a table of positions as in GPT-2, is learned for fewer
    positions than `length`."""
    if length > model.max_len:
        raise UserError(f"{path} has learned {model.max_len} positions, and {length} are needed: "
                        "choose a shorter context, or another checkpoint")


# -----------------------------------------------------------------------------
# result files


def result_files(cfg, name):
    """
    Return {checkpoint: file for its result}: NAME[-tag].jsonl beside the checkpoint, or with
    --out=FOLDER in FOLDER/RUN, where RUN is the name of the checkpoint's own folder. UserError if a
    checkpoint is missing, or if two results would be one file.
    """
    files = {}
    for path in cfg.files:
        folder = checkpoint.find(path).parent
        if cfg.out:
            folder = Path(cfg.out) / Path(os.path.abspath(folder)).name  # "." has no name
        out = folder / f"{name}{cfg.tag and '-' + cfg.tag}.jsonl"
        if out in files.values():
            raise UserError(f"two results would both be written to {out}; evaluate one checkpoint "
                            "at a time, each with another --out")
        files[path] = out
    return files


def meta_of(cfg, name, model, state, more):
    """Return the content of X.json, see lib/results.py."""
    settings = {key: value for key, value in (dataclasses.asdict(cfg) | more).items()
                if key not in NOT_IN_SETTINGS}
    # "auto" means something else on another machine
    settings["dtype"] = runtime.dtype_name(model.wte.weight.device, cfg.dtype)
    meta = {"evaluation": name, "variant": state["variant"], "tag": cfg.tag,
             "seed": state["config"].get("seed", 0), "settings": settings, "data": more["data"],
             "run": checkpoint.training_of(state), "checkpoint": state["fingerprint"],
             "block_size": model.config.block_size,
             "params": sum(p.numel() for p in model.parameters()),
             "code": runtime.code_version(), "torch": torch.__version__}
    return json.loads(json.dumps(meta))  # tuples become lists, as in the file


def measure_missing(cfg, out, meta, items, measure, device):
    """Measure the items that have no record in the result file `out` yet. Records are appended as
    they come, so that a kill costs little. UserError if the file is of other settings."""
    # also records of sizes and samples that are not asked for now
    records, before = records_before(cfg, out, meta)
    wanted = before.get("records", {})
    missing = [item for item in items if key_of(item) not in records]
    n_records = n_by_size([*records.values(), *missing])
    # A size that was killed stays unfinished, also if fewer of its prompts are asked for now.
    meta["records"] = wanted | {size: max(wanted.get(size, 0), n_records[size])
                                for size in n_by_size(items)}
    # Ranks that see other files would wait for each other, or measure another checkpoint.
    ranks.must_agree(missing=len(missing), **meta)
    if not missing and meta["records"] == wanted:
        print0(f"{out} has all that is asked for; --overwrite measures again")
        return
    for key in ("code", "torch"):  # all versions that have measured a part
        versions = dict.fromkeys((*before.get(key, meta[key]).split(", "), meta[key]))
        meta[key] = ", ".join(versions)
    if meta["code"] != before.get("code", meta["code"]):
        print0(f"note: {out} was begun by another version of this program ({before['code']}), "
               "whose records stay; --overwrite measures all of them again")
    if ranks.RANK == 0:
        # Records are written again, because a kill may have cut the last one, and before X.json,
        # so that old records never meet new settings.
        storage.write_lines(out, records.values())
        storage.write_lines(out.with_suffix(".json"), [meta])
        file = open(out, "a", encoding="utf-8")
    # A record begins with these keys, and its item has the size.
    head = {key: meta[key] for key in ("variant", "tag", "seed")}
    head |= {"task": meta["evaluation"], "size": None, "depth": None}
    for batch in measure_batches(missing, measure, device, out.parent.name, cfg.micro_batch_size):
        if ranks.RANK == 0:
            storage.append_lines(file, [head | record for record in batch])


def key_of(item):
    """Return what identifies an item, or its record, in a file."""
    return tuple(item.get(name) for name in ("size", "depth", "i"))


def identity_of(meta):
    """Return {name: value} of all that a record depends on. meta: the content of X.json."""
    return meta["settings"] | {
        "variant": meta["variant"], "seed of the training": meta["seed"],
        "checkpoint": meta["checkpoint"],
        "text": meta["data"]["digest"],  # whatever its files are called
        "transformers": meta["run"]["settings"].get("transformers"),  # which may split text anew
        "attention_code": meta["run"]["settings"]["attention_code"]}


def n_by_size(records):
    """Return a Counter {size, as text: number of records or items}."""
    return Counter(str(record["size"]) for record in records)


def records_before(cfg, out, meta):
    """
    Return ({key: record}, content of X.json) of the result `out`; both are empty if there is none.
    UserError if it is a result of other settings, data or weights: it may have taken days. With
    --overwrite a result begins again, unless this version has begun it and was killed.
    """
    meta_path = out.with_suffix(".json")
    if not (meta_path.exists() and out.exists()):
        if out.exists() and out.stat().st_size and not cfg.overwrite:
            raise UserError(f"{meta_path} is missing, without which {out} cannot be continued: "
                            f"move {out.name} away, or replace it with --overwrite")
        return {}, {}
    with explain(f"{out} is not a result of this program; move it away", (OSError, *MALFORMED)):
        before = json.loads(meta_path.read_text(encoding="utf-8"))
        records = {key_of(record): record for record in storage.read_lines(out)}
        # settings that were added since then had their defaults; lists, as in the file
        defaults = {field.name: field.default for field in dataclasses.fields(cfg)}
        defaults = json.loads(json.dumps(defaults))
        differ = changes(defaults | identity_of(before), identity_of(meta))
        is_finished = not Counter(before["records"]) - n_by_size(records.values())
    if cfg.overwrite and (differ or is_finished or before["code"] != meta["code"]):
        return {}, {}
    if cfg.overwrite:
        print0(f"continuing the unfinished {out}; delete it to begin again")
    if differ:
        raise UserError(f"{out} is a result of other settings ({', '.join(differ)}); choose "
                        "another --tag or --out, or replace it with --overwrite")
    return records, before


# -----------------------------------------------------------------------------
# the work of all ranks


def measure_batches(items, measure, device, name, at_once=0):
    """
    Yield lists of records as they are measured, on all ranks together. If memory runs out on any
    rank, all go on with half as many at once. at_once: number of neighbouring items that a rank
    measures (in every_depth they share a text); 0: chosen for the device. name: in the progress
    bar.
    """
    tokens = 2**17 if device.type == "cuda" else 2**13  # at once on a rank
    disable = None if ranks.RANK == 0 else True  # None: show the bar on a terminal only
    bar = tqdm(total=len(items), desc=name, unit="", disable=disable)
    for size, same_size in itertools.groupby(items, key=lambda item: item["size"]):
        waiting, per_rank = list(same_size), at_once or max(1, tokens // size)
        while waiting:
            turn = waiting[:per_rank * ranks.WORLD_SIZE]  # what all ranks measure now
            # With at_once each rank takes that many neighbours, and some may have none at the end.
            # Otherwise the last turn is shared evenly.
            n = per_rank if at_once else math.ceil(len(turn) / ranks.WORLD_SIZE)
            mine = turn[ranks.RANK * n:(ranks.RANK + 1) * n]
            try:
                numbers = ranks.attempt(lambda items: measure(items) if items else [], mine)
            except torch.OutOfMemoryError:
                n = min(n, len(turn))  # the most that a rank had
                if n == 1:
                    raise torch.OutOfMemoryError(f"with {size} tokens") from None
                per_rank = math.ceil(n / 2)
                continue
            new = [item | record for item, record in zip(mine, numbers, strict=True)]
            yield [record for of_rank in ranks.all_gather(new) for record in of_rank]
            waiting = waiting[len(turn):]
            bar.update(len(turn))
    bar.close()
