"""
Needle in a haystack (section 3.3, Fig. 6) and needle scores (section 3.4, Figs. 7 and 8).

    python eval_niah.py out/sft/b_ssmax --rope_factor=50
        as in the paper: needles found, by depth and context size
    python eval_niah.py out/sft/b_ssmax --rope_factor=50 --trials=100
        the attention on needles, in the paper's example and 100 random prompts
    python eval_niah.py out/b_ssmax --task=tracking
        another task (lib/tasks.py)

A needle is a sentence with a number, hidden in a long text (the hay). A model that was fine-tuned
on questions (sft.py) is asked for the number (prompt=sft). Another one gets the needle up to its
number again, and is to complete it (prompt=completion).

With --trials the program also asks as many other prompts at the training length. The heads that
attend most to the needle there are the retrieval heads (lib/results.py). If they were chosen on the
trials themselves, they would look better than they are.

The result is niah[-tag].jsonl, or with --trials needle[-tag].jsonl, beside the checkpoint (or, with
--out=FOLDER, in FOLDER/RUN). It has a record for each prompt, see `answer`. The same command
continues a killed evaluation. `torchrun` divides the prompts among its processes.
"""
import itertools
import re
import statistics
from dataclasses import dataclass
from typing import Literal

import torch

from lib import checkpoint, config, evaluate, results, runtime
from lib.almanac import CITIES
from lib.evaluate import EvalConfig
from lib.runtime import UserError, print0
from lib.squad import QA_FORMAT
from lib.tasks import OF_NEEDLES, TASKS, make_sample, open_haystack
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
    trial_sizes: tuple = (8000,)  # tokens in the prompt of a trial
    needle: str = "The special magic {city} number is: {number}."  # the sentence to find
    question: str = "What is the special magic {city} number?"  # the question of prompt=sft
    prompt: Literal["", "sft", "completion"] = ""  # empty: sft after sft.py, else completion
    qa_format: str = QA_FORMAT  # format of the prompt=sft prompts; the default is sft.py's
    number_format: tuple = (7,)  # digits in each group of the number; (2, 2, 2, 1): 81 06 42 2
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
        for key in ("context_sizes", "trial_sizes", "number_format", "n_samples"):
            value = getattr(self, key)
            for number in value if type(value) is tuple else (value,):
                if type(number) is not int or number < 1:  # not isinstance: True is no size
                    raise ValueError(f"{key}: {number!r} is not a positive whole number; write "
                                     f"digits, and commas between numbers, as in --{key}=128")
        for depth in self.depths:
            if type(depth) not in (int, float) or not 0 <= depth <= 100:
                raise ValueError(f"depths are percentages, 0 to 100, not {depth!r}")
        for key in ("context_sizes", "trial_sizes", "depths", "number_format"):
            values = getattr(self, key)
            if not values:
                raise ValueError(f"{key} must hold at least one number")
            if len(set(values)) < len(values) and key != "number_format":
                raise ValueError(f"{key} has a value twice: {values}")
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
        return max(*self.trial_sizes, *self.context_sizes)


def choose_prompt(cfg, path, state):
    """Return `cfg` with its `prompt` chosen for this checkpoint, if the user left that open."""
    if cfg.prompt or cfg.task not in OF_NEEDLES:
        return cfg
    runs = [state, *checkpoint.bases(state)]  # the run itself, and those that it began from
    fine_tuned = any("squad" in run.get("data", {}).get("source", {}) for run in runs)
    prompt = "sft" if fine_tuned else "completion"
    print0(f"{path} was {'' if fine_tuned else 'not '}fine-tuned on questions: prompt={prompt}")
    return config.complete(cfg, prompt=prompt)


# -----------------------------------------------------------------------------
# which prompts: a job is (tokens, asked depth or None, number)


def grid_jobs(cfg):
    """Return the jobs of Fig. 6."""
    return list(itertools.product(cfg.context_sizes, cfg.depths, range(cfg.n_samples)))


def trial_jobs(cfg, model, vocab, hay):
    """
    Return the jobs of Figs. 7 and 8. At each size they are the paper's example (number -1) and the
    trials. As many prompts follow, with later numbers, on which the retrieval heads are chosen.
    Their size is the training length. If the question is too long for that, the length is doubled
    until it fits.
    """
    jobs = [(size, None, i) for size in cfg.trial_sizes for i in range(-1, cfg.trials)]
    largest = max(cfg.trial_sizes)
    size = model.config.block_size
    if model.max_len == size:  # p_n: a prompt of that length leaves no room for the answer
        size = min(size, largest)
    while True:
        choosing = [(size, None, i) for i in range(cfg.trials, 2 * cfg.trials)]
        try:
            for job in choosing:
                sample_of(cfg, vocab, hay, job)
            return jobs + choosing
        except UserError:
            if size >= largest:
                raise
        size = min(2 * size, largest)


def sample_of(cfg, vocab, hay, job):
    """Return the sample of a job, see `make_sample`."""
    size, depth, i = job
    return make_sample(cfg, vocab, hay, size, 50 if i < 0 else depth, i)  # the example: depth 50


# -----------------------------------------------------------------------------
# prompt -> record


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


@torch.no_grad()
def answer(cfg, model, vocab, batch, device):
    """
    Return the records of `batch`, samples of one size, after asking the model all of them:

        size, i, answers, depth   see `make_sample`
        cell                      the asked depth; None in trials
        text                      what the model wrote
        exact, first, substring   see `score`

    and in trials, see `needle_scores`:

        chooses                   whether retrieval heads are chosen on this prompt, which is then
                                  not a trial
        needle_tokens             number of tokens of the needle's number
        scores, ranks             for each head, [layer][head]
        top                       the largest score
    """
    idx = torch.tensor([sample["prompt"] for sample in batch], device=device)
    room = max(sample["room"] for sample in batch)
    with runtime.autocast(device, cfg.dtype):
        # As in the paper, the model may not answer with the end-of-text token.
        rows = model.generate(idx, room, temperature=0, banned=(end_of_text(vocab),))
        weights = model.last_query_attention(idx) if cfg.trials else None
    records = []
    for b, sample in enumerate(batch):
        written = rows[b, idx.size(1):][:sample["room"]].tolist()
        text = decode(written, vocab)
        record = {key: sample[key] for key in ("size", "cell", "depth", "i", "answers")}
        record["text"] = text
        record |= score(sample["answers"], text, cfg.number_format)
        if cfg.trials:
            scores, ranks = needle_scores(weights[b], sample["spans"])
            record["cell"] = None
            record["chooses"] = sample["i"] >= cfg.trials
            record["needle_tokens"] = sum(end - start for start, end in sample["spans"])
            record["scores"] = [[round(x, 5) for x in layer] for layer in scores.tolist()]
            record["ranks"] = ranks.tolist()
            record["top"] = max(map(max, record["scores"]))
        records.append(record)
    return records


def needle_scores(weights, spans):
    """
    Return the needle score and the needle's rank in each head, two tensors (n_layer, n_head).

    The score (section 3.4) is the attention on the number's tokens, summed. (The paper's also has
    the full stop after the number.) The rank is 1 + the number of other tokens with more attention
    than any token of the number.

    weights (n_layer, n_head, T): those of a prompt's last query. spans: [(from, to), ...] of the
    number in the prompt.
    """
    inside = torch.zeros(weights.size(-1), dtype=torch.bool, device=weights.device)
    for start, end in spans:
        inside[start:end] = True
    on_needle = weights * inside
    more = weights > on_needle.amax(dim=-1, keepdim=True)
    return on_needle.sum(dim=-1), 1 + more.sum(dim=-1)


# -----------------------------------------------------------------------------


def measure(cfg, kind, path, out, device):
    """Ask a checkpoint all prompts, write the result file `out`, and print what it answered."""
    model, state = checkpoint.open_checkpoint(cfg, path, device)
    cfg, vocab = choose_prompt(cfg, path, state), state["vocab"]
    hay, data = open_haystack(cfg, vocab, model.config.block_size if cfg.trials else 0)
    jobs = trial_jobs(cfg, model, vocab, hay) if cfg.trials else grid_jobs(cfg)
    # One prompt of each size is made before anything is written: one that does not fit, or that
    # the hay is too short for, is an error here.
    for job in {job[0]: job for job in jobs}.values():
        sample = sample_of(cfg, vocab, hay, job)
        # the last token of the answer is never an input
        evaluate.check_length(path, model, sample["size"] + sample["room"] - 1)
    header = evaluate.make_header(cfg, path, kind, model, state, data, n_records=len(jobs))

    def answer_jobs(jobs):
        batch = [sample_of(cfg, vocab, hay, job) for job in jobs]
        return answer(cfg, model, vocab, batch, device)

    records = evaluate.measure(cfg, out, header, jobs, answer_jobs, device)
    if cfg.trials:
        print_examples(path, records)
    elif cfg.task in OF_NEEDLES:
        print_grid(cfg, path, records)


def print_grid(cfg, path, records):
    """Print the share of needles found, with a column for each size and a row for each depth."""
    print0(f"{path}: needles found, by depth and context size")
    print0(" " * 8 + "".join(f"{size:>9,}" for size in cfg.context_sizes))
    for depth in cfg.depths:
        line = f"{depth:>6} %"
        for size in cfg.context_sizes:
            cell = [r["exact"] for r in records if (r["size"], r["cell"]) == (size, depth)]
            line += f"{statistics.mean(cell):>9.3f}"
        print0(line)


def print_examples(path, records):
    """Print what the model answered to the paper's example, at each size."""
    for record in records:
        if record["i"] == -1:
            print0(f"{path}: the paper's example at {record['size']:,} tokens: {record['text']!r}, "
                   f"top needle score {record['top']:.3f}")


def main():
    cfg, device = evaluate.start(NiahConfig)
    kind = "needle" if cfg.trials else "niah"
    files = evaluate.result_files(cfg, kind)
    for path, out in files.items():
        measure(cfg, kind, path, out, device)
    if runtime.RANK == 0:
        results.print_tables(list(files.values()))


if __name__ == "__main__":
    runtime.launch(main)
