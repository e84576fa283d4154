"""
Needle in a haystack (section 3.3, Fig. 6) and needle scores (section 3.4, Figs. 7 and 8).

    python eval_niah.py out/sft_b                          retrieval grid: depth x context size
    python eval_niah.py out/sft_b --trials=100             needle scores: the paper's and 100 random
    python eval_niah.py out/b_ssmax --prompt=completion    no fine-tuning needed
    python eval_niah.py out/b_ssmax --task=tracking        another task (lib/tasks.py)

With --trials it also measures why needles are missed (lib/readout.py). For this it asks as many
other prompts of the training length, on which it chooses the heads that retrieve.

Beside the checkpoint: niah[-tag].jsonl (needle[-tag].jsonl with --trials), a line a sample, and a
summary .json. With --out=FOLDER they are in FOLDER/NAME, where NAME is the checkpoint's folder. The
same command continues a killed run; `torchrun` shares the samples.
"""
import itertools
import json
import re
import statistics
from dataclasses import dataclass
from typing import Literal

import torch

from lib import evaluate, readout, runtime
from lib.almanac import CITIES
from lib.config import configure
from lib.evaluate import EvalConfig, wilson
from lib.runtime import UserError, print0
from lib.squad import QA_FORMAT
from lib.tasks import OF_NEEDLES, TASKS, WITH_DEPTH, make_sample, open_haystack
from lib.text import decode, end_of_text


@dataclass(frozen=True)
class NiahConfig(EvalConfig):
    # data
    haystack: str = ""  # text files (a glob) as hay instead of data_dir; noise: RULER's sentences
    # evaluation
    context_sizes: tuple = tuple(range(1000, 10001, 1000))  # tokens of the whole prompt
    depths: tuple = (10, 30, 50, 70, 90)  # where the needle is, in percent of the haystack
    n_samples: int = 1000  # samples a cell
    trials: int = 0  # measure needle scores instead, on so many random samples
    trial_size: int = 8000  # tokens of their prompts
    needle: str = "The special magic {city} number is: {number}."  # the sentence to find
    question: str = "What is the special magic {city} number?"  # what is asked, prompt=sft
    prompt: Literal["sft", "completion"] = "sft"  # as in sft.py; or the needle up to the number
    qa_format: str = QA_FORMAT  # of prompt=sft: that of sft.py
    number_format: tuple = (7,)  # digits a group; (2, 2, 2, 1) writes 81 06 42 2
    dump: str = ""  # also write prompts and answers to this .jsonl, for other harnesses
    task: Literal[tuple(TASKS)] = "needle"  # what is asked: lib/tasks.py
    n_needles: int = 0  # of task=multikey: needles of so many other cities as well; 0: three
    begin: bool = False  # begin the prompt with an end of text, as training documents do

    def __post_init__(self):
        super().__post_init__()
        for key, parts in {"needle": "{city} {number}", "question": "{city}",
                           "qa_format": "{context} {question} {answer}"}.items():
            if not all(part in getattr(self, key) for part in parts.split()):
                raise ValueError(f"{key} must contain {parts}")
            *before, last = parts.split()
            head = getattr(self, key).partition(last)[0]
            is_cut = key == "qa_format" or self.prompt == "completion"
            if is_cut and not all(part in head for part in before):
                raise ValueError(f"{key}: the prompt ends where {last} begins, so put "
                                 f"{' and '.join(before)} before it")
        for key in ("context_sizes", "number_format", "trial_size", "n_samples"):
            value = getattr(self, key)
            for number in value if type(value) is tuple else (value,):
                if type(number) is not int or number < 1:  # not isinstance: True is no size
                    raise ValueError(f"{key}: {number!r} is not a positive whole number; write it "
                                     "without point or exponent")
        for key in ("context_sizes", "depths"):
            values = getattr(self, key)
            if len(set(values)) < len(values):  # its prompts would count twice
                raise ValueError(f"{key} has a value twice: {values}")
        for depth in self.depths:
            if type(depth) not in (int, float) or not 0 <= depth <= 100:
                raise ValueError(f"depths are percentages, 0 to 100, not {depth!r}")
        for key in ("context_sizes", "depths", "number_format"):
            if not getattr(self, key):
                raise ValueError(f"{key} must hold at least one number")
        if self.n_needles and self.task != "multikey":
            raise ValueError("n_needles is of --task=multikey")
        if self.n_needles >= len(CITIES):
            raise ValueError(f"n_needles must be below {len(CITIES)}")

    @property
    def longest(self):
        return max(self.trial_size, *self.context_sizes)


def score(answers, text, groups):
    """
    What a generated text got right. Of one number: exact is all digits, and no other one behind
    them. Of several answers exact is all of them anywhere, as in RULER; substring is the share.
    """
    # only a number written in groups may have spaces inside
    grouped = len(groups) > 1 and answers[0].isdigit()
    text = re.sub(r"\s", "", text) if grouped else text.strip()
    share = sum(answer in text for answer in answers) / len(answers)
    no_more = r"(?!\d)" if answers[0].isdigit() else r"(?!\w)"
    exact = bool(re.match(answers[0] + no_more, text)) if len(answers) == 1 else share == 1
    return {"exact": exact, "first": text[:1] == answers[0][0], "substring": share}


def new_tokens(cfg, sample):
    """How many tokens the model may write as its answer."""
    groups = cfg.number_format
    # a token a group, or at worst one for the space and one a digit; one more shows whether the
    # number ends there
    return sample["new"] or 1 + (len(groups) if len(groups) > 1 else 1 + groups[0])


def check_room(cfg, path, model, sample):
    """UserError where p_n ends before the answer does."""
    needed = sample["size"] + new_tokens(cfg, sample) - 1  # the last token is not read again
    if needed > model.max_len:
        raise UserError(f"{path}: p_n is learned for {model.max_len} positions, and a prompt of "
                        f"{sample['size']} tokens needs {needed} with its answer; take at most "
                        f"{sample['size'] - needed + model.max_len} tokens")


@torch.no_grad()
def answer(cfg, model, vocab, batch, device):
    """Ask the model all samples of `batch`, of one size -> records for the result file."""
    idx = torch.tensor([sample["prompt"] for sample in batch], device=device)
    new = new_tokens(cfg, batch[0])
    with runtime.autocast(device, cfg.dtype):
        # end of text never comes, as in the paper
        rows = model.generate(idx, new, temperature=0, banned=(end_of_text(vocab),))
        in_heads = read_heads(model, idx, batch) if cfg.trials else []
    records = []
    for b, sample in enumerate(batch):
        text = decode(rows[b, idx.size(1):].tolist(), vocab)
        record = {k: sample[k] for k in ("size", "depth", "i", "answers", "cell")}
        record.update(text=text, **score(sample["answers"], text, cfg.number_format))
        if cfg.trials:
            record["chooses"] = sample["i"] >= cfg.trials  # retrieval heads; see choice_jobs
            record["needle_tokens"] = sum(end - start for start, end in sample["spans"])
            record |= in_heads[b]
            with runtime.autocast(device, cfg.dtype):
                record |= read_later_tokens(model, rows[b, idx.size(1):].tolist(), sample, record,
                                            device)
            # section 3.4: a head's attention on the number, summed over its tokens
            record["top"] = max(map(max, record["scores"]))
        records.append(record)
    return records


def read_heads(model, idx, batch):
    """What each head's last query does in the prompts idx (B, T) -> a record for each of them."""
    layers = []
    for z, v in model.last_query(idx):
        layers.append([readout.readout(z[b], v[b], sample["spans"], sample["others"])
                       for b, sample in enumerate(batch)])
    return [readout.record_of([layer[b] for layer in layers]) for b in range(len(batch))]


def read_later_tokens(model, written, sample, record, device):
    """
    What the heads do at later tokens of the answer: where a trial goes wrong, and, in prompts on
    which heads are chosen, at all of them. The right tokens before it follow the prompt.
    -> {"wrong_token": the number of right tokens `written` before the first wrong one, "later":
    {number of right tokens: record}}. Of several answers only the first token is looked at.
    """
    answer = []
    if len(sample["spans"]) == 1:
        (start, end), = sample["spans"]
        answer = sample["prompt"][start:end]
    right = 0
    while right < min(len(answer), len(written)) and written[right] == answer[right]:
        right += 1
    tokens = []
    if record["chooses"]:
        tokens = range(1, len(answer))
    elif not record["exact"] and 0 < right < len(answer):
        tokens = [right]
    later = {}
    for k in tokens:
        longer = torch.tensor([sample["prompt"] + answer[:k]], device=device)
        later[str(k)], = read_heads(model, longer, [sample])
    return {"wrong_token": right, "later": later}


def choice_jobs(cfg, model, vocab, hay):
    """
    The jobs on which retrieval heads are chosen: as many as the trials, in other prompts, of the
    training length. Where the question does not fit into it, that length is doubled until it does.
    """
    def jobs_of(size):
        return [(size, None, i) for i in range(cfg.trials, 2 * cfg.trials)]

    def fit(jobs):
        try:
            for job in jobs:
                make_sample(cfg, vocab, hay, *job)
        except UserError:
            return False
        return True

    size = model.config.block_size
    if size == model.max_len:  # p_n ends there, and the answer needs room after the prompt
        size = min(size, cfg.trial_size)
    while size < cfg.trial_size and not fit(jobs_of(size)):
        size *= 2
    return jobs_of(size)


def ask(cfg, path, what, jobs, device):
    """
    Ask a checkpoint what is left of `jobs`, (size, depth, i) each -> (<what>.jsonl, its first line,
    which says what the records belong to, the records of all jobs).
    """
    longest = max(size for size, _, _ in jobs)
    model, state = evaluate.open_model(cfg, path, device, longest)  # p_n may end before
    check_prompt(cfg, path, state)
    vocab = state["vocab"]
    hay, data = open_haystack(cfg, vocab)
    if cfg.trials:
        jobs = [*jobs, *choice_jobs(cfg, model, vocab, hay)]
    # before anything is written: does a prompt fit, is there enough hay?
    for job in {job[0]: job for job in jobs}.values():  # one of each size
        check_room(cfg, path, model, make_sample(cfg, vocab, hay, *job))
    if cfg.dump:
        samples = (make_sample(cfg, vocab, hay, *job) for job in jobs)
        runtime.write_lines(cfg.dump, (
            {"prompt": decode(sample["prompt"], vocab), "answers": sample["answers"],
             "size": sample["size"], "depth": sample["depth"]} for sample in samples))
    functions = [ask, readout.readout, readout.record_of] if cfg.trials else [ask]
    # a finished one is summed up again
    out, (about, *records) = evaluate.begin(
        cfg, path, model, state, data, f"{what}.jsonl", functions, len(jobs))
    with runtime.explain(f"{out} is not a result of this program; move it away", KeyError):
        # once each: two processes that measure the same would write each prompt twice
        records = list({(r["size"], r["cell"], r["i"]): r for r in records}.values())
        done = {(r["size"], r["cell"], r["i"]) for r in records}
    left = [job for job in jobs if job not in done]
    if left:  # whole lines only, to go on behind them
        runtime.write_lines(out, [about, *records])

    def answers(jobs):
        batch = [make_sample(cfg, vocab, hay, *job) for job in jobs]
        return answer(cfg, model, vocab, batch, device)

    for _, results in evaluate.work(device, str(path), left, answers, cfg.micro_batch_size):
        records += results
        if runtime.RANK == 0:  # appended: written whole each time, the file would cost n^2
            with runtime.writing(out), open(out, "a") as f:
                f.writelines(json.dumps(r) + "\n" for r in results)
    return out, about, records


def check_prompt(cfg, path, state):
    """Refuse to ask questions of a model that was never trained on any, unless that was typed."""
    asks = cfg.prompt == "sft" and cfg.task in ("needle", "multikey")
    fine_tuned = "squad" in state["data"]["source"]
    if asks and not fine_tuned and "prompt" not in cfg.given:  # it would measure zeros for hours
        raise UserError(f"{path} was not fine-tuned on questions (sft.py), which the default "
                        "prompt=sft asks: give --prompt=completion, or --prompt=sft to ask them "
                        "all the same")


def grid(cfg, path, records):
    """Fig. 6: the share of needles found by context size and depth."""
    cells = []
    for size, depth in itertools.product(cfg.context_sizes, cfg.depths):
        found = [r for r in records if (r["size"], r["cell"]) == (size, depth)]
        cell = {"size": size, "depth": depth, "n": len(found)}
        for key in ("exact", "first", "substring"):
            hits = sum(r[key] for r in found)  # of substring parts as well
            cell[key] = hits / len(found)
            cell[f"{key}_interval"] = wilson(hits, len(found))
        cells.append(cell)
    has_depth = cfg.task in WITH_DEPTH
    samples = f"{cfg.n_samples} samples a cell"
    if not has_depth:
        samples = f"{cfg.n_samples * len(cfg.depths)} samples a size"
    print0(f"{path}: {cfg.task}, all right, {samples}")
    print0(f"{'depth' * has_depth:>8}" + "".join(f"{size:>9,}" for size in cfg.context_sizes))
    for depth in cfg.depths if has_depth else ():
        row = [f"{c['exact']:>9.3f}" for c in cells if c["depth"] == depth]
        print0(f"{depth:>7}%" + "".join(row))
    # digit 1 too: it may be right where the needle is found and not copied to its end
    first = "digit 1" if cfg.task in OF_NEEDLES else "char 1"
    for key, name in (("exact", "all"), ("first", first), ("substring", "anywhere")):
        columns = [[c[key] for c in cells if c["size"] == size] for size in cfg.context_sizes]
        print0(f"{name:>8}" + "".join(f"{statistics.mean(column):>9.3f}" for column in columns))
    return {"cells": cells}


def scores(cfg, path, records):
    """
    Figs. 7 and 8: the needle score of each head in the paper's example, and of random trials; what
    the retrieval heads found in these, and why needles were missed (lib/readout.py).
    """
    records = sorted(records, key=lambda r: r["i"])  # several ranks mix them
    example, *trials = [r for r in records if not r["chooses"]]
    summary, found = readout.summarize(trials, [r for r in records if r["chooses"]])
    median = statistics.median(r["top"] for r in trials)
    exact = sum(r["exact"] for r in trials)
    only_first = sum(r["first"] and not r["exact"] for r in trials)
    print0(f"{path}: top needle score, median of {len(trials)} trials {median:.3f}; all of "
           f"the answer right in {exact}, only its first character in {only_first}; "
           f"the example: score {example['top']:.3f}, {example['text']!r}")
    # the scores of their heads stay in the .jsonl
    short = [{key: r[key] for key in ("top", "exact", "first")} | in_heads
             for r, in_heads in zip(trials, found, strict=True)]
    print_readout(summary)
    return {"example": example, "trials": short, "readout": summary}


def print_readout(summary):
    """Print what the retrieval heads found, and the kinds of misses."""
    heads = ", ".join(f"{layer + 1}.{head + 1}" for layer, head in summary["heads"])
    print0(f"  retrieval heads (layer.head), chosen at {summary['chosen_at']:,} tokens: {heads}")
    print0(f"  at {summary['size']:,} tokens one of them ranks the needle first in "
           f"{summary['ranked_first']:.3f} of the trials (by chance {summary['chance']:.2g})")
    print0(f"  their weight on it: {summary['weight']:.3f}; in the best of them its share of the "
           f"output: {summary['share']:.3f}, effective keys: {summary['effective']:,.1f} "
           f"({summary['effective_of_n']:.2%} of all)")
    misses = ", ".join(f"{kind} {count}" for kind, count in summary["misses"].items())
    wrong = ", ".join(f"{int(k) + 1} in {count}" for k, count in summary["wrong_tokens"].items())
    print0(f"  misses: {misses}" + f"; first wrong token of the answer: {wrong}" * bool(wrong))
    if summary["enough"] is None:
        print0("  no prompt was answered right where the heads were chosen: no miss is called "
               "faded")


def main():
    cfg = configure(NiahConfig)
    device = runtime.setup(cfg.device)
    what, summary = "niah", grid
    jobs = list(itertools.product(cfg.context_sizes, cfg.depths, range(cfg.n_samples)))
    if cfg.trials:  # needle scores take a second pass over each prompt
        what, summary = "needle", scores
        jobs = [(cfg.trial_size, 50, -1)] + [(cfg.trial_size, None, i) for i in range(cfg.trials)]
    for path in cfg.files:
        out, about, records = ask(cfg, path, what, jobs, device)
        result = {**about, **summary(cfg, path, records)}
        runtime.write_json(out.with_suffix(".json"), result)


if __name__ == "__main__":
    runtime.launch(main)
