"""Print the commands of run.sh, one a line, or with --table=True the table of their results."""
import contextlib
import copy
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import transformers
from matplotlib import colormaps

from experiments import tables
from experiments.tables import INDEX, with_interval
from experiments.verdicts import FEWEST, by_seed
from lib import checkpoint, results, runtime
from lib.checkpoint import LoadConfig
from lib.config import configure
from lib.errors import UserError, explain, launch
from lib.interop import hf_model
from lib.loss import losses_in_chunks
from lib.storage import atomic_write, read_lines
from ssmax_hf import add_ssmax

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
    with torch.device("meta"), explain(f"no factor can be put into {folder}: choose another model",
                                       ValueError):
        empty = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(c))
        add_ssmax(empty, "logn_clip", length=length)
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
    """Return how long all lines take here, from the times of four pieces of a text, of which each
    takes longer than the one before."""
    model, _ = checkpoint.load_model(folder)
    piece, cache, seconds = int(min(hf_model.PIECE, model.max_len / 4)), model.new_cache(), []
    idx = torch.zeros(1, piece, dtype=torch.long)
    for _ in range(4):
        begin = time.perf_counter()
        with runtime.autocast(torch.device("cpu"), "auto"):
            states = torch.cat(model.read(idx, cache), dim=1)[0]
            losses_in_chunks(states, model.lm_head.weight, idx[0], chunk=256)
        seconds.append(time.perf_counter() - begin)
    longer = max(0, seconds[3] - seconds[1]) / 2  # the first one warms up
    n_pieces = {T: T / piece for T in lengths}
    cost = {T: n * seconds[1] + longer * n * n / 2 for T, n in n_pieces.items()}
    needles = 5.5 * sum(cost.values())  # 4 prompts; their 40 answers take a third as long again
    return n_lines * (8 * cost[max(lengths)] + needles) / 3600


def rows_of(cfg, folder, line, lengths, hays):
    """
    Return the rows of results.csv of a line. Their seed is the number of a piece of text or prompt,
    and begins at 100 in noise. LINE|beyond has the mean loss from 1.05 N on.
    """
    measured, numbers = Path(cfg.out, folder.name), []
    for hay in hays:
        answers = pd.DataFrame(read_lines(measured / f"niah-{hay}_{line}.jsonl"))
        for (size, i), prompt in answers.groupby(["size", "i"]):
            number = prompt["text"].str.extract(r"^\s*([\d,]*)", expand=False).str.replace(",", "")
            found = {"needles": prompt["every_depth answers"],
                     "needles, any of the prompt's": number.isin(prompt["answer"])}
            numbers += [("", measure, size, i + 100 * (hay == "noise"), each.mean(), len(each))
                        for measure, each in found.items()]
    for record in read_lines(measured / f"posloss-{line}.jsonl"):
        losses = next(pd.Series(value) for value in record.values() if isinstance(value, dict))
        losses.index = losses.index.astype(int)
        # at each length, or the last position before it that was measured
        numbers += [("", "loss", T, record["i"], losses[losses.index <= T].iloc[-1], 1)
                    for T in lengths]
        steps = losses.index.to_series().diff()[losses.index > 1.05 * min(lengths)]
        if len(steps):
            beyond = np.average(losses[steps.index], weights=steps)
            numbers.append(("beyond", "loss", max(lengths), record["i"], beyond, 1))
    rows = pd.DataFrame(numbers, columns=["part", "measure", "tokens", "seed", "value", "n"])
    names = line + rows["part"].replace("beyond", "|beyond")
    return rows.assign(line=names, error=math.nan)[tables.COLUMNS].astype({"value": float})


def surely(values):
    """Return the lower end of the 95 % interval of the mean of a Series."""
    return values.mean() - results.half_interval(values.sem(), len(values))


def share(prompts):
    """Return the share of needles found in some prompts as text, with the interval that plot.py's
    table has."""
    n = prompts["n"].sum()
    found = (prompts["value"] * prompts["n"]).sum()
    half = results.half_interval(results.error_of_share(found, n), n)
    return results.plus_minus(found / n, half)


def table(cfg, folder, lines, lengths, hays):
    """Write results.csv, print a row for each line and the best line by the rule of README.md, and
    draw real.png."""
    rows = pd.concat([rows_of(cfg, folder, line, lengths, hays) for line in lines])
    with atomic_write(Path(cfg.out, "results.csv"), "w") as file:
        rows.round({"value": 4}).to_csv(file, index=False)
    values = rows.set_index(INDEX)["value"].sort_index()
    first, last = min(lengths), max(lengths)
    rival = "yarn" if "yarn" in lines else "as_it_is"
    price = {line: by_seed(values, line, "loss", first) - by_seed(values, "as_it_is", "loss", first)
             for line in lines}
    cells = {}
    for line in lines:
        prompts = rows[(rows["line"] == line) & (rows["measure"] == "needles")]
        by_hay = prompts.assign(hay=np.where(prompts["seed"] < 100, "text", "noise"))
        cells[line] = {f"{hay} {size}": share(part)
                       for (hay, size), part in by_hay.groupby(["hay", "tokens"])}
        cells[line]["price"] = with_interval(price[line])
        for T in lengths[1:]:
            gain = by_seed(values, rival, "loss", T) - by_seed(values, line, "loss", T)
            cells[line][f"gain {T}"] = with_interval(gain)
    print(f"{folder.name}: needles found, loss above the model as it is at {first:,} tokens (price)"
          f", and below {rival} (gain), in nats;\n"
          "±: half of the 95 % interval over needles or pieces")
    print(pd.DataFrame(cells).T.to_string())

    # one number for each prompt, because its ten needles are not independent
    found = {line: by_seed(values, line, "needles", last) for line in lines}
    # a single piece of text has no interval (NaN), and excludes no line
    cheap = [line for line in lines if not surely(price[line]) > 0.01]
    # chosen and judged by different prompts: the best of many lines is best by chance, too
    is_even = found[rival].index % 2 == 0
    best = max(cheap, key=lambda line: found[line][is_even].mean())
    ours, theirs = found[best][~is_even], found[rival][~is_even]
    if len(ours) < FEWEST:
        judged = "fewer than three odd ones cannot judge it: ask more, with NIAH=--n_samples=6"
    else:
        finds = "more" if surely(ours - theirs) > 0 else "no more beyond doubt"
        judged = (f"in the odd ones it finds {ours.mean():.2f}, which is {finds} than {rival} "
                  f"({theirs.mean():.2f})")
    print(f"For this model: of the lines that cost at most .01 nats at {first:,} tokens, or not "
          f"surely more, {best} finds most needles at {last:,} in even prompts; {judged}.")

    labels = [f"{line} (baseline)" if line == rival else line for line in lines]
    shown = pd.DataFrame({"line": list(lines), "label": labels, "baseline": rival, "block": first,
                          "colour": colormaps["tab20"].colors[:len(lines)]})
    tables.draw_lines(tables.with_prices(values, shown), shown, Path(cfg.out, "real.png"))


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
