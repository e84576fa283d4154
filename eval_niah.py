"""
Needle in a haystack (section 3.3, Fig. 6) and needle scores (section 3.4, Figs. 7 and 8).

    python eval_niah.py out/sft/b_ssmax --rope_factor=50
        as in the paper: needles found, by depth and context size
    python eval_niah.py out/sft/b_ssmax --rope_factor=50 --trials=100
        the attention on needles, in the paper's example and 100 random prompts
    python eval_niah.py out/b_ssmax --task=multikey
        another task (lib/tasks.py)

A needle is a sentence with a number, hidden in a long text (the hay). A model that was fine-tuned
on questions (sft.py) is asked for the number (prompt=sft). A model that was not gets the needle
again, up to its number, and is to complete it (prompt=completion).

Retrieval heads give the needle at least half as much attention as the head that gives it most. They
are chosen on separate prompts of the training length, which --trials adds, because heads look too
good on the prompts that chose them.

The result is niah[-tag].jsonl, or with --trials scores[-tag].jsonl, beside the checkpoint (or, with
--out=FOLDER, in FOLDER/RUN). It has a record for each prompt, see `niah`. The same command
continues a killed evaluation. `torchrun` divides the prompts among its processes.
"""
import math
import re
from dataclasses import dataclass
from typing import Literal

import torch

from lib import config, runtime
from lib.checkpoint import find, is_of_transformers
from lib.errors import UserError, launch
from lib.evaluate import EvalConfig, check_length, corpus_of, digest_of, evaluate
from lib.ranks import print0
from lib.tasks import PAPER_EXAMPLE, TASKS, make_sample, open_haystack


@dataclass(frozen=True)
class NiahConfig(EvalConfig):
    # data
    haystack: str = ""  # the hay: a glob of text files, or noise (five sentences); empty: data_dir
    # evaluation
    context_sizes: tuple = tuple(range(1000, 10001, 1000))  # tokens of the whole prompt
    depths: tuple = (10, 30, 50, 70, 90)  # where the needle is, in percent of the haystack
    n_samples: int = 1000  # samples for each context size and depth
    trials: int = 0  # measure the attention on the needle in this many random prompts instead
    trial_sizes: tuple = (8000,)  # tokens in the prompt of a trial
    needle: str = "The special magic {city} number is: {number}."  # the sentence to find
    prompt: Literal["", "sft", "completion"] = ""  # empty: sft after sft.py, else completion
    number_format: tuple = (7,)  # digits in each group of the number; (2, 2, 2, 1): 81 06 42 2
    task: Literal[tuple(TASKS)] = "needle"  # the task, see lib/tasks.py
    n_needles: int = 0  # task=multikey: number of needles about other cities; 0: three
    begin: bool = False  # begin the prompt with the end-of-text token, as after a document

    EFFECTIVE_IF = EvalConfig.EFFECTIVE_IF | {
        "n_needles": "task == 'multikey'",
        "trial_sizes": "trials",
        **dict.fromkeys(("data_dir", "split"), "haystack == ''"),
        **dict.fromkeys(("context_sizes", "depths", "n_samples"), "trials == 0"),
    }

    def __post_init__(self):
        super().__post_init__()
        fields = re.findall("{(.*?)}", self.needle)
        # a prompt of completion is cut off where its answer would begin
        if sorted(fields) != ["city", "number"] or (
                self.prompt == "completion" and fields[-1] != "number"):
            raise ValueError("needle must have the fields {city} and {number}, each once; with "
                             "prompt=completion {number} comes last")
        if not re.search(r"(^| )\{number\}", self.needle):
            raise ValueError("needle must have a space before {number}: it belongs to the number's "
                             "first token")
        if self.prompt == "sft" and "magic" not in self.needle:
            raise ValueError(f"needle={self.needle} lacks the word magic, which prompt=sft asks "
                             "for: add it, or take prompt=completion")
        if self.trials and self.task == "every_depth":
            raise ValueError(f"trials={self.trials} have random depths, so they do not go with "
                             "task=every_depth: leave one of the two out")
        for key in ("context_sizes", "trial_sizes", "number_format", "n_samples"):
            sizes = getattr(self, key)
            sizes = sizes if type(sizes) is tuple else (sizes,)
            if not sizes or not all(type(size) is int and size > 0 for size in sizes):
                raise ValueError(f"{key} must be positive whole numbers, such as 128 or 128,256")
        if sum(self.number_format) > 100:
            raise ValueError(f"number_format={self.number_format} asks for more than 100 digits")
        if not self.depths or not all(
                type(depth) in (int, float) and 0 <= depth <= 100 for depth in self.depths):
            raise ValueError(f"depths={self.depths} must be percentages, 0 to 100")
        if len(set(self.depths)) < len(self.depths):
            raise ValueError(f"depths={self.depths} has a depth twice: leave one of them out")


# -----------------------------------------------------------------------------
# what is asked


def prompts_of_trials(cfg, block_size):
    """
    Return the items for Figs. 7 and 8. Each has a role: the paper's example at the longest size,
    the trials of each size, and cfg.trials more prompts which only choose the retrieval heads.
    These have the training length, or that of the longest trial if it is shorter.
    """
    longest = max(cfg.trial_sizes)
    example = {"size": longest, "depth": 50, "i": PAPER_EXAMPLE, "role": "example"}
    trials = [{"size": size, "depth": None, "i": i, "role": "trial"}
              for size in cfg.trial_sizes for i in range(cfg.trials)]
    choosing = [{"size": min(block_size, longest), "depth": None, "i": i, "role": "chooses heads"}
                for i in range(cfg.trials, 2 * cfg.trials)]
    return [example, *trials, *choosing]


def niah(cfg, path, model, state):
    """
    Return the items of a checkpoint and how they are measured, see `evaluate`. A record also has

        answer, text    the right answer, and what the model wrote
        needles         whether what it wrote is right (see `grade`; named after the task)

    or with --trials what `attention_record` returns.
    """
    device, vocab = model.wte.weight.device, state["vocab"]
    if not cfg.prompt:
        prompt = "sft" if "squad" in state["data"]["source"] else "completion"
        cfg = config.replaced(cfg, prompt=prompt)
        print0(f"{path}: prompt={prompt}")
    bos = state.get("bos")  # of a model of transformers
    if cfg.begin and bos is not None:
        raise UserError(f"{path} begins every text with a token of its own: leave --begin out")
    if cfg.begin:
        bos = vocab.end
    if cfg.task == "multikey" and not cfg.n_needles:
        cfg = config.replaced(cfg, n_needles=3)
    if cfg.haystack:
        hay, data = open_haystack(cfg, vocab)
    else:
        hay = corpus_of(cfg, path, state)
        data = hay.data
    if cfg.trials:
        items = prompts_of_trials(cfg, model.config.block_size)
    else:  # Fig. 6
        # 10.0 is 10, also where the depth is part of a prompt's seed
        depths = [int(depth) if depth == int(depth) else depth for depth in cfg.depths]
        items = [{"size": size, "depth": depth, "i": i} for size in cfg.context_sizes
                 for i in range(cfg.n_samples) for depth in depths]
    items = [{"task": cfg.task} | item for item in items]

    def sample_of(item):
        return make_sample(cfg, vocab, hay, item["size"], item["depth"], item["i"], bos)

    # A prompt of each size is made now, so that one that is too small is refused before anything is
    # written. If positions end (p_n, GPT-2), all are made: their answers differ in length.
    to_check = items
    if model.max_len == math.inf:
        to_check = {item["size"]: item for item in items}.values()
    for item in to_check:
        # the last token of the answer is never an input
        check_length(path, model, item["size"] + sample_of(item)["max_new_tokens"] - 1)

    def measure(items):
        return ask_model(cfg, model, vocab, [sample_of(item) for item in items], device)

    return items, measure, {"data": data, "prompt": cfg.prompt, "n_needles": cfg.n_needles}


# -----------------------------------------------------------------------------
# prompt -> record


@torch.no_grad()
def ask_model(cfg, model, vocab, samples, device):
    """Return a record for each of `samples`, which are of one size, see `niah`, after asking the
    model all of them."""
    idx = torch.tensor([sample["prompt"] for sample in samples], device=device)
    size = idx.size(1)
    longest = max(sample["max_new_tokens"] for sample in samples)
    with runtime.autocast(device, cfg.dtype):
        # As in the paper, the model may not answer with the end-of-text token.
        rows = model.generate(idx, longest, temperature=0, banned=(vocab.end,))
        weights = model.last_query_attention(idx) if cfg.trials else None
    names = {"needle": "needles", "multikey": f"needles among {cfg.n_needles} others"}
    measure_name = names.get(cfg.task, f"{cfg.task} answers")
    records = []
    for row, sample in enumerate(samples):
        text = vocab.decode(rows[row, size:size + sample["max_new_tokens"]].tolist())
        exact, begins_right = grade(sample["answer"], text, cfg.number_format)
        record = {"digest": digest_of(sample["prompt"]), "answer": sample["answer"], "text": text}
        if cfg.trials:
            record |= {"right": 2 if exact else int(begins_right)}  # 1: only its beginning
            record |= attention_record(sample, weights[row])
        else:
            record[measure_name] = exact
        records.append(record)
    return records


def grade(answer, text, groups):
    """
    Return (whether the generated `text` begins with the right answer, with no further digit or
    letter after it; whether its first character is right). groups: cfg.number_format.
    """
    written, wanted = text.strip(), re.escape(answer) + r"(?!\w)"
    if answer.isdigit():
        with_commas = re.sub(r"(?<=\d)(?=(\d{3})+$)", ",", answer)  # between thousands
        wanted = rf"({answer}|{with_commas})(?!\d)"
        if len(groups) > 1:  # the hay has spaces between the groups
            wanted = r"\s*".join(answer) + r"(?! ?\d)"
    return re.match(wanted, written) is not None, written[:1] == answer[0]


def attention_record(sample, weights):
    """
    Return what a record of --trials says of the attention on the needle: how many tokens
    it has; the scores and ranks of each head, [layer][head], see `needle_scores`; the top score.
    """
    start, end = sample["span"]
    exact_scores, needle_ranks = needle_scores(weights, start, end)
    scores = [[round(x, 5) for x in layer] for layer in exact_scores.tolist()]
    return {"needle_tokens": end - start, "scores": scores, "ranks": needle_ranks.tolist(),
            "score": round(exact_scores.max().item(), 5)}  # NaN if any is


def needle_scores(weights, start, end):
    """
    Return the needle score and the needle's rank in each head, two tensors (n_layer, n_head).

    The score (section 3.4) is the attention on the number's tokens, summed. (The paper also counts
    the full stop after it.) The rank is 1 + the number of other tokens with more attention
    than any token of the number.

    weights (n_layer, n_head, T): those of a prompt's last query. start, end: of the number in the
    prompt.
    """
    on_needle = weights[..., start:end]
    # "not <=" instead of ">": NaN counts as above, so the needle ranks last
    is_above = ~(weights <= on_needle.amax(dim=-1, keepdim=True))
    return on_needle.sum(dim=-1), 1 + is_above.sum(dim=-1)


def main():
    cfg = config.configure(NiahConfig)
    are_of_transformers = all(map(is_of_transformers, map(find, cfg.files)))
    if cfg.task == "every_depth" and are_of_transformers and not cfg.micro_batch_size:
        # such a model then reads each hay once, for all of its questions
        cfg = config.replaced(cfg, micro_batch_size=len(cfg.depths))
    evaluate(cfg, "scores" if cfg.trials else "niah", niah)


if __name__ == "__main__":
    launch(main)
