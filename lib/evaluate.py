"""What evaluations share: settings, what a result says of itself, and the work that is left."""
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
    # data
    data_dir: str = "data/slimpajama"  # a corpus made by prepare.py
    split: str = "test"  # its split
    # evaluation
    seed: int = 1337  # of what is drawn: the same for every checkpoint
    tag: str = ""  # part of the names of the results, and of their label in figures
    out: str = ""  # folder (or .json file) for the results; empty: beside each checkpoint
    overwrite: bool = False  # measure anew what is measured already
    # machine
    micro_batch_size: int = 0  # windows or prompts at once; 0: as many as fit

    def __post_init__(self):
        super().__post_init__()
        if {"/", "\\"} & set(self.tag):
            raise ValueError("tag is a part of files' names and must have no slashes")
        if not self.files:
            raise ValueError("name one or more checkpoints; see --help")


def progress(done, total):
    """ "update 102 of 600" for a run that is not finished, or else ""; total None: imported."""
    return f"update {done:,} of {total:,}" if total and done < total else ""


# What a result does not depend on, or states in another way
NOT_OF_THE_RESULT = {
    "files", "data_dir", "tag", "out", "overwrite", "device", "micro_batch_size", "dump"}


def open_model(cfg, path, device, length):
    """(model, checkpoint) with the overrides of `cfg`, for contexts of up to `length` tokens."""
    model, state = checkpoint.open_model(cfg, path, device)
    block = model.config.block_size
    if length > model.max_len:
        raise UserError(f"{path}: p_n is learned for {block} positions, not {length}")
    if length > 20 * block:  # not refused: where it breaks is a result too
        print0(f"{length:,} tokens are {length / block:.0f} x those of training, in the paper 20 x")
    return model, state


def statements(module, types):
    """The top-level statements of a module as syntax trees, without comments, docstrings and what
    only the program that is started runs; of ATTENTION the entries `types`."""
    tree = ast.parse(Path(module.__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):  # that of a lambda is no list
            node.body = [part for part in node.body if not (
                isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and defined(statement) == {"ATTENTION"}:
            table = statement.value
            entries = list(zip(table.keys, table.values, strict=True))
            table.keys = [key for key, _ in entries if key.value in types]
            table.values = [value for key, value in entries if key.value in types]
    return [part for part in tree.body
            if not ast.unparse(part).startswith("if __name__ == '__main__'")]


def defined(statement):
    """The names that a top-level statement defines."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    targets = getattr(statement, "targets", [])
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names | ({statement.name} if hasattr(statement, "name") else set())


def used(table):
    """The names of a module that a piece of code, given as a symtable, refers to."""
    at_top = table.get_type() == "module"
    names = {symbol.get_name() for symbol in table.get_symbols()
             if symbol.is_referenced() and (at_top or symbol.is_global())}  # else it is local
    return names.union(*map(used, table.get_children()))


def source_of(model, types, functions=()):
    """
    The code that `model` runs with the attention types `types`, and that of `functions`, as text.

    It begins with the model's classes and the functions, and follows the names in them, into files
    of ours where they are imported from there. So it has neither the other entries of ATTENTION nor
    their functions: a new variant does not change old ones' numbers. What is reached as an
    attribute of a module is not followed.
    """
    classes = {cls for part in model.modules() for cls in type(part).__mro__}
    names = {part.__name__ for part in (*classes, *functions)}
    modules = sorted({cls.__module__ for cls in classes if is_ours(cls.__module__)})
    modules += [function.__module__ for function in functions]
    read, left, found, source = set(), [], True, ""
    while found or modules:
        for module in modules:
            if module not in read:
                left += statements(sys.modules[module], types)
                read.add(module)
        found = [part for part in left if not defined(part) or defined(part) & names]
        left = [part for part in left if part not in found]
        for text in map(ast.unparse, found):
            source += text + "\n"
            names |= used(symtable.symtable(text, "", "exec"))
        imports = [part for part in found if isinstance(part, ast.ImportFrom)]
        modules = [part.module for part in imports if is_ours(part.module)]
    return source


def is_ours(module):
    """Whether a module of this name is model.py or in lib/."""
    return module == "model" or module.startswith("lib.")


def result_file(cfg, path, name):
    """
    Return the file for the result of the checkpoint at `path`; UserError for an unusable --out.

    name: the result's plain name, as in posloss.json; a tag is put into it: posloss-e.json. Without
    --out the file lies beside the checkpoint. With --out=FOLDER it lies in a subfolder named after
    the checkpoint's own folder: FOLDER/a_softmax/posloss.json. --out=FOLDER/posloss-mine.json
    names the file itself.
    """
    name = Path(name)
    if cfg.out.endswith((".json", ".jsonl")):
        file = Path(cfg.out).with_suffix(name.suffix)  # records are .jsonl, also beside a .json
        if not file.name.startswith(name.stem):
            raise UserError(f"--out={cfg.out}: plot.py finds results by the names of their files; "
                            f"call this one {name.stem}.json or {name.stem}-something.json")
        return file
    folder = Path(path).parent if Path(path).is_file() else Path(path)
    if cfg.out:
        folder = Path(cfg.out) / Path(os.path.abspath(folder)).name  # abspath: "." has no name
    return folder / (f"{name.stem}-{cfg.tag}{name.suffix}" if cfg.tag else name)


def check_result_files(cfg, name):
    """Raise a UserError where the results of two checkpoints would be one file."""
    checkpoints = {}  # {result file: its checkpoint}
    for path in cfg.files:
        file = os.path.abspath(result_file(cfg, path, name))
        if file in checkpoints:
            raise UserError(f"the results of {checkpoints[file]} and {path} would both be {file}; "
                            "evaluate one at a time, each with another --out")
        checkpoints[file] = path


def begin(cfg, path, model, state, data, name, functions, n_records=0):
    """
    Look up what is measured already -> (file of the result, its records).

    The first record says what the result belongs to, and is there in any case; a finished one has
    `n_records` behind it. UserError for a file of another evaluation or of other code.
    data: digest and source of the text; name: of the result, as in `result_file`; functions: that
    measure it, see `source_of`.
    """
    check_result_files(cfg, name)  # of all checkpoints, before the first one takes hours
    settings = {k: v for k, v in dataclasses.asdict(cfg).items() if k not in NOT_OF_THE_RESULT}
    # auto is not the same everywhere, nor is a path: what they stand for is
    settings["dtype"] = str(runtime.get_dtype(model.wte.weight.device, cfg.dtype))
    settings["data"], settings["checkpoint"] = data, checkpoint.fingerprint(path)
    variant, theirs = state["variant"], state["model_config"]
    if model.config.attention_type != theirs["attention_type"]:
        variant += f">{model.config.attention_type}"
    changes = [f"{k} {theirs[k]} -> {v}" for k, v in vars(model.config).items() if theirs[k] != v]
    tag = f" [{cfg.tag}]" if cfg.tag else ""
    done, total = state["iter"], state["config"].get("max_iters")  # an imported model has no total
    # RoPE is stretched by default, which must not stay unseen
    said = [f"{variant}{tag}", *(changes or ["as trained"]), progress(done, total)]
    print0(f"{path}: {', '.join(filter(None, said))}")
    trained_on = [state["data"], *(run.get("data", {}) for run in checkpoint.bases(state))]
    if data["digest"] in (seen.get("digest") for seen in trained_on):
        print0("*** this is the text that the model was trained on ***")
    source = source_of(model, {theirs["attention_type"], model.config.attention_type}, functions)
    about = {
        "settings": json.loads(json.dumps(settings)),  # tuples become lists, as in a file
        "tag": cfg.tag, "variant": variant, "model_config": dataclasses.asdict(model.config),
        "config": state["config"], "base": state["base"], "train_data": state["data"],
        "iter": done, "max_iters": total,
        # other code measures another thing; older files have that of model.py and tasks alone
        "model_py": f"{zlib.crc32(source.encode()):08x}",
    }

    out = result_file(cfg, path, name)
    with runtime.writing(out):  # a folder that cannot be made must not be found out at the end
        out.parent.mkdir(parents=True, exist_ok=True)
    records = runtime.read_lines(out) if out.exists() and not cfg.overwrite else []
    if not records:  # or killed before the first
        return out, [about]
    # a setting younger than the file had its default then
    defaults = json.loads(json.dumps({f.name: f.default for f in dataclasses.fields(cfg)}))
    with explain(f"{out} is not a result of this program; move it away", MALFORMED):
        before = defaults | records[0]["settings"]
        differs = [k for k, v in about["settings"].items() if before.get(k) != v]
        stale = records[0]["model_py"] != about["model_py"]
        finished = len(records) > n_records and "done" not in records[0]
    if differs:  # never replaced unasked: it may have taken days
        raise UserError(f"{out} is another evaluation (its {', '.join(differs)} differ); choose "
                        "another --tag or --out, or --overwrite it")
    if stale and not finished:  # half of each would be a result of neither
        raise UserError(f"{out} was begun with other code; --overwrite it")
    if finished:
        when = datetime.datetime.fromtimestamp(out.stat().st_mtime)
        print0(f"repeated, not measured: {out} of {when:%Y-%m-%d %H:%M}; --overwrite measures it")
    if stale:
        print0("*** the code that measures has changed since: these are numbers of the old one ***")
    return out, records


def work(device, name, jobs, measure, micro_batch_size=0):
    """
    Measure `jobs`: tuples that begin with their length in tokens, equal lengths side by side.

    measure(jobs of one length) -> list of results, on this rank. Yields (jobs, results), those of
    all ranks, one rank after the other. Where memory runs out, on any, all take half as many.
    """
    tokens, halved = 2**17 if device.type == "cuda" else 2**13, 0
    quiet = None if runtime.RANK == 0 else True  # None: a bar on a terminal only
    with tqdm(total=len(jobs), desc=name, unit="", disable=quiet) as bar:
        while jobs:
            length = jobs[0][0]
            n = max(1, (micro_batch_size or tokens // length) >> halved)
            turn = [job for job in jobs[:n * runtime.WORLD_SIZE] if job[0] == length]
            mine = turn[runtime.RANK::runtime.WORLD_SIZE]
            try:
                results = runtime.attempt(lambda mine: measure(mine) if mine else [], mine)
            except torch.OutOfMemoryError:
                if n == 1:
                    raise torch.OutOfMemoryError(f"with one prompt of {length} tokens") from None
                halved += 1
                continue
            yield turn, sum(runtime.all_gather(results), [])
            jobs = jobs[len(turn):]
            bar.update(len(turn))


# -----------------------------------------------------------------------------
# what results are summed up by


def wilson(hits, n, z=1.96):
    """95 % interval of a share."""
    # not hits / n +- z * stderr, which has no width where all or none are hit
    centre, half = (hits + z * z / 2) / (n + z * z), z / (n + z * z)
    half *= math.sqrt(hits * (n - hits) / n + z * z / 4)
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


MULTIPLES = (0.5, 1, 2, 4, 8, 10, 16, 20, 64)  # of the training length; the paper's end is 20


def measured_ends(length, block_size):
    """The positions before which table and figure show the loss: at most `length`, rising."""
    multiples = [round(m * block_size) for m in MULTIPLES]
    # not from 1: the fall over the first tokens would flatten the rest of a figure
    between = np.geomspace(max(1, length // 256), length, 90).astype(int).tolist()
    return sorted({end for end in multiples + between if 0 < end <= length})


def tenth_before(end):
    return slice(end - max(1, end // 10), end)


def loss_before(n, result):
    """Mean loss of the tenth of positions before n, and its standard error over the windows, or
    None: of one window, or in a result from before errors were taken over windows."""
    return np.mean(result["mean"][tenth_before(n)]), result.get("stderr_before", {}).get(str(n))
