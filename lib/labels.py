"""
The label of a curve (lib/results.py), and its colour. The label is the variant, the tag, and the
settings in which the curve differs from the others of a figure or table.
"""
from types import SimpleNamespace

from lib import checkpoint
from lib.checkpoint import FREE_TO_CHANGE
from lib.errors import explain

# {variant: (label, colour)}. A variant has the same colour in every figure. The colours suit
# colour-blind readers (Okabe and Ito). Other variants get one of PALETTE.
VARIANTS = {
    "softmax": ("(a) softmax", "#D55E00"),
    "ssmax": ("(b) SSMax", "#0072B2"),
    "ssmax_s1": ("(c) SSMax, s = 1", "#56B4E9"),
    "ssmax_bias": ("(d) SSMax with bias", "#009E73"),
    "softmax>ssmax": ("(e) swapped after", "#E69F00"),
    "softmax>>ssmax": ("(f) swapped during", "#CC79A7"),
    "pn": ("learned p_n", "#000000"),
    "head_scale": ("head_scale (control)", "#8C8C8C"),
    "softmax>head_scale": ("(a), head_scale swapped in", "#7F5539"),
}
PALETTE = ("#6A3D9A", "#B2182B", "#1B7837", "#C51B7D", "#01665E", "#8C6D1F", "#4D4D99", "#5E9C00")
LINES = ("-", "--", "-.", ":")  # line styles of the curves of one colour
# Settings that no result depends on, or that a label already shows in other words
IGNORED = FREE_TO_CHANGE | {"init_from", "variant", "tag", "checkpoint", "base"}
# Beginnings of the names of settings that the variant's name already says. A label adds them only
# to tell two curves of one variant apart.
OF_VARIANT = ("attention_type", "switch_", "swap_scale")
OFF = ("", "0", "0.0", "False", "None")  # values that a label does not say


def set_labels(curves):
    """Give each of the curves of one file type a label that no other one has."""
    for curve in curves:
        first = curve.first
        name = first.variant.replace(">>", " switched to ").replace(">", " swapped to ")
        if first.variant in VARIANTS:
            name, _ = VARIANTS[first.variant]
        if first.tag:
            name += f" [{first.tag}]"
        parts = [name, *differences(first, [other.first for other in curves]), *first.warnings]
        if len(curve.results) > 1:
            parts.append(f"{len(curve.results)} seeds")
        curve.label = ", ".join(parts)
    labels = [curve.label for curve in curves]
    for curve in curves:
        if labels.count(curve.label) > 1:
            curve.label += f" ({curve.first.path.parent})"


def differences(result, others):
    """
    Return "name=value" for each setting that is on, and differs from that of another result. For
    instance, ["window=32"] if one of the others has no window.
    """
    texts = []
    for name, value in sorted(result.settings.items()):
        if name.split()[-1] in ("rope_theta", "rope_scaling", "rope_factor"):
            continue  # "RoPE" says it in words
        # a setting that is missing is off
        values = {other.settings.get(name, "") for other in compared_with(name, result, others)}
        if value in OFF or values == {value}:
            continue
        texts.append(value if name == "RoPE" else f"{name}={value}")
    return texts


def compared_with(name, result, others):
    """
    Return the results with which a setting of one of them is compared:

        what the variant's name says: those of the same variant
        settings of the training: if it began from a checkpoint, those that did, too; else those
            that began with random weights
        other settings: all

    For instance, learning_rate is compared among the conversions and among the runs from scratch.
    """
    if is_of_variant(name):
        others = [other for other in others if other.variant == result.variant]
    first = name.split()[0]
    of_training = first in result.config and first not in result.model and first != "init_from"
    if of_training or first in ("base", "data"):
        continued = bool(result.header["base"])
        others = [other for other in others if bool(other.header["base"]) == continued]
    return others


def is_of_variant(name):
    """Return whether the variant's name says the setting, whose name may have a prefix."""
    return name.split()[-1].startswith(OF_VARIANT)


def settings_of(result):
    """
    Return {name: text} of all settings that a result depends on, but the seeds of training. Names
    begin with "eval" in the evaluation, and with "base" in the run that the training began from.
    """
    base = result.header["base"]
    data = result.header.get("train_data", result.data)
    settings = flatten(result.config | result.model | {"data": data})
    settings |= flatten({"eval": result.evaluation, "base": base or {}})
    settings["init_from"] = "a checkpoint" if base else ""
    settings["RoPE"] = rope_of(result.model)
    return settings


def flatten(settings, prefix=""):
    """Return {name: text} of nested settings. A name begins with those of the dicts around it."""
    texts = {}
    for name, value in settings.items():
        if name == "data" and isinstance(value, dict):
            # Corpora generated with different seeds count as the same text.
            generated = "seed" in value["source"]
            value = value["source"] if generated else {"digest": value["digest"]}
        if isinstance(value, dict):
            texts |= flatten(value, f"{prefix}{name} ")
        elif name not in IGNORED and (name != "seed" or prefix == "eval "):
            texts[prefix + name] = str(value)
    return texts


def rope_of(config):
    """Return the RoPE that a model was measured with, as in "RoPE theta 500,000"."""
    model = SimpleNamespace(**config)
    scaling = model.rope_scaling
    if "R" not in (model.window_pattern or "R") or scaling == "nope" or "alibi" in model.attention:
        in_windows = f"RoPE theta {model.rope_theta:,.0f} in windows"
        return in_windows if "S" in model.window_pattern else "no RoPE"
    theta = model.rope_theta * (model.rope_factor if scaling == "theta" else 1)
    name = f"RoPE theta {theta:,.0f}"
    return name if scaling in ("", "theta") else f"{name}, {scaling} x {model.rope_factor:g}"


def warnings_of(result):
    """Return what a label warns of: the run was unfinished when it was measured, or the ckpt.pt
    beside the result has changed since."""
    total = result.config.get("max_iters")  # an imported model has none
    done = result.header.get("iter")
    if result.file_type == "log":
        done = result.records["iter"].max()
    warnings = []
    if total and done < total:
        warnings.append(f"update {done:,} of {total:,}")
    beside = result.path.with_name("ckpt.pt")  # is not there if the result was moved
    if "checkpoint" in result.evaluation and beside.exists():
        with explain(f"{beside} is damaged; move it away"):
            if checkpoint.fingerprint(beside) != result.evaluation["checkpoint"]:
                warnings.append("not of the ckpt.pt beside it")
    return tuple(warnings)
