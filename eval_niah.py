"""
Needle in a haystack (section 3.3, Fig. 6) and needle scores (section 3.4, Figs. 7 and 8).

    python eval_niah.py out/sft/b_ssmax                  retrieval grid: depth x context size
    python eval_niah.py out/sft/b_ssmax --trials=100     the attention on needles: the paper's
                                                         example and 100 random prompts
    python eval_niah.py out/b_ssmax --prompt=completion  no fine-tuning needed
    python eval_niah.py out/b_ssmax --task=tracking      another task (lib/tasks.py)

A needle is a sentence with a number, hidden in a long text (the hay). The model is asked for the
number.

With --trials the program also measures why needles are missed (lib/readout.py). For this it also
asks as many other prompts at the training length. The heads that attend most to the needle there
are the retrieval heads.

Results lie beside the checkpoint. niah[-tag].jsonl (with --trials needle[-tag].jsonl) has a first
line about the evaluation and then one line per sample; the .json of the same name summarizes them.
With --out=FOLDER both are written to FOLDER/NAME, where NAME is the checkpoint's folder. The same
command continues a killed run; `torchrun` divides the samples among its processes.
"""
import itertools
import json
import math
import re
import statistics
from dataclasses import dataclass
from typing import Literal

import torch

from lib import checkpoint, evaluate, readout, runtime
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
    haystack: str = ""  # the hay: a glob of text files, or noise (five sentences); empty: data_dir
    # evaluation
    context_sizes: tuple = tuple(range(1000, 10001, 1000))  # tokens of the whole prompt
    depths: tuple = (10, 30, 50, 70, 90)  # where the needle is, in percent of the haystack
    n_samples: int = 1000  # samples for each context size and depth
    trials: int = 0  # number of random samples to measure needle scores on, instead of the grid
    trial_size: int = 8000  # tokens in the prompt of a trial
    needle: str = "The special magic {city} number is: {number}."  # the sentence to find
    question: str = "What is the special magic {city} number?"  # the question of prompt=sft
    prompt: Literal["sft", "completion"] = "sft"  # completion: the needle up to its number
    qa_format: str = QA_FORMAT  # format of the prompt=sft prompts; the default is sft.py's
    number_format: tuple = (7,)  # digits in each group of the number; (2, 2, 2, 1): 81 06 42 2
    dump: str = ""  # also write the prompts and right answers to this .jsonl
    task: Literal[tuple(TASKS)] = "needle"  # the task, see lib/tasks.py
    n_needles: int = 0  # task=multikey: number of needles about other cities; 0: three
    begin: bool = False  # begin the prompt with the end-of-text token, as after a document

    def __post_init__(self):
        super().__post_init__()
        self.check_fields("needle", ["city", "number"], ends_at_last=self.prompt == "completion")
        self.check_fields("question", ["city"])
        self.check_fields("qa_format", ["context", "question", "answer"], ends_at_last=True)
        if self.needle.count("{number}") > 1:
            raise ValueError("needle has {number} twice: write it once")
        for key in ("context_sizes", "number_format", "trial_size", "n_samples"):
            value = getattr(self, key)
            for number in value if type(value) is tuple else (value,):
                if type(number) is not int or number < 1:  # not isinstance: True is no size
                    raise ValueError(f"{key}: {number!r} is not a positive whole number; write "
                                     f"digits, and commas between numbers, as in --{key}=128")
        for key in ("context_sizes", "depths"):
            values = getattr(self, key)
            if len(set(values)) < len(values):  # the same prompts would count twice
                raise ValueError(f"{key} has a value twice: {values}")
        for depth in self.depths:
            if type(depth) not in (int, float) or not 0 <= depth <= 100:
                raise ValueError(f"depths are percentages, 0 to 100, not {depth!r}")
        for key in ("context_sizes", "depths", "number_format"):
            if not getattr(self, key):
                raise ValueError(f"{key} must hold at least one number")
        if self.n_needles and self.task != "multikey":
            raise ValueError("n_needles has an effect only with --task=multikey: leave it out")
        if self.n_needles >= len(CITIES):
            raise ValueError(f"n_needles={self.n_needles} must be below {len(CITIES)}")

    def check_fields(self, key, names, ends_at_last=False):
        """
        Raise a ValueError unless the text of a setting has these fields, such as {city}, and no
        others. ends_at_last: the prompt ends where the last field begins, so the other fields must
        come before it.
        """
        text = getattr(self, key)
        fields = [f"{{{name}}}" for name in names]
        if not all(field in text for field in fields):
            raise ValueError(f"{key} must contain {' '.join(fields)}")
        *others, last = fields
        before_last = text.partition(last)[0]
        if ends_at_last and not all(field in before_last for field in others):
            raise ValueError(f"{key}: the prompt ends where {last} begins, so put "
                             f"{' and '.join(others)} before it")
        try:
            text.format(**dict.fromkeys(names, ""))
        except (LookupError, ValueError, AttributeError, TypeError) as e:
            raise ValueError(f"{key}: its only fields are {' '.join(fields)}; write other braces "
                             "twice, as in {{") from e

    @property
    def longest(self):
        return max(self.trial_size, *self.context_sizes)


def score(answers, text, groups):
    """
    Return what the generated `text` got right, as {"exact", "first", "substring"}.

    exact: for one answer, whether the text begins with it and goes on with no further digit (or
    letter); for several, whether all of them are in it, as in RULER. first: whether the first
    character is right. substring: the share of the answers that are anywhere in the text.
    groups: cfg.number_format.
    """
    is_number = answers[0].isdigit()
    if is_number and len(groups) > 1:  # written with spaces inside, so spaces do not count
        text = re.sub(r"\s", "", text)
    text = text.strip()
    share = sum(answer in text for answer in answers) / len(answers)
    exact = share == 1
    if len(answers) == 1:
        no_more = r"(?!\d)" if is_number else r"(?!\w)"
        exact = re.match(re.escape(answers[0]) + no_more, text) is not None
    return {"exact": exact, "first": text[:1] == answers[0][0], "substring": share}


def n_right(wanted, written):
    """Return the number of ids before the first difference between `wanted` and `written`."""
    right = 0
    while right < min(len(wanted), len(written)) and written[right] == wanted[right]:
        right += 1
    return right


def score_tokens(wanted, written):
    """
    Like `score`, for an answer given as ids. exact: all are right. first: the first is right.
    substring: the share of them before the first wrong one.
    """
    right = n_right(wanted, written)
    return {"exact": right == len(wanted), "first": right > 0, "substring": right / len(wanted)}


def new_tokens(cfg, sample):
    """Return how many tokens the model may write as its answer to a sample."""
    if sample["new"]:
        return sample["new"]
    groups = cfg.number_format
    # A number in several groups usually takes a token for each group. A number in one group takes
    # at most one token for the space and one for each digit. One more token shows whether the
    # number ends there.
    expected = 1 + (len(groups) if len(groups) > 1 else 1 + groups[0])
    # Another tokenizer may need more: as many as the answer takes in the prompt, and one more.
    in_prompt = max(end - start for start, end in sample["spans"])
    return max(expected, 1 + in_prompt)


def check_room(cfg, path, model, sample):
    """Raise a UserError if p_n is defined for fewer positions than prompt and answer need."""
    needed = sample["size"] + new_tokens(cfg, sample) - 1  # the last new token is never an input
    if needed > model.max_len:
        raise UserError(f"{path}: p_n is learned for {model.max_len} positions, and a prompt of "
                        f"{sample['size']} tokens needs {needed} with its answer; take at most "
                        f"{sample['size'] - needed + model.max_len} tokens")


@torch.no_grad()
def answer(cfg, model, vocab, batch, device):
    """Return the records of `batch`, samples of one size, after asking the model all of them."""
    idx = torch.tensor([sample["prompt"] for sample in batch], device=device)
    new = [new_tokens(cfg, sample) for sample in batch]
    with runtime.autocast(device, cfg.dtype):
        # As in the paper, the model may not answer with the end-of-text token.
        rows = model.generate(idx, max(new), temperature=0, banned=(end_of_text(vocab),))
        in_heads = read_heads(model, idx, batch) if cfg.trials else []
    records = []
    for b, sample in enumerate(batch):
        written = rows[b, idx.size(1):][:new[b]].tolist()
        text = decode(written, vocab)
        # "cell" is the depth that was asked for, None in a trial. "depth" is the depth at which the
        # fact was placed.
        record = {k: sample[k] for k in ("size", "depth", "i", "answers", "cell")}
        if "answer_ids" in sample:
            right = score_tokens(sample["answer_ids"], written)
        else:
            right = score(sample["answers"], text, cfg.number_format)
        record.update(text=text, **right)
        if cfg.trials:
            # True if heads are chosen on this prompt (choice_jobs); then it is not a trial
            record["chooses"] = sample["i"] >= cfg.trials
            record["needle_tokens"] = sum(end - start for start, end in sample["spans"])
            record |= in_heads[b][0]
            with runtime.autocast(device, cfg.dtype):
                record |= read_later_tokens(model, written, sample, record, device)
            # The needle score (section 3.4) is a head's attention on the number's tokens, summed.
            # (The paper's score also has the full stop after the number.)
            record["top"] = max(map(max, record["scores"]))
        records.append(record)
    return records


def read_heads(model, idx, batch, n=1):
    """
    Return a list for each prompt of idx (B, T): the records (lib/readout.py) of its last n queries.

    Tokens after a query are left out of its record, as if the prompt ended with this query.
    """
    # {(prompt, query): what each layer did}
    by_layer = {(b, i): [] for b in range(len(batch)) for i in range(n)}
    for z, v in model.last_queries(idx, n):
        for b, sample in enumerate(batch):
            for i in range(n):
                after = n - 1 - i  # tokens that the query does not see
                logits = z[b, :, i, :z.size(-1) - after]
                values = v[b, :, :v.size(2) - after]
                layer = readout.readout(logits, values, sample["spans"], sample["others"])
                by_layer[b, i].append(layer)
    records = []
    for b in range(len(batch)):
        records.append([readout.record_of(by_layer[b, i]) for i in range(n)])
    return records


def read_later_tokens(model, written, sample, record, device):
    """
    Return {"wrong_token": index of the first wrong token of `written`, "later": {k: record}}. The
    record of k says what the heads do when token k of the answer is due: the input is the prompt
    and the k right tokens before it. wrong_token is None if there are several answers.

    A prompt for choosing heads has a record for every k from 1 on. A trial has at most one, for its
    first wrong token if that is not token 0. Samples with several answers have none.
    """
    answer_ids = []
    if len(sample["spans"]) == 1:
        start, end = sample["spans"][0]
        answer_ids = sample["prompt"][start:end]
    right = n_right(answer_ids, written) if answer_ids else None
    tokens = []
    if record["chooses"]:
        tokens = list(range(1, len(answer_ids)))
    elif answer_ids and not record["exact"] and 0 < right < len(answer_ids):
        tokens = [right]
    later = {}
    if tokens:  # all of them in one pass
        longer = torch.tensor([sample["prompt"] + answer_ids[:tokens[-1]]], device=device)
        records, = read_heads(model, longer, [sample], len(tokens))
        for k, record_at_k in zip(tokens, records, strict=True):
            later[str(k)] = record_at_k
    return {"wrong_token": right, "later": later}


def choice_jobs(cfg, model, vocab, hay):
    """
    Return the list of jobs, (size, depth, i) each, on which retrieval heads are chosen: as many as
    there are trials, with other prompts, at the training length. If the question is too long for
    that, the length is doubled until it fits or reaches trial_size.
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
    if model.max_len < math.inf:  # p_n, which is defined up to the training length
        # A prompt of that length leaves no room for its answer, so we take trial_size if it is
        # smaller. If that is too long as well, check_room raises a UserError.
        size = min(size, cfg.trial_size)
    while size < cfg.trial_size and not fit(jobs_of(size)):
        size = min(2 * size, cfg.trial_size)
    return jobs_of(size)


def ask(cfg, path, what, jobs, device):
    """
    Ask a checkpoint the `jobs`, (size, depth, i) each, that are not yet in its result file.

    Returns (the result file <what>.jsonl, its first line, the records of all jobs). The first line
    says which evaluation the records belong to.
    """
    longest = max(size for size, _, _ in jobs)
    model, state = evaluate.open_for_context(cfg, path, device, longest)
    check_prompt(cfg, path, state)
    vocab = state["vocab"]
    # heads are chosen on prompts of the training length (choice_jobs)
    hay, data = open_haystack(cfg, vocab, model.config.block_size if cfg.trials else 0)
    asked = jobs
    if cfg.trials:
        jobs = [*jobs, *choice_jobs(cfg, model, vocab, hay)]
    # One prompt of each size is made before anything is written: one that does not fit, or that
    # the hay is too short for, is an error here.
    job_of_size = {job[0]: job for job in jobs}
    for job in job_of_size.values():
        check_room(cfg, path, model, make_sample(cfg, vocab, hay, *job))
    if cfg.dump:
        prompts = prompts_in_words(cfg, vocab, hay, asked)
        if runtime.RANK == 0:
            runtime.write_lines(cfg.dump, prompts)
        else:  # take as long as rank 0, because ranks wait for each other only for five minutes
            for _ in prompts:
                pass
    functions = [ask]
    if cfg.trials:
        functions += [readout.readout, readout.record_of]
    # If all records are there already, nothing is asked and they are only summarized again.
    out, (about, *records) = evaluate.begin(
        cfg, path, model, state, data, f"{what}.jsonl", functions, len(jobs))
    with runtime.explain(f"{out} is not a result of this program; move it away", KeyError):
        # Two processes that measured at the same time may have written a record twice.
        done = {(r["size"], r["cell"], r["i"]): r for r in records}
    records = list(done.values())
    left = [job for job in jobs if job not in done]
    if left:  # Write the complete records again: a kill may have left half a line at the end.
        runtime.write_lines(out, [about, *records])

    def answers(jobs):
        batch = [make_sample(cfg, vocab, hay, *job) for job in jobs]
        return answer(cfg, model, vocab, batch, device)

    for _, results in evaluate.work(device, str(path), left, answers, cfg.micro_batch_size):
        records += results
        if runtime.RANK == 0:  # appended: rewriting the whole file each time would cost n^2
            with runtime.writing(out), open(out, "a") as f:
                f.writelines(json.dumps(r) + "\n" for r in results)
    return out, about, records


def prompts_in_words(cfg, vocab, hay, jobs):
    """Yield the prompt of each job as text, with its answers, size and depth."""
    for job in jobs:
        sample = make_sample(cfg, vocab, hay, *job)
        record = {key: sample[key] for key in ("answers", "size", "depth")}
        yield {"prompt": decode(sample["prompt"], vocab), **record}


def check_prompt(cfg, path, state):
    """
    Raise a UserError if the model was not fine-tuned on questions, unless the user typed --prompt.
    """
    asks = cfg.prompt == "sft" and cfg.task in OF_NEEDLES
    runs = [state, *checkpoint.bases(state)]  # the run itself, and those that it began from
    fine_tuned = any("squad" in run.get("data", {}).get("source", {}) for run in runs)
    if asks and not fine_tuned and "prompt" not in cfg.given:  # all results would be zero
        raise UserError(f"{path} was not fine-tuned on questions (sft.py), which the default "
                        "prompt=sft asks: give --prompt=completion, or --prompt=sft to ask them "
                        "all the same")


def grid(cfg, path, records):
    """Print and return Fig. 6: the share of needles found by context size and depth."""
    cells = cells_of(cfg, records)
    print_grid(cfg, path, cells)
    return {"cells": cells}


def cells_of(cfg, records):
    """Return a dict for each context size and depth: the shares of its samples answered right."""
    cells = []
    for size, depth in itertools.product(cfg.context_sizes, cfg.depths):
        samples = [r for r in records if (r["size"], r["cell"]) == (size, depth)]
        cell = {"size": size, "depth": depth, "n": len(samples)}
        for key in ("exact", "first", "substring"):
            hits = sum(r[key] for r in samples)  # with several answers a substring hit is a share
            cell[key] = hits / len(samples)
            cell[f"{key}_interval"] = wilson(hits, len(samples))
        cells.append(cell)
    return cells


def print_grid(cfg, path, cells):
    """Print a column for each context size: the share of right answers by depth, and means."""
    has_depth = cfg.task in WITH_DEPTH
    how_many = f"{cfg.n_samples} samples per cell"
    if not has_depth:
        how_many = f"{cfg.n_samples * len(cfg.depths)} samples per size"
    print0(f"{path}: {cfg.task}, share of answers that are wholly right, {how_many}")
    title = "depth" if has_depth else ""
    print0(f"{title:>8}" + "".join(f"{size:>9,}" for size in cfg.context_sizes))
    if has_depth:
        for depth in cfg.depths:
            row = [f"{cell['exact']:>9.3f}" for cell in cells if cell["depth"] == depth]
            print0(f"{depth:>7}%" + "".join(row))
    # The first digit is shown too: a model may find the needle and then copy it wrongly.
    first = "digit 1" if cfg.task in OF_NEEDLES else "char 1"
    anywhere = "anywhere"
    if cfg.task == "verbatim":  # the answer is tokens: see score_tokens
        first, anywhere = "token 1", "share"
    for key, name in (("exact", "all"), ("first", first), ("substring", anywhere)):
        row = ""
        for size in cfg.context_sizes:
            mean = statistics.mean(cell[key] for cell in cells if cell["size"] == size)
            row += f"{mean:>9.3f}"
        print0(f"{name:>8}{row}")


def scores(cfg, path, records):
    """
    Print and return Figs. 7 and 8: the needle score of each head in the paper's example and in
    random trials. What the retrieval heads did in the trials, and why needles were missed, is
    added (lib/readout.py).
    """
    records = sorted(records, key=lambda r: r["i"])  # several ranks write them in any order
    choosing = [r for r in records if r["chooses"]]
    example, *trials = [r for r in records if not r["chooses"]]
    summary, retrievals = readout.summarize(trials, choosing)
    median = statistics.median(r["top"] for r in trials)
    exact = sum(r["exact"] for r in trials)
    only_first = sum(r["first"] for r in trials if not r["exact"])
    print0(f"{path}: top needle score, median of {len(trials)} trials {median:.3f}; all of "
           f"the answer right in {exact}, its first character but not all in {only_first}; "
           f"the example: score {example['top']:.3f}, {example['text']!r}")
    # The scores of all heads are only in the .jsonl: they would make the summary large.
    short = []
    for record, retrieval in zip(trials, retrievals, strict=True):
        kept = {key: record[key] for key in ("top", "exact", "first")}
        short.append({**kept, **retrieval})
    print_readout(summary)
    return {"example": example, "trials": short, "readout": summary}


def print_readout(summary):
    """Print what the retrieval heads did with the needles, and how often each kind of miss was."""
    heads = ", ".join(f"{layer + 1}.{head + 1}" for layer, head in summary["heads"])
    print0(f"  retrieval heads (layer.head), chosen at {summary['chosen_at']:,} tokens: {heads}")
    print0(f"  at {summary['size']:,} tokens one of them ranks the needle first in "
           f"{summary['ranked_first']:.3f} of the trials (by chance {summary['chance']:.2g})")
    print0(f"  mean weight of these heads on the needle: {summary['weight']:.3f}; best head: "
           f"the needle's share of its output {summary['share']:.3f}, effective keys "
           f"{summary['effective']:,.1f} ({summary['effective_of_n']:.2%} of all)")
    misses = ", ".join(f"{kind} {count}" for kind, count in summary["misses"].items())
    wrong = ", ".join(f"{int(k) + 1} in {count}" for k, count in summary["wrong_tokens"].items())
    if wrong:
        misses += f"; first wrong token of the answer: {wrong}"
    print0(f"  misses: {misses}")
    if summary["enough"] is None:
        print0(f"  at {summary['chosen_at']:,} tokens no prompt was answered right, so no miss can "
               "be called faded")


def main():
    cfg = configure(NiahConfig)
    device = runtime.setup(cfg.device)
    what, summary = "niah", grid
    jobs = list(itertools.product(cfg.context_sizes, cfg.depths, range(cfg.n_samples)))
    if cfg.trials:
        what, summary = "needle", scores
        paper_example = (cfg.trial_size, 50, -1)  # in the middle of the hay; trials count from 0
        jobs = [paper_example] + [(cfg.trial_size, None, i) for i in range(cfg.trials)]
    for path in cfg.files:
        out, about, records = ask(cfg, path, what, jobs, device)
        result = {**about, **summary(cfg, path, records)}
        runtime.write_json(out.with_suffix(".json"), result)


if __name__ == "__main__":
    runtime.launch(main)
