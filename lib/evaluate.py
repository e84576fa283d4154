"""
Shared by the evaluations: their settings, the result file of a checkpoint, which is continued after
a kill, and the division of the work among ranks.

An evaluation is a program that calls `evaluate` with a function that returns the Work on a
checkpoint. Every number of its records is a measure: lib/results.py averages it for each size, and
subtracts that of (a) in the same jobs; the tables and plot.py show both.

A result file is a .jsonl. Its first line is the header (`make_header`), which says what was
measured. Each other line is the record of one job: a piece of text of eval_posloss.py or a prompt
of eval_niah.py. A file with fewer records than its header announces is not finished.
"""
import dataclasses
import itertools
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple

import torch
from tqdm import tqdm

from lib import checkpoint, ranks, runtime, storage, tables
from lib.checkpoint import LoadConfig
from lib.config import non_defaults
from lib.errors import MALFORMED, UserError, check_types, explain
from lib.measures import Job
from lib.ranks import print0
from lib.results import result_name


@dataclass(frozen=True)
class EvalConfig(LoadConfig):
    """Settings of every evaluation."""
    # data
    data_dir: str = "data/slimpajama"  # a corpus made by prepare.py
    split: str = "test"  # split of that corpus
    # evaluation
    seed: int = 1337  # seed of the random choices, which are the same for every checkpoint
    tag: str = ""  # added to the names of the result files and to their labels in figures
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


# keys of a result's first line that are checked, with the types of their values
HEADER = {"variant": str, "tag": str, "settings": dict, "model_config": dict, "code": str,
          "records": int}

# Settings that a result does not depend on, or that its header holds in another form
NOT_OF_THE_RESULT = {"files", "data_dir", "tag", "out", "overwrite", "device", "micro_batch_size",
                     "loss_chunk"}


class Work(NamedTuple):
    """What an evaluation has to do on one checkpoint."""
    cfg: EvalConfig  # the settings, completed for this checkpoint
    data: dict  # {digest, source} of the text
    jobs: list  # of Job
    measure_jobs: Callable  # see `run_jobs`; a result is a record, with the fields of its Job
    more: dict = {}  # what the header of the result file has besides


def evaluate(cfg, file_type, work_of):
    """
    Measure all checkpoints that cfg names, and print the tables of their results.

    file_type: first part of the name of the result files. work_of(cfg, path, model, state) returns
    the Work on one checkpoint. model and state: see checkpoint.load_model.
    """
    device = runtime.setup(cfg.device)
    settings = [f"{key}={value}" for key, value in non_defaults(cfg).items() if key != "files"]
    print0("settings that differ from the defaults:", *settings)
    files = result_files(cfg, file_type)
    for path, out in files.items():
        model, state = checkpoint.load_model(path, cfg, device)
        with torch.no_grad():
            work = work_of(cfg, path, model, state)
            header = make_header(work, path, file_type, model, state)
            measure(work, out, header, device)
    if ranks.RANK == 0:
        tables.print_tables(files.values())


def check_length(path, model, length):
    """Raise a UserError if p_n (Eq. 3) is learned for fewer positions than `length`."""
    if length > model.max_len:
        raise UserError(f"{path}: p_n is learned for {model.max_len} positions, and {length} are "
                        "needed: choose a shorter context, or another checkpoint")


# -----------------------------------------------------------------------------
# result files


def result_files(cfg, file_type):
    """
    Return {checkpoint: file for its result}.

    The file is FILE_TYPE[-tag].jsonl beside the checkpoint. With --out=FOLDER it is
    FOLDER/RUN/FILE_TYPE[-tag].jsonl, where RUN is the name of the checkpoint's own folder.
    UserError if a checkpoint is missing, or if two results would be one file.
    """
    files = {}
    for path in cfg.files:
        checkpoint.must_exist(path)
        folder = checkpoint.find(path).parent
        if cfg.out:
            folder = Path(cfg.out) / Path(os.path.abspath(folder)).name  # "." has no name
        out = folder / result_name(file_type, cfg.tag)
        if out in files.values():
            raise UserError(f"two results would both be written to {out}; evaluate one checkpoint "
                            "at a time, each with another --out")
        files[path] = out
    return files


def print_checkpoint(cfg, path, model, state, data):
    """Print what is measured: the checkpoint, what was changed in it, and a warning if the model
    was trained on this text."""
    variant, trained = checkpoint.variant_of(state, model), state["model_config"]
    parts = [f"{variant} [{cfg.tag}]" if cfg.tag else variant]
    for key, value in vars(model.config).items():
        if value != trained[key]:
            parts.append(f"{key} {trained[key] or 'none'} -> {value}")
    done, total = state["iter"], state["config"].get("max_iters")  # an imported model has no total
    if total and done < total:
        parts.append(f"update {done:,} of {total:,}")
    print0(f"{path}: {', '.join(parts)}")
    texts = [state["data"], *(run.get("data", {}) for run in checkpoint.earlier_runs(state))]
    if data["digest"] in [text.get("digest") for text in texts]:
        print0("*** this is the text that the model was trained on ***")


def make_header(work, path, file_type, model, state):
    """Print what is measured, and return the header of its result file."""
    cfg = work.cfg
    print_checkpoint(cfg, path, model, state, work.data)
    settings = {k: v for k, v in dataclasses.asdict(cfg).items() if k not in NOT_OF_THE_RESULT}
    # "auto" and the paths of checkpoint and corpus mean something else on another machine
    settings["dtype"] = runtime.dtype_name(model.wte.weight.device, cfg.dtype)
    settings["data"] = work.data
    settings["checkpoint"] = state["fingerprint"]
    return {
        "file_type": file_type, "variant": checkpoint.variant_of(state, model), "tag": cfg.tag,
        "settings": json.loads(json.dumps(settings)),  # tuples become lists, as in the file
        "model_config": dataclasses.asdict(model.config), "config": state["config"],
        "base": state["base"], "train_data": state["data"], "iter": state["iter"],
        "max_iters": state["config"].get("max_iters"),
        "code": runtime.code_version(), "torch": torch.__version__, "records": len(work.jobs),
        **work.more,
    }


def measure(work, out, header, device):
    """
    Measure the jobs that have no record in the result file `out` yet.

    Records are appended as they are measured, so that a kill costs little. UserError if the file is
    of other settings.
    """
    storage.lock(out)
    header, records = continue_result(work.cfg, out, header) if out.exists() else (header, {})
    left = [job for job in work.jobs if job not in records]
    ranks.must_agree(records=len(records))  # with another disk a rank would wait for the others
    if left:
        # written again, because a kill may have left half a line at the end of the file
        if ranks.RANK == 0:
            storage.write_lines(out, [header, *records.values()])
            file = open(out, "a", encoding="utf-8")
        name = out.parent.name  # in the progress bar
        for new in run_jobs(device, name, left, work.measure_jobs, work.cfg.micro_batch_size):
            if ranks.RANK == 0:
                storage.append_lines(file, new)


def continue_result(cfg, out, header):
    """
    Return the header and {job: record} of an existing result `out`, or (header, {}) to begin again.

        --overwrite: begin again, but continue an unfinished result of the same settings and code,
            which is probably an interrupted --overwrite
        other settings: UserError, because the result may have taken days
        same settings, finished: keep it
        same settings, unfinished: continue it, and add the name of the code if that is another

    UserError if the file is not a result.
    """
    with explain(f"{out} is not a result of this program; move it away", MALFORMED):
        before, *lines = storage.read_lines(out)
        check_types(before, HEADER)
        # a setting that is off may be missing in a result of an earlier version
        differ = [name for name, value in header["settings"].items()
                  if (before["settings"].get(name) or None) != (value or None)]
        # a dict: on a disk without locks two processes may have written a record twice
        records = {Job(*map(record.get, Job._fields)): record for record in lines}
        finished = len(records) >= before["records"]
        same_code = header["code"] in before["code"].split(", ")
    if cfg.overwrite and (finished or differ or not same_code):
        return header, {}
    if differ:
        raise UserError(f"{out} is a result of other settings ({', '.join(differ)}); choose "
                        "another --tag or --out, or replace it with --overwrite")
    if finished:
        print0(f"{out} is not measured again, see --overwrite")
    elif not same_code:
        before["code"] += f", {header['code']}"
        print0(f"{out} is continued with other code, see --overwrite: {before['code']}")
    return before, records


# -----------------------------------------------------------------------------
# the jobs of all ranks


def run_jobs(device, name, jobs, measure_jobs, micro_batch_size=0):
    """
    Measure all jobs, on all ranks, and yield lists of their results, as they come.

    measure_jobs: gets some of this rank's Jobs, all of one size, and returns a list with a result
    for each. The lists are joined rank by rank, so the results are not in the order of the jobs.

    If memory runs out on any rank, all ranks go on with half as many jobs at once.
    """
    def measure_mine(mine):  # with more ranks than jobs, a rank may have none
        return measure_jobs(mine) if mine else []

    tokens = 2**17 if device.type == "cuda" else 2**13  # at once on a rank
    disable = None if ranks.RANK == 0 else True  # None: show the bar on a terminal only
    with tqdm(total=len(jobs), desc=name, unit="", disable=disable) as bar:
        for length, group in itertools.groupby(jobs, key=lambda job: job.size):
            left = list(group)
            while left:
                n = max(1, micro_batch_size or tokens // length)  # jobs for each rank
                turn = left[:n * ranks.WORLD_SIZE]
                mine = turn[ranks.RANK::ranks.WORLD_SIZE]
                try:
                    results = ranks.attempt(measure_mine, mine)
                except torch.OutOfMemoryError:
                    jobs_of_rank = math.ceil(len(turn) / ranks.WORLD_SIZE)  # alike on all ranks
                    if jobs_of_rank == 1:
                        raise torch.OutOfMemoryError(f"with {length} tokens") from None
                    half = math.ceil(jobs_of_rank / 2)
                    tokens = half * length
                    if micro_batch_size:  # it takes precedence over `tokens`
                        micro_batch_size = min(micro_batch_size, half)
                    continue
                yield sum(ranks.all_gather(results), [])
                left = left[len(turn):]
                bar.update(len(turn))
