"""
Tables, verdicts and figure of the conversion of trained models. README.md in this folder discusses
them.

    python -m experiments.convert.convert                    of the stored results
    python -m experiments.convert.convert out/convert --out=FOLDER
                            of these and new ones; writes results.csv and convert.png
    python -m experiments.convert.convert --text=out/convert_text --out=FOLDER
                            of the stored results and new ones on text
"""
from dataclasses import dataclass
from pathlib import Path

from experiments import verdicts
from experiments.windows import windows
from experiments.windows.windows import collect
from lib import results
from lib.config import configure
from lib.errors import launch

HERE = Path(__file__).parent
SIZES = (128, 512, 1024, 2048, 8192, 16384, 32768, 65536)
SCORED = (128, 1024, 8192, 32768)
TEXT_SIZES = (256, 1024, 2048, 5120)
FACTORS = {"softmax": "no factor", "head_scale": "constant, learned", "ssmax": "SSMax"}
ROWS = {"rope|trained": "before, as trained", "rope|theta50": "before, theta x 50",
        "rope|yarn": "before, YaRN"}
NOT_CONVERTED = {"rope": "before, as trained"}
for _updates in (100, 400, 1200):
    NOT_CONVERTED[f"rope.{_updates}"] = f"not converted, {_updates:,} updates more"
    ROWS |= {f"{factor}.{_updates}": f"{name}, {_updates:,} updates"
             for factor, name in FACTORS.items()}
NOT_CONVERTED["rope.random"] = "not converted, 400 updates more in random order"
AFTERWARDS = {
    **{f"{factor}.random": f"{name}, 400 updates in random order"
       for factor, name in FACTORS.items()},
    "softmax.400|e": "no factor, then (e) swapped in",
    "softmax.400|clip": "no factor, then `logn_clip` swapped in",
    "softmax.400|constant": "no factor, then a constant of 2 swapped in",
    "from_ssmax.400": "(b), converted",
    "softmax.rope|theta50": "no factor, RoPE kept, theta x 50",
    "ssmax.rope|theta50": "SSMax, RoPE kept, theta x 50",
    "softmax.rope|yarn": "no factor, RoPE kept, YaRN",
    "ssmax.rope|yarn": "SSMax, RoPE kept, YaRN",
    "softmax.window16": "no factor, windows of 16", "ssmax.window16": "SSMax, windows of 16",
    "softmax.window64": "no factor, windows of 64", "ssmax.window64": "SSMax, windows of 64"}
TEXT_ROWS = {
    "rope": "before, as trained", "rope|theta50": "before, theta x 50", "rope|yarn": "before, YaRN",
    "rope.80": "not converted, 80 updates more", "windows": "windows from the beginning",
    "softmax.80": "converted, no factor", "ssmax.80": "converted, SSMax"}
TABLES = (  # (title, measure, sizes, digits)
    ("Top needle score, median of the trials", "score", SCORED, 3),
    ("Weight of the retrieval heads on the needle", "weight", SCORED, 3),
    ("Needle ranked first by a retrieval head", "ranked first", SCORED, 2),
    ("Needles found among 15 other cities", "look_15", (1024, 8192), 2))
# {row: (name, colour)} of the figure
IN_SEQUENCE = {"softmax.400": ("softmax (converted: no factor)", "#D55E00"),
               "softmax.400|constant": ("softmax, constant 2 put in", "#E69F00"),
               "head_scale.400": ("control: learned constant", "#8C8C8C"),
               "ssmax.400": ("SSMax", "#0072B2"),
               "rope|trained": ("before, as trained", "#6A3D9A"),
               "rope|yarn": ("before, YaRN factor 64", "#7F5539")}
IN_RANDOM_ORDER = {f"{name}.random": IN_SEQUENCE[f"{name}.400"] for name in FACTORS}


@dataclass(frozen=True)
class ConvertConfig(verdicts.ExperimentConfig):
    # arguments
    text: tuple = ()  # out/convert_text, the folder of new results on text


def collect_all(folder):
    """Return the table of out/convert: what was measured, and the least and largest s of a run's L
    layer, in the end."""
    rows = verdicts.named(results.load([Path(folder) / "trained"]))
    of_l = rows[rows["measure"].str.startswith("s 2.") & rows["run"].str.startswith("ssmax.")]
    lines = []
    for (line, seed), s in of_l.groupby(["line", "seed"])["value"]:
        lines += [[line, "least s", 128, seed, s.min()], [line, "largest s", 128, seed, s.max()]]
    return verdicts.merge(collect(folder, SIZES), verdicts.table_of(lines))


def collect_text(folder):
    return collect(folder, TEXT_SIZES)


def print_tables(tables):
    path, needles = HERE / "predictions.csv", tables["results"]
    verdicts.print_verdicts(verdicts.read_predictions(path, needles, "needles"))
    of_needles = ("Needles found, all digits right", "needles", SIZES, 2)
    of_loss = ("Test loss (nats) before a position", "loss", (128, 512, 2048, 8192), 3)
    for rows in (ROWS | NOT_CONVERTED, AFTERWARDS):
        for table in (of_needles, of_loss):
            verdicts.print_by_size(needles, rows, *table)
    for table in TABLES:
        verdicts.print_by_size(needles, ROWS, *table)
    for measure in ("least s", "largest s"):
        title = f"{measure} of the L layer's heads after the conversion"
        verdicts.print_by_size(needles, ROWS, title, measure, (128,), 3)
    text = tables["text"]
    verdicts.print_verdicts(verdicts.read_predictions(path, text, "text"), " on text")
    title = "Loss on text (nats) before a position"
    verdicts.print_by_size(text, TEXT_ROWS, title, "loss", TEXT_SIZES, 3, block=256)


def draw(table, path):
    """Draw the figure of README.md: models trained with windows, and converted ones."""
    from_scratch = verdicts.read_stored(HERE.parent / "windows/results.csv")
    verdicts.draw_panels(path, {
        "Trained with windows": (from_scratch, "needles", SIZES, windows.DRAWN),
        "Converted, text in sequence": (table, "needles", SIZES, IN_SEQUENCE),
        "Converted, text in random order": (table, "needles", SIZES, IN_RANDOM_ORDER)},
        windows.BLOCK)


def main():
    cfg = configure(ConvertConfig)
    tables = {}
    for name, folders, of_folder in (("results", cfg.files, collect_all),
                                     ("text", cfg.text, collect_text)):
        tables[name] = verdicts.with_new(HERE / f"{name}.csv", folders, of_folder)
    print_tables(tables)
    if cfg.out:
        for name, table in tables.items():
            verdicts.write_stored(table, Path(cfg.out) / f"{name}.csv")
        draw(tables["results"], Path(cfg.out) / "convert.png")


if __name__ == "__main__":
    launch(main)
