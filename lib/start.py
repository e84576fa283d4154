"""The start of a run of train.py or sft.py: where its model comes from, and what is checked."""
import dataclasses
import shutil
from pathlib import Path

import torch

from lib import attention, checkpoint, ranks, runtime, storage
from lib.attention import ModelConfig
from lib.checkpoint import FREE_TO_CHANGE
from lib.errors import UserError, explain
from lib.ranks import print0
from model import GPTConfig

WINDOWS = ("window_pattern", "window")
# the settings of a trained model that --init_from may change
CONVERTIBLE = (*WINDOWS, "attention_type", "rope_theta", "block_size")


# -----------------------------------------------------------------------------
# Where the model comes from. Three functions return (model, metadata). metadata: a dict with the
# keys variant, base, vocab, data and code of a checkpoint (lib/checkpoint.py).


def find_resumable(cfg, data):
    """Return the checkpoint in out_dir, or None. UserError if its settings or data differ."""
    path = checkpoint.find(Path(cfg.out_dir) / "ckpt.pt")
    if not path.exists():
        return None
    state = checkpoint.load(path)
    # without decay, max_iters does not affect the schedule, so a run may become longer
    free = FREE_TO_CHANGE | ({"max_iters"} if cfg.decay == "none" else set())
    # a setting that is newer than the checkpoint counts as default
    old = {f.name: f.default for f in dataclasses.fields(cfg)} | state["config"]
    differences = []
    for key, value in dataclasses.asdict(cfg).items():
        if key not in free and old[key] != value:
            differences.append(f"{key}={old[key]!r} (now {value!r})")
    if state["data"]["digest"] != data["digest"]:
        differences.append("other training data")
    if differences:
        raise UserError(f"{cfg.out_dir} holds another run: it has {', '.join(differences)}; choose "
                        f"another --out_dir (--init_from={cfg.out_dir} trains on from its weights, "
                        "with a new schedule), or delete that folder")
    return state


def resume(cfg, state, device):
    """Return (model, metadata) of the run in cfg.out_dir, whose checkpoint is `state`."""
    print0(f"continuing {cfg.out_dir} after iter {state['iter']:,}")
    checkpoint.allow_attention(state, cfg.out_dir, cfg.attention)
    model = checkpoint.restore(state, device, name=cfg.out_dir)
    metadata = {key: state[key] for key in ("variant", "base", "vocab", "data")}
    metadata["code"] = state.get("code", "unknown")  # hf.py's has none
    code = runtime.code_version()
    if not metadata["code"].endswith(code):
        print0(f"note: this run was trained by the code {metadata['code']}, and this is {code}")
        if state["iter"] < cfg.max_iters:
            metadata["code"] += f" > {code}"
    return model.train(), metadata


def from_checkpoint(cfg, given, data, device):
    """
    Return (model, metadata) of a new run that begins with the weights of cfg.init_from.

    given: {name: value} of what the command and its config files set, even to a default: so
    --attention_type=softmax asks for softmax. data: digest and source of the data.
    """
    state = checkpoint.load(cfg.init_from)
    checkpoint.allow_attention(state, cfg.init_from, given.get("attention", ""))
    trained = state["model_config"]
    given = {key: value for key, value in given.items() if key in trained}
    changes = {key: value for key, value in given.items() if value != trained[key]}
    # All other settings of the model must be the checkpoint's: another n_head, for instance, would
    # load and silently be another model.
    fixed = [f"{key}={trained[key]}" for key in changes if key not in CONVERTIBLE]
    if fixed:
        raise UserError(f"{cfg.init_from} was trained with {', '.join(fixed)}, which cannot "
                        "change now; leave these settings out")
    # the factors of some other types, and RoPE that was stretched, depend on the training length
    plain = trained["attention_type"] in ("softmax", "ssmax") and not trained["rope_scaling"]
    if "block_size" in changes and not plain:
        raise UserError(f"{cfg.init_from} was trained with block_size={trained['block_size']}, "
                        "which can change only in softmax and ssmax models whose RoPE is not "
                        "stretched; leave it out")
    same = [f"{key}={given[key]}" for key in WINDOWS if key in given]
    if same and not changes:
        print0(f"note: {cfg.init_from} has {', '.join(same)} already, so it is not converted, but "
               "trained further as it is")
    model = checkpoint.restore(state, device, name=cfg.init_from, **changes)
    if changes:
        was_to_is = [f"{key} {trained[key] or 'none'} -> {changes[key] or 'none'}"
                      for key in changes]
        print0(f"converted {cfg.init_from}: {', '.join(was_to_is)}")
        if "window_pattern" in changes and trained["attention_type"] != "softmax":
            print0("note: in layers with a window the factor on the queries no longer depends on "
                   "n; it is now the mean of its values up to the window")
    variant = checkpoint.variant_of(state, model) + switch_name(cfg)
    if "window_pattern" in changes:
        variant += ", converted"
    return model.train(), {
        "variant": cfg.variant or variant,
        "base": state["config"] | {key: state[key] for key in ("iter", "data", "base")},
        "vocab": state["vocab"],
        "data": data,
        "code": runtime.code_version(),
    }


def switch_name(cfg):
    return f">>{cfg.switch_attention_type}" if cfg.switch_iter else ""  # softmax>>ssmax is (f)


def from_scratch(cfg, corpus, device):
    """Return (model, metadata) of a new run with random weights."""
    # the corpus defines the vocabulary; a vocab_size that is set must agree with it
    if cfg.vocab_size not in (GPTConfig.vocab_size, corpus.vocab_size):
        raise UserError(f"{cfg.data_dir} has a vocabulary of {corpus.vocab_size} ids, not "
                        f"vocab_size={cfg.vocab_size}; leave vocab_size out")
    settings = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(ModelConfig)}
    settings["vocab_size"] = corpus.vocab_size
    # Initialized on the CPU, so that the weights do not depend on the device. They do not depend on
    # the attention type either, because s, b and g are not random.
    torch.manual_seed(cfg.seed)
    model = attention.build(ModelConfig(**settings)).to(device)
    return model.train(), {
        "variant": cfg.variant or attention.name_of(cfg) + switch_name(cfg),
        "base": None,
        "vocab": corpus.vocab,
        "data": corpus.data,
        "code": runtime.code_version(),
    }


# -----------------------------------------------------------------------------
# what is checked


def check_ranks(cfg, metadata, resumed):
    """
    Raise UserError unless all ranks have the same settings, data and weights. Each reads files of
    its own machine, and the ranks would otherwise add up gradients of different runs.
    """
    run = {key: value for key, value in dataclasses.asdict(cfg).items()
           if key not in FREE_TO_CHANGE}
    run["the data in data_dir"] = metadata["data"]["digest"]
    run["the checkpoint of init_from"] = metadata["base"]
    run["the checkpoint in out_dir"] = resumed and resumed["fingerprint"]
    runs = ranks.all_gather(run)
    if differences := [key for key in run if any(other[key] != runs[0][key] for other in runs)]:
        raise UserError(f"the ranks differ in {', '.join(differences)}; start all of them with the "
                        "same command, and with these folders on a disk that all machines share")


def check_schedule(cfg, model, start):
    """
    Print a note on a schedule that is longer than the run. UserError if the model has no scale to
    train (train_only), or cannot be switched (f).
    """
    lengths = {"warmup_iters": cfg.warmup_iters}
    if cfg.decay != "none":
        lengths["decay_iters"] = cfg.decay_iters
    for key, length in lengths.items():
        if 0 < cfg.max_iters < length:
            print0(f"note: {key}={length:,} is longer than the run of {cfg.max_iters:,} updates; "
                   f"set --{key}")
    if cfg.train_only and not model.learned_scales():
        raise UserError(f"train_only=scales: attention_type={model.config.attention_type} learns "
                        "no scale; choose another, such as ssmax")
    if cfg.switch_iter and start <= cfg.switch_iter:  # it is still to come
        if model.config.attention_type != "softmax":
            raise UserError(f"switch_iter={cfg.switch_iter} needs a softmax model to switch from, "
                            f"not {model.config.attention_type}: leave switch_iter out")
        with explain("the model cannot be switched; leave switch_iter out", ValueError):
            dataclasses.replace(model.config, attention_type=cfg.switch_attention_type)


def prepare_folder(folder, model, resumed):
    """Make the folder of a run. UserError if a new run finds results in it, or a full disk."""
    with storage.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    storage.lock(folder / "ckpt.pt")
    if resumed:
        return
    results = sorted({path.name for path in folder.glob("[!.]*.json*")} - {"log.jsonl"})
    if results:
        raise UserError(f"{folder} holds results of an earlier run: {', '.join(results)}; choose "
                        "another --out_dir, or move them away")
    # A new run needs room for ckpt.pt, ckpt_prev.pt and the one that is being written. They take 12
    # bytes for each parameter: the weight and AdamW's two moments.
    needed, free = 3 * 12 * model.num_params(), shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(f"{folder} has {free / 1e9:.1f} GB free, but the checkpoints of this model "
                        f"take {needed / 1e9:.1f} GB; make room or choose another --out_dir")
