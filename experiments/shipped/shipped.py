"""
Tables, verdicts and figure of the factors that published models ship. README.md in this folder
discusses them.

    python -m experiments.shipped.shipped                            of the stored results
    python -m experiments.shipped.shipped out/shipped --out=FOLDER   of these and new ones; writes
                                                                     results.csv and price.png
"""
from pathlib import Path

import pandas as pd

import plot
from experiments import verdicts
from experiments.verdicts import ExperimentConfig, by_seed, minus, number
from lib import results
from lib.config import configure
from lib.errors import launch

HERE = Path(__file__).parent
SIZES = (128, 2048, 8192, 32768, 65536, 131072)
LOSS_SIZES = (128, 2048, 8192)
ROPE_SIZES = (128, 512, 1024)  # of the models whose first layer has RoPE and sees all keys
YARN_SIZES = (128, 512, 1024, 2048)  # of the models with RoPE in all layers
CONSTANTS = ("1.5", "2", "3", "4", "6")
TRAINED = {
    "softmax": "softmax", "ssmax": "SSMax", "ssmax_bias_s0": "(d) from s = 0 (Mistral Large 4)",
    "power": "power (Beam)", "llama4": "llama4 (Llama 4)",
    "constant_norm": "constant_norm (Muse Spark)", "head_scale": "control: learned constant"}
PUT_IN = {
    "e": "SSMax, (e)", "clip": "the clip (Qwen)", "power": "power (Beam)",
    "log_floor": "log_floor (Inkling)", **{f"constant_{c}": f"constant {c}" for c in CONSTANTS},
    "chosen": "the constant with the best validation loss at 16x"}
IN_BF16 = ("ssmax", "ssmax_bias_s0")  # also measured with the factor in bf16 (bf16.py)
PARTS = {  # {beginning of a line's name: title}
    "converted.": "converted to windows, 400 updates", "": "trained with windows, SL",
    "four.": "trained with windows, four layers, SLSL"}
MISTRAL = {  # the same, of the arrangement of Mistral Large 4 in small
    "rl.": "RL: RoPE and all keys in layer 1, no position in layer 2",
    "rrrl.": "RRRL: RoPE and all keys in layers 1 to 3, no position in layer 4"}
DRAWN = {  # {line without its part: (label, colour)} of the figure; a factor has one colour
    "softmax": ("no factor", "#D55E00"),
    "ssmax": ("SSMax, trained", "#0072B2"), "softmax|e": ("SSMax, put in", "#0072B2"),
    "power": ("power, trained", "#009E73"), "softmax|power": ("power, put in", "#009E73"),
    "ssmax_bias_s0": ("(d) from s = 0, trained", "#56B4E9"),
    "llama4": ("llama4, trained", "#8C6D1F"), "softmax|log_floor": ("log_floor, put in", "#D4B24C"),
    "softmax|clip": ("the clip, put in", "#CC79A7"),
    "head_scale": ("learned constant", "#8C8C8C")}
A_CONSTANT = "a constant, put in"  # label of the line of CONSTANTS


def collect(folder):
    """Return the table of the results in FOLDER/measured."""
    measured = Path(folder) / "measured"
    folders = [path for path in sorted(measured.iterdir()) if path.name != "validation"]
    table = verdicts.collect(verdicts.named(results.load(folders)), {"needles": "needles"},
                             SIZES + ROPE_SIZES + YARN_SIZES)
    if not (measured / "validation").exists():
        return table
    rows = verdicts.named(results.load([measured / "validation"]))
    validation = verdicts.collect(rows, {}, (2048,)).rename(index={"loss": "validation loss"})
    return verdicts.merge(table, validation)


def with_chosen_constants(table):
    """
    Return the table with the lines softmax|chosen: for each seed the results of the constant, out
    of 1 and CONSTANTS, whose validation loss at 16 times the training length is lowest.
    """
    tables = [table]
    for part in PARTS:
        softmax = f"{part}softmax"
        lines = [softmax, *(f"{softmax}|constant_{constant}" for constant in CONSTANTS)]
        losses = pd.DataFrame({line: by_seed(table, line, "validation loss", 2048)
                               for line in lines}).dropna()
        for seed, line in losses.idxmin(axis="columns").items():
            chosen = table.loc[[line]]
            chosen = chosen[chosen.index.get_level_values("seed") == seed]
            tables.append(chosen.rename(index={line: f"{softmax}|chosen"}, level="line"))
    return pd.concat(tables).sort_index()


def price(table, line, size):
    """Return by seed how much the loss of a line is above that of its part's softmax, in nats."""
    part = max((part for part in PARTS if line.startswith(part)), key=len)
    return minus(by_seed(table, line, "loss", size), by_seed(table, f"{part}softmax", "loss", size))


def names_of(part):
    """Return {line: its name} of a part, in the order of the tables."""
    names = {part + line: name for line, name in TRAINED.items()}
    names |= {f"{part}{line}|bf16": f"{TRAINED[line]}, factor in bf16" for line in IN_BF16}
    return names | {f"{part}softmax|{tag}": f"softmax + {name}" for tag, name in PUT_IN.items()}


def print_tables(table):
    predictions = verdicts.read_predictions(HERE / "predictions.csv", table)
    verdicts.print_verdicts(predictions)
    for part, title in PARTS.items():
        names = names_of(part)
        verdicts.print_by_size(table, names, f"Needles found; {title}", "needles", SIZES)
        verdicts.print_by_size(table, names, f"Test loss (nats); {title}", "loss", LOSS_SIZES, 3)
        prices = {name: [price(table, line, size) for size in LOSS_SIZES]
                  for line, name in names.items()}
        verdicts.markdown(
            f"The price, loss above that of softmax (nats); {title}: mean over the seeds ± half of "
            "its 95 % interval", ["", "seeds", *(f"{size // 128}x" for size in LOSS_SIZES)],
            [[name, len(values[0]), *map(number, values)] for name, values in prices.items()
             if len(values[0])])
    names = {"rope": "as trained", "rope|yarn": "YaRN"}
    names |= {f"rope|yarn_{tag}": f"YaRN + {PUT_IN[tag]}"
              for tag in ("e", "clip", "power", "log_floor", "constant_1.5")}
    title = "RoPE in all layers, stretched 16 times by YaRN"
    verdicts.print_by_size(table, names, f"Needles found; {title}", "needles", YARN_SIZES)
    verdicts.print_by_size(table, names, f"Test loss (nats); {title}", "loss", YARN_SIZES, 3)
    for part, title in MISTRAL.items():
        names = {f"{part}{line}{tag}": name + stretched for line, name in TRAINED.items()
                 for tag, stretched in (("", ""), ("|yarn", ", stretched 8 times by YaRN"))}
        names |= {f"{part}softmax|yarn_published": "softmax, stretched by YaRN with its constant"}
        names |= {f"{part}softmax|yarn_{tag}": f"softmax, stretched by YaRN + {PUT_IN[tag]}"
                  for tag in ("clip", "constant_2", "constant_3")}
        verdicts.print_by_size(table, names, f"Needles found; {title}", "needles", ROPE_SIZES)
        verdicts.print_by_size(table, names, f"Test loss (nats); {title}", "loss", ROPE_SIZES, 3)


def draw(table, path):
    """
    Draw what a factor costs and what it gives: needles found far beyond the training length against
    the loss above that of softmax without a factor. Large: mean of the seeds; small: one seed.
    """
    parts = {"converted.": ("Converted to windows", 32768), "": ("Trained with windows", 65536),
             "four.": ("Four layers with windows", 65536)}
    parts = {part: of_part for part, of_part in parts.items()
             if len(by_seed(table, f"{part}softmax", "loss", 128))}
    figure = plot.new_figure(figsize=(8.4, 3.4 * len(parts) + 0.7))
    axes = figure.subplots(len(parts), 2, squeeze=False)
    for (part, (title, size)), of_part in zip(parts.items(), axes, strict=True):
        for axis, length in zip(of_part, (128, 2048), strict=True):
            draw_price(axis, table, part, size, length)
            axis.set_title(f"{title}: loss at {length // 128}x")
            axis.set_ylabel(f"needles found at {size // 128}x")
    handles = {}  # by label; a part may lack some of the lines
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.tight_layout(rect=(0, 0.19 / len(parts), 1, 1))
    labels = [label for label, _ in DRAWN.values() if label in handles] + [A_CONSTANT]
    figure.legend([handles[label] for label in labels], labels, loc="lower center", ncols=4)
    plot.save(figure, path)


def draw_front(table, path):
    """Draw the figure of the front page: what some factors of `draw` get and cost in converted
    models, by the length of the text. Line: mean of the seeds; bar: 95 % interval."""
    shown = {
        "softmax": ("no factor", "#D55E00"), "head_scale": ("a learned constant", "#8C8C8C"),
        "softmax|constant_1.5": ("a constant of 1.5, put in", "#56B4E9"),
        "softmax|constant_3": ("a constant of 3, put in", "#E69F00"),
        "softmax|power": ("power, put in", "#009E73"),
        "softmax|clip": ("the clip, put in", "#CC79A7"), "ssmax": ("SSMax, trained", "#0072B2")}
    figure = plot.new_figure(figsize=(8.4, 4.0))
    gets, costs = figure.subplots(1, 2)
    for line, (label, color) in shown.items():
        line = f"converted.{line}"
        needles = {size: by_seed(table, line, "needles", size) for size in SIZES}
        prices = {size: price(table, line, size) for size in LOSS_SIZES}
        for axis, values in ((gets, needles), (costs, prices)):
            means, errors = zip(*(verdicts.interval(seeds) for seeds in values.values()),
                                strict=True)
            axis.errorbar([size / 128 for size in values], means, errors, color=color, label=label,
                          marker="o", markersize=4, elinewidth=1, capsize=2)
    gets.set_title("What you get: needles found")
    costs.set_title("What you pay: loss above that without a factor (nats)")
    for axis, sizes in ((gets, SIZES), (costs, LOSS_SIZES)):
        axis.set_xscale("log", base=2)
        names = [f"{size // 128:,}x" for size in sizes]
        if len(names) > 4:  # no room for all names in one line
            names[-2] = f"\n{names[-2]}"
        axis.set_xticks([size / 128 for size in sizes], names)
        axis.set_xlabel("length of the text / training length")
        axis.grid(axis="y", color="0.9")
    gets.set_ylim(-0.02, 1.02)  # an interval may be wider, but a share is not
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.legend(*gets.get_legend_handles_labels(), loc="lower center", ncols=4)
    plot.save(figure, path)


def draw_price(axis, table, part, size, length):
    """Draw one panel: needles at `size` tokens against the loss at `length` tokens."""
    def price_and_needles(line):
        needles = by_seed(table, part + line, "needles", size)
        of_seeds = {"price": price(table, part + line, length), "needles": needles}
        return pd.DataFrame(of_seeds).dropna()

    axis.axvline(0, color="0.8", zorder=0)
    for line, (label, color) in DRAWN.items():
        seeds = price_and_needles(line)
        if len(seeds):
            marker = "s" if "|" in line else "o"  # square: put in afterwards
            axis.scatter(seeds["price"], seeds["needles"], color=color, alpha=0.3, s=8)
            axis.scatter(*seeds.mean(), color=color, marker=marker, s=60, label=label, zorder=3)
    constants = {c: price_and_needles(f"softmax|constant_{c}").mean() for c in CONSTANTS}
    constants = {c: mean for c, mean in constants.items() if mean.notna().all()}
    if constants:
        axis.plot(*zip(*constants.values(), strict=True), color="#E69F00", marker="s", markersize=4,
                  label=A_CONSTANT)
    for constant, mean in constants.items():
        axis.annotate(constant, mean, xytext=(4, -11), textcoords="offset points", fontsize=8)
    axis.set_xlabel("loss above that without a factor (nats)")
    axis.set_ylim(-0.03, 1.05)


def main():
    cfg = configure(ExperimentConfig)
    table = verdicts.with_new(HERE / "results.csv", cfg.files, collect)
    print_tables(with_chosen_constants(table))
    if cfg.out:
        verdicts.write_stored(table, Path(cfg.out) / "results.csv")
        draw(table, Path(cfg.out) / "price.png")
        draw_front(table, Path(cfg.out) / "front.png")


if __name__ == "__main__":
    launch(main)
