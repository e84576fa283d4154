"""Print the commands of run.sh, one a line, or with --table=True the table of their results."""
import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

from experiments.tables import with_interval
from lib import checkpoint, results, runtime
from lib.checkpoint import LoadConfig
from lib.config import configure
from lib.errors import UserError, launch
from lib.interop import hf_model
from lib.storage import read_lines
from ssmax_hf import sees_all

FACTORS = {kind: f" --attention_type={kind}"
           for kind in ("logn_clip", "log_floor", "llama4", "power", "step_1.5")}
FACTORS |= {f"constant_{c}": f" --attention_type=head_scale --swap_scale={c}"
            for c in (1.1, 1.2, 1.4)}
NEEDLES = ",".join(map(str, range(5, 100, 10)))  # depths in percent


@dataclass(frozen=True)
class RealConfig:
    # arguments
    files: tuple = ()  # the folder of a Hugging Face model
    lengths: tuple = ()  # in tokens; empty: 1, 2 and 4 times the training length
    data_dir: str = ""  # corpus of long documents
    niah: str = ""  # more settings of eval_niah.py
    posloss: str = ""  # more settings of eval_posloss.py
    # output
    out: str = "out/real"  # folder of the results
    table: bool = False  # print the table, and draw the picture

    def __post_init__(self):
        if len(self.files) != 1:
            raise ValueError("name one folder of a Hugging Face model, as in hf/smol")
        if not all(type(length) is int for length in self.lengths):
            raise ValueError(f"lengths={self.lengths} must be whole numbers of tokens, as in "
                             "8192,16384")


def lines_of(folder, c, length, factor):
    """Return {line, which is its tag: settings}. Factors are put in after RoPE is stretched without
    YaRN's temperature, or as it is where it cannot be stretched."""
    lines, before = {"as_it_is": ""}, ""
    if not any(sees_all(c, layer) for layer in range(c.num_hidden_layers)):
        raise UserError(f"all layers of {folder} have windows, so no factor goes into it: choose "
                        "another model")
    if factor == 1:  # the training length alone
        return lines | FACTORS
    try:
        hf_model.stretch(folder, c, LoadConfig(rope_scaling="yarn", rope_factor=factor), length)
        before = f"--rope_factor={factor:g} --rope_scaling=yarn_no_temperature"
        lines |= {"yarn": before.removesuffix("_no_temperature"), "yarn_plain": before}
    except UserError as e:
        reason, _, _ = str(e).partition(": leave")  # the settings are of this program
        print(f"{reason}; factors are put in as it is")
    return lines | {name: before + settings for name, settings in FACTORS.items()}


def commands(cfg, folder, lines, lengths, hays):
    """Yield the evaluations of all lines: 8 pieces, and for each length and kind of hay two prompts
    with ten needles each."""
    for line, settings in lines.items():
        yield (f"eval_posloss.py {folder} --n_seqs=8 {cfg.posloss} --seq_len={max(lengths)} "
               f"{settings} --data_dir={cfg.data_dir} --out={cfg.out} --tag={line}")
    for line, settings in lines.items():
        for hay in hays:
            text = "--haystack=noise" if hay == "noise" else f"--data_dir={cfg.data_dir}"
            yield (f"eval_niah.py {folder} --task=every_depth --depths={NEEDLES} --n_samples=2 "
                   f"--prompt=completion {cfg.niah} "
                   f"--context_sizes={','.join(map(str, lengths))}, {settings} {text} "
                   f"--out={cfg.out} --tag={hay}_{line}")


@torch.no_grad()
def hours(folder, n_lines, lengths):
    """Return how long all lines take here, from the time a T + b T^2 of two texts."""
    model, _ = checkpoint.load_model(folder)
    seconds = []  # a token
    for size in (64, 512, 2048):  # the first one warms up
        size, begin = min(size, model.max_len), time.perf_counter()
        with runtime.autocast(torch.device("cpu"), "auto"):
            model.hidden(torch.zeros(1, size, dtype=torch.long))
        seconds.append((time.perf_counter() - begin) / size)
    b = max(0, seconds[2] - seconds[1]) / (2048 - 512)
    cost = {T: (seconds[1] + b * (T - 512)) * T for T in lengths}
    needles = 5.5 * sum(cost.values())  # 4 prompts; their 40 answers take a third as long again
    return n_lines * (8 * cost[max(lengths)] + needles) / 3600


def read(cfg, folder, line, lengths, hays):
    """Return (needles, a row for each prompt; losses, a row for each piece of text, with a column
    for each position and for `lengths`)."""
    measured = Path(cfg.out, folder.name)
    prompts = [pd.DataFrame(read_lines(measured / f"niah-{hay}_{line}.jsonl")).assign(hay=hay)
               for hay in hays]
    pieces = pd.DataFrame(read_lines(measured / f"posloss-{line}.jsonl")).set_index("i")
    by_position = pieces.filter(like=" loss").squeeze(axis=1).apply(pd.Series).rename(columns=int)
    for T in lengths:  # or the last position before it that was measured
        by_position[T] = by_position[max(at for at in by_position if at <= T)]
    needles = pd.concat(prompts).rename(columns={"every_depth answers": "needles"})
    return needles.astype({"needles": float}), by_position


def surely(values):
    """Return the lower end of the 95 % interval of the mean of a Series."""
    return values.mean() - results.half_interval(values.sem(), len(values))


def share(found):
    """Return the share of needles found as text, with the interval that plot.py's table has."""
    n = len(found)
    error = results.error_of_share(found.sum(), n)
    return results.plus_minus(found.mean(), results.half_interval(error, n))


def table(cfg, folder, lines, lengths, hays):
    """Print a row for each line and the best line by the rule of README.md, and draw real.png."""
    needles, losses, rows = {}, {}, {}
    for line in lines:
        needles[line], losses[line] = read(cfg, folder, line, lengths, hays)
    first, last = min(lengths), max(lengths)
    rival = "yarn" if "yarn" in lines else "as_it_is"
    for line in lines:
        cells = needles[line].groupby(["hay", "size"])["needles"]
        numbers = {"price": (losses[line] - losses["as_it_is"])[first]}
        numbers |= {f"gain {T}": (losses[rival] - losses[line])[T] for T in lengths[1:]}
        rows[line] = {f"{hay} {size}": share(found) for (hay, size), found in cells}
        rows[line] |= {name: with_interval(values) for name, values in numbers.items()}
    print(f"{folder.name}: needles found, loss above the model as it is at {first:,} tokens (price)"
          f", and below {rival} (gain), in nats;\n"
          "±: half of the 95 % interval over needles or pieces")
    print(pd.DataFrame(rows).T.to_string())

    # one number for each prompt, because its ten needles are not independent
    by_prompt = {line: found[found["size"] == last].groupby(["i", "hay"])["needles"].mean()
                 for line, found in needles.items()}
    price = {line: (losses[line] - losses["as_it_is"])[first] for line in lines}
    # a single piece of text has no interval (NaN), and excludes no line
    costs_more = [line for line in lines if surely(price[line]) > 0.01]
    cheap = [line for line in lines if line not in costs_more]
    # chosen and judged by different prompts: the best of many lines is best by chance, too
    is_even = by_prompt[rival].index.get_level_values("i") % 2 == 0
    best = max(cheap, key=lambda line: by_prompt[line][is_even].mean())
    ours, theirs = by_prompt[best][~is_even], by_prompt[rival][~is_even]
    if len(ours) < 3:  # no verdict below three
        judged = "fewer than three odd ones cannot judge it: ask more, with NIAH=--n_samples=6"
    else:
        finds = "more" if surely(ours - theirs) > 0 else "no more beyond doubt"
        judged = (f"in the odd ones it finds {ours.mean():.2f}, which is {finds} than {rival} "
                  f"({theirs.mean():.2f})")
    print(f"For this model: of the lines that cost at most .01 nats at {first:,} tokens, or not "
          f"surely more, {best} finds most needles at {last:,} in even prompts; {judged}.")

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for line in lines:
        left.plot(needles[line].groupby("size")["needles"].mean(), marker="o", label=line)
        right.plot((losses[line] - losses[rival]).mean().sort_index())
    left.set(xscale="log", xlabel="tokens", ylabel="needles found")
    right.set(xscale="log", xlabel="position", ylabel=f"loss above {rival} (nats)")
    left.legend(fontsize=7)
    figure.savefig(Path(cfg.out, "real.png"), dpi=150)


def main():
    cfg = configure(RealConfig)
    folder = Path(*cfg.files)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the commands
        c = hf_model.read_config(folder).get_text_config()
        length = hf_model.length_of(folder, c)
        lengths = tuple(sorted(cfg.lengths)) or (length, 2 * length, 4 * length)
        if min(lengths) != length:
            raise UserError(f"the lengths are in tokens, and begin at the training length: write "
                            f"{length},{2 * length}, or leave them out")
        # a compact vocabulary, of a model that hf.py has exported, lacks the words of the noise
        hays = ["text"] if hasattr(c, "compact_vocab") else ["noise", "text"]
        lines = lines_of(folder, c, length, max(1.0, max(lengths) / length))
        if not cfg.table:
            print(f"{len(lines)} lines at {', '.join(f'{T:,}' for T in lengths)} tokens: about "
                  f"{hours(folder, len(lines), lengths):.1f} hours on this CPU, with 8 pieces and "
                  "40 needles a length")
    if cfg.table:
        table(cfg, folder, lines, lengths, hays)
    else:
        print(*commands(cfg, folder, lines, lengths, hays), sep="\n")


if __name__ == "__main__":
    launch(main)
