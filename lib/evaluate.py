"""
What the evaluations share: settings, the facts that a result file records about itself, finding the
work that is left, and sharing it among ranks.
"""
import ast
import dataclasses
import datetime
import json
import math
import os
import symtable
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from lib import checkpoint, runtime
from lib.checkpoint import LoadConfig
from lib.runtime import MALFORMED, UserError, explain, print0


@dataclass(frozen=True)
class EvalConfig(LoadConfig):
    """Settings of every evaluation."""
    # data
    data_dir: str = "data/slimpajama"  # a corpus made by prepare.py
    split: str = "test"  # split of that corpus
    # evaluation
    seed: int = 1337  # seed of the random choices, which are the same for every checkpoint
    tag: str = ""  # added to the names of the result files and to their labels in figures
    out: str = ""  # folder (or .json file) for the results; empty: beside each checkpoint
    overwrite: bool = False  # measure again and replace the results
    # machine
    micro_batch_size: int = 0  # windows or prompts computed at once; 0: chosen for the device

    def __post_init__(self):
        super().__post_init__()
        if {"/", "\\"} & set(self.tag):
            raise ValueError(f"tag={self.tag} would be part of a file name: write it without a "
                             "slash")
        if not self.files:
            raise ValueError("name one or more checkpoints; see --help")


def progress(done, total):
    """
    Return "update 102 of 600" for a run that is not finished, or else "". An imported model has no
    total (None).
    """
    return f"update {done:,} of {total:,}" if total and done < total else ""


# Settings that a result does not depend on, or records in another way
NOT_OF_THE_RESULT = {
    "files", "data_dir", "tag", "out", "overwrite", "device", "micro_batch_size", "loss_chunk",
    "dump"}


def open_for_context(cfg, path, device, length):
    """
    Return (model, checkpoint) with the overrides of `cfg`, for contexts of up to `length` tokens.
    UserError if p_n is not learned for so many.
    """
    model, state = checkpoint.open_checkpoint(cfg, path, device)
    block = model.config.block_size
    if length > model.max_len:
        raise UserError(f"{path}: p_n is learned for {block} positions, and the evaluation needs "
                        f"{length}: choose at most {block} tokens, or another checkpoint")
    if length > 20 * block:  # allowed: where a model breaks is a result too
        print0(f"note: {length:,} tokens are {length / block:.0f} times the training length; the "
               "paper goes to 20 times")
    return model, state


def statements(module, types):
    """
    Return the top-level statements of a module as syntax trees. Left out are comments, docstrings,
    the block under `if __name__ == "__main__"`, and the entries of ATTENTION that are not in
    `types`.
    """
    tree = ast.parse(Path(module.__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):  # the body of a lambda is not a list
            body = [part for part in node.body if not (
                isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
            node.body = body or [ast.Pass()]  # a class may have nothing but a docstring
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and defined(statement) == {"ATTENTION"}:
            table = statement.value
            entries = list(zip(table.keys, table.values, strict=True))
            table.keys = [key for key, _ in entries if key.value in types]
            table.values = [value for key, value in entries if key.value in types]
    return [part for part in tree.body
            if not ast.unparse(part).startswith("if __name__ == '__main__'")]


def defined(statement):
    """
    Return the set of names that a top-level statement defines. It is empty for an assignment to a
    tuple or with an annotation, so `source_of` takes these in any case.
    """
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    targets = getattr(statement, "targets", [])
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names | ({statement.name} if hasattr(statement, "name") else set())


def used(table):
    """Return the module's names that a piece of code, given as a symtable, refers to."""
    at_top = table.get_type() == "module"
    names = {symbol.get_name() for symbol in table.get_symbols()
             if symbol.is_referenced() and (at_top or symbol.is_global())}  # no local names
    return names.union(*map(used, table.get_children()))


def source_of(model, types, functions=()):
    """
    Return, as one text, the code that `model` runs with the attention types `types`, and the code
    of `functions`. A result records a hash of this text, which changes when code that makes the
    numbers changes.

    The search begins with the model's classes and the functions and follows the names in them, also
    into model.py and lib/ if they are imported from there. Unused entries of ATTENTION and their
    functions are not in it, so that adding a variant does not change the hash of the others. Names
    that are used as an attribute of a module (runtime.attempt) are not followed.
    """
    classes = {cls for part in model.modules() for cls in type(part).__mro__}
    names = {part.__name__ for part in (*classes, *functions)}
    modules = sorted({cls.__module__ for cls in classes if is_ours(cls.__module__)})
    modules += [function.__module__ for function in functions]
    loaded = set()  # modules whose statements were added to `unreached`
    unreached = []  # statements that define no name which is used so far
    source = ""  # text of the statements that were reached
    # Each pass adds the statements that define a name which the passes before have used. The next
    # pass also looks into the modules that these statements import from.
    while True:
        for module in modules:
            if module not in loaded:
                unreached += statements(sys.modules[module], types)
                loaded.add(module)
        # A statement that defines no name, such as a call, runs in any case.
        reached = [part for part in unreached if not defined(part) or defined(part) & names]
        if not reached:  # the last pass used no new name
            return source
        unreached = [part for part in unreached if part not in reached]
        for text in map(ast.unparse, reached):
            source += text + "\n"
            names |= used(symtable.symtable(text, "", "exec"))
        imports = [part for part in reached if isinstance(part, ast.ImportFrom)]
        modules = [part.module for part in imports if is_ours(part.module)]


def is_ours(module):
    """Return whether a module of this name is model.py or in lib/."""
    return module == "model" or module.startswith("lib.")


def result_file(cfg, path, name):
    """
    Return the file for the result of the checkpoint at `path`. UserError for an unusable --out.

    name: the plain name, such as posloss.json; with --tag=e the file is posloss-e.json. Without
    --out the file is in the folder of the checkpoint. With --out=FOLDER it is in a subfolder that
    is named like the checkpoint's own folder: FOLDER/a_softmax/posloss.json.
    --out=FOLDER/posloss-mine.json names the file itself.
    """
    name = Path(name)
    if cfg.out.endswith((".json", ".jsonl")):
        file = Path(cfg.out).with_suffix(name.suffix)  # records get .jsonl, a summary .json
        if not file.name.startswith(name.stem):
            raise UserError(f"--out={cfg.out}: plot.py finds results by the names of their files; "
                            f"call this one {name.stem}.json or {name.stem}-something.json")
        return file
    folder = Path(path).parent if Path(path).is_file() else Path(path)
    if cfg.out:
        folder = Path(cfg.out) / Path(os.path.abspath(folder)).name  # abspath: "." has no name
    return folder / (f"{name.stem}-{cfg.tag}{name.suffix}" if cfg.tag else name)


def check_result_files(cfg, name):
    """
    Raise a UserError if a checkpoint is missing, or if the results of two would be written to one
    file.
    """
    checkpoints = {}  # {result file: its checkpoint}
    for path in cfg.files:
        checkpoint.must_exist(path)
        file = os.path.abspath(result_file(cfg, path, name))
        if file in checkpoints:
            raise UserError(f"the results of {checkpoints[file]} and {path} would both be written "
                            f"to {file}; evaluate one at a time, each with another --out")
        checkpoints[file] = path


def begin(cfg, path, model, state, data, name, functions, n_records=0):
    """
    Return (the result file, the records in it) before an evaluation begins or continues.

    The first record is always there and says which evaluation the others belong to. A finished file
    has `n_records` more. data: digest and source of the text. name: see `result_file`. functions:
    those that measure, see `source_of`. UserError if the file is of other settings, or if it was
    begun with other code and is not finished.
    """
    check_result_files(cfg, name)  # of all checkpoints, before hours go into the first one
    about = describe(cfg, path, model, state, data, functions)
    out = result_file(cfg, path, name)
    with runtime.writing(out):  # fails now, and not after hours, if the folder cannot be made
        out.parent.mkdir(parents=True, exist_ok=True)
    records = []
    if out.exists():
        try:
            records = runtime.read_lines(out)
            if records and not continues(cfg, out, records, about, n_records):
                records = []
        except UserError:
            if not cfg.overwrite:  # which replaces a damaged file, too
                raise
            records = []
    # no records: the file is new, or a run was killed before it wrote the first one
    return out, records or [about]


def describe(cfg, path, model, state, data, functions):
    """
    Return the first record of a result, which says what is measured; arguments as in `begin`. Also
    print the checkpoint with the settings that differ from those it was trained with.
    """
    settings = {k: v for k, v in dataclasses.asdict(cfg).items() if k not in NOT_OF_THE_RESULT}
    # "auto" and the paths of checkpoint and corpus differ between machines, so we record what they
    # stand for
    settings["dtype"] = str(runtime.get_dtype(model.wte.weight.device, cfg.dtype))
    settings["data"], settings["checkpoint"] = data, checkpoint.fingerprint(path)
    variant, trained = checkpoint.variant_of(state, model), state["model_config"]
    changes = [f"{k} {trained[k] or 'none'} -> {v}" for k, v in vars(model.config).items()
               if trained[k] != v]
    tag = f" [{cfg.tag}]" if cfg.tag else ""
    done, total = state["iter"], state["config"].get("max_iters")  # an imported model has no total
    # the changes are printed because RoPE is stretched by default
    parts = [f"{variant}{tag}", *(changes or ["as trained"]), progress(done, total)]
    print0(f"{path}: {', '.join(filter(None, parts))}")
    trained_on = [state["data"], *(run.get("data", {}) for run in checkpoint.bases(state))]
    if data["digest"] in (text.get("digest") for text in trained_on):
        print0("*** this is the text that the model was trained on ***")
    source = source_of(model, {trained["attention_type"], model.config.attention_type}, functions)
    return {
        "settings": json.loads(json.dumps(settings)),  # tuples become lists, as in a file
        "tag": cfg.tag, "variant": variant, "model_config": dataclasses.asdict(model.config),
        "config": state["config"], "base": state["base"], "train_data": state["data"],
        "iter": done, "max_iters": total,
        "code_hash": f"{zlib.crc32(source.encode()):08x}",
    }


def continues(cfg, out, records, about, n_records):
    """
    Return whether the `records` of the result file `out` are kept (True) or replaced (False). If
    they are finished, say so. With --overwrite only an unfinished result of the same settings and
    code is kept. UserError if the records are of other settings than `about`, or if they are not
    finished and the code has changed since.
    """
    # a setting that is newer than the file had its default when the file was written
    defaults = json.loads(json.dumps({f.name: f.default for f in dataclasses.fields(cfg)}))
    with explain(f"{out} is not a result of this program; move it away", MALFORMED):
        before = defaults | records[0]["settings"]
        differs = [k for k, v in about["settings"].items() if before.get(k) != v]
        stale = records[0].get("code_hash") != about["code_hash"]
        # The first record says what is measured. The others are samples in eval_niah.py; two
        # processes that measured at the same time may have written one of them twice.
        others = records[1:]
        if others and "i" in others[0]:
            others = {(r["size"], r["cell"], r["i"]) for r in others}
        # eval_posloss.py writes "done", the number of windows so far, until it is finished
        finished = len(others) >= n_records and "done" not in records[0]
    if cfg.overwrite and (finished or differs or stale):
        return False
    # Existing results are never replaced without --overwrite: they may have taken days.
    if differs:
        raise UserError(f"{out} is a result of other settings ({', '.join(differs)}); choose "
                        "another --tag or --out, or replace it with --overwrite")
    if stale and not finished:  # a result would be half of the old code and half of the new
        raise UserError(f"{out} was begun with other code; start it again with --overwrite")
    if finished:
        when = datetime.datetime.fromtimestamp(out.stat().st_mtime)
        print0(f"not measured again, but read from {out} of {when:%Y-%m-%d %H:%M}; --overwrite "
               "measures again")
    if stale:
        print0("*** the code that measures has changed since: these numbers are of the old code "
               "***")
    return True


def work(device, name, jobs, measure, micro_batch_size=0):
    """
    Measure all jobs, on all ranks, and yield (some of the jobs, the list of what `measure` returned
    for them on all ranks).

    jobs: tuples that begin with their length in tokens; jobs of equal length must be next to each
    other. measure: gets some of this rank's jobs, all of one length. It returns a list, with one
    result for each job or one for all of them. The lists are joined rank by rank, so the results
    need not have the order of the jobs.

    If memory runs out on any rank, all ranks go on with half as many jobs at once.
    """
    def measure_mine(mine):  # with more ranks than jobs, a rank may have none
        return measure(mine) if mine else []

    tokens = 2**17 if device.type == "cuda" else 2**13  # at once on a rank
    disable = None if runtime.RANK == 0 else True  # None: show the bar on a terminal only
    with tqdm(total=len(jobs), desc=name, unit="", disable=disable) as bar:
        while jobs:
            length = jobs[0][0]
            n = max(1, micro_batch_size or tokens // length)  # jobs for each rank
            turn = [job for job in jobs[:n * runtime.WORLD_SIZE] if job[0] == length]
            mine = turn[runtime.RANK::runtime.WORLD_SIZE]
            try:
                results = runtime.attempt(measure_mine, mine)
            except torch.OutOfMemoryError:
                ran = math.ceil(len(turn) / runtime.WORLD_SIZE)  # the same number on all ranks
                if ran == 1:
                    raise torch.OutOfMemoryError(f"with {length} tokens") from None
                half = math.ceil(ran / 2)
                tokens = half * length
                if micro_batch_size:  # it takes precedence over `tokens`
                    micro_batch_size = min(micro_batch_size, half)
                continue
            yield turn, sum(runtime.all_gather(results), [])
            jobs = jobs[len(turn):]
            bar.update(len(turn))


# -----------------------------------------------------------------------------
# statistics of results


def wilson(hits, n, z=1.96):
    """Return the 95 % interval of the share hits / n, after Wilson."""
    # The usual interval, hits / n +- z * stderr, has no width if all or none are hits.
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


MULTIPLES = (0.5, 1, 2, 4, 8, 10, 16, 20, 64)  # of the training length; the paper ends at 20


def measured_ends(length, block_size):
    """
    Return positions n, in rising order and at most `length`. A figure shows for each of them the
    mean loss over the last n/10 positions up to n, and a table shows it for the MULTIPLES.
    """
    multiples = [round(m * block_size) for m in MULTIPLES]
    # The first positions are left out: their loss falls so far that the rest would look flat.
    between = np.geomspace(max(1, length // 256), length, 90).astype(int).tolist()
    return sorted({end for end in multiples + between if 0 < end <= length})


def tenth_before(end):
    """Return the slice of the last tenth of the positions before `end`."""
    return slice(end - max(1, end // 10), end)


def loss_before(n, result):
    """
    Return (mean loss in the last tenth of the positions before n, its standard error over the
    windows). The error is None for a single window and in old results, which do not have it.
    """
    return np.mean(result["mean"][tenth_before(n)]), result.get("stderr_before", {}).get(str(n))
