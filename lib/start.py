"""The start of a run of train.py or sft.py: is it resumed, or where does its model come from?"""
import copy
import dataclasses
from pathlib import Path

import torch

from lib import checkpoint, config, models, ranks, runtime, storage
from lib.config import NOT_IN_A_RESULT
from lib.errors import UserError, explain
from lib.models import ModelConfig
from lib.ranks import print0
from lib.text import check_same_vocab
from model import ATTENTION, GPTConfig, log_n, one

# the settings of a trained model that --init_from may change
CONVERTIBLE = {
    "window_pattern", "window", "attention_type", "doc_mask", "rope_theta", "block_size"}
MAY_DIFFER_BY_RANK = {"device", "out_dir", "data_dir"}  # settings that may differ between ranks
MODEL_SETTINGS = [field.name for field in dataclasses.fields(ModelConfig)]


def begin(cls):
    """
    Return (cfg, state, is_resumed): the settings of the command line as a `cls`; a checkpoint, that
    of cfg.out_dir (then the run is resumed) or of init_from, or None.

    With init_from, the model's settings, the seed and the variant that the command does not give
    are those of that checkpoint. UserError if another program trains in cfg.out_dir.
    """
    given = config.arguments(cls)
    out_dir = given.get("out_dir", cls.out_dir)
    storage.lock(Path(out_dir) / "ckpt")  # first: nothing that is read below changes afterwards
    state = checkpoint.load(out_dir) if checkpoint.checkpoints_in(out_dir) else None
    # A run that has only the checkpoint of update 0 begins again, with any settings.
    is_resumed = state is not None and (state["iter"] > 0 or not state["config"]["max_iters"])
    if not given.get("init_from"):
        return config.make(cls, given), state if is_resumed else None, is_resumed
    if is_resumed:
        trained = state["config"]
    else:
        state = checkpoint.load(given["init_from"])
        trained = state["model_config"] | {"variant": state["variant"],
                                           "seed": state["config"].get("seed", cls.seed)}
    defaults = {key: trained[key] for key in (*MODEL_SETTINGS, "seed", "variant")
                if key in trained}
    if models.is_own_file(defaults["attention"]):  # the command must name what it executes
        del defaults["attention"]
    return config.make(cls, given, defaults), state, is_resumed


def model_of(cfg, state, is_resumed, data, device, corpus=None):
    """
    Return (model, run, optimizer_states): the model with its weights; a dict with the keys of a
    checkpoint (lib/checkpoint.py) other than those of model and optimizers; the state dicts of the
    optimizers, None in a new run.

    state, is_resumed: see `begin`. data: digest and source of the training text, and perhaps the
    digest of that for validation. corpus: its Tokens; None (sft.py): the text is encoded with the
    vocabulary of init_from. UserError if the settings do not allow the run.
    """
    if is_resumed:
        model = continued(cfg, state, data, device)
        run = {key: state[key] for key in ("variant", "vocab", "data", "iter", "base")}
    else:
        run = {"variant": cfg.variant or models.name_of(cfg), "data": data, "iter": 0}
        if state:
            model = from_checkpoint(cfg, state, corpus, device)
            run |= {"vocab": state["vocab"], "base": checkpoint.training_of(state)}
        else:
            model = from_scratch(cfg, corpus, device)
            run |= {"vocab": corpus.vocab, "base": None}
    codes = state["code"].split(", ") if is_resumed else []  # of the versions that trained it
    run |= {"code": ", ".join(dict.fromkeys((*codes, runtime.code_version()))),
            "attention_code": models.code_of(cfg)}
    check_run(cfg, model, run, is_resumed)
    if cfg.switch_iter:  # its code is read now: the file may be edited before the switch
        models.code_of(dataclasses.replace(
            model.config, attention_type=cfg.switch_attention_type))
    if ranks.WORLD_SIZE > 1:
        # Ranks read files of their own machines. If these differ, gradients of two runs add up.
        ranks.must_agree(
            settings={key: value for key, value in vars(cfg).items()
                      if key not in MAY_DIFFER_BY_RANK},
            data=data["digest"],
            updates=run["iter"],
            # as text, in which NaN equals NaN
            weights=[str(p.double().sum().item()) for p in model.parameters()])
    return model.train(), run, state["optimizers"] if is_resumed else None


def continued(cfg, state, data, device):
    """Return the model of the run in cfg.out_dir. UserError if it is another run."""
    differences = changes_of(cfg, state["config"])
    for key, name in (("digest", "training"), ("validation", "validation")):
        if key in data and state["data"].get(key, data[key]) != data[key]:
            differences.append(f"other {name} data")
    if differences:
        raise UserError(f"{cfg.out_dir} holds another run: it has {', '.join(differences)}; choose "
                        f"another --out_dir (--init_from={cfg.out_dir} trains on from its weights, "
                        "with a new schedule), or delete that folder")
    if cfg.max_iters < state["iter"]:
        raise UserError(f"{cfg.out_dir} has done {state['iter']:,} updates already: leave "
                        f"max_iters={cfg.max_iters} out, or set it higher")
    print0(f"continuing {cfg.out_dir} after iter {state['iter']:,}")
    checkpoint.allow_attention(state, cfg.out_dir, cfg.attention)
    return checkpoint.restore(state, device, name=cfg.out_dir)


def changes_of(cfg, before):
    """Return texts of the settings that must be those of the run `before`, and differ."""
    # Without decay max_iters (or sft.py's epochs) may grow, but not from 0: (e) is not trained.
    may_go_on = cfg.decay == "none" and before["max_iters"]
    free = NOT_IN_A_RESULT | ({"max_iters", "epochs"} if may_go_on else set())
    if models.is_own_file(cfg.attention) and models.is_own_file(before["attention"]):
        free |= {"attention"}  # a path: its code is compared, see checkpoint.allow_attention
    # settings that were added since then had their defaults
    before = {field.name: field.default for field in dataclasses.fields(cfg)} | before
    return config.changes(before, {key: value for key, value in vars(cfg).items()
                                   if key not in free})


def from_checkpoint(cfg, state, corpus, device):
    """Return a model with the weights of cfg.init_from, converted to the settings of cfg."""
    trained = state["model_config"]
    checkpoint.allow_attention(state, cfg.init_from, cfg.attention)
    changes = {key: getattr(cfg, key) for key in MODEL_SETTINGS
               if getattr(cfg, key) != trained[key]}
    # All other settings of the model must be the checkpoint's: another n_head, for instance, would
    # load and silently be another model.
    if fixed := changes.keys() - CONVERTIBLE:
        names = ", ".join(f"{key}={trained[key]}" for key in sorted(fixed))
        raise UserError(f"{cfg.init_from} was trained with {names}, which cannot change now; leave "
                        "these settings out")
    # most other factors depend on the training length
    if "block_size" in changes and ATTENTION[trained["attention_type"]].f not in (one, log_n):
        raise UserError(f"{cfg.init_from} was trained with block_size={trained['block_size']}, on "
                        f"which its factor depends ({trained['attention_type']}); leave it out")
    if changes and cfg.variant == state["variant"]:
        raise UserError(f"the model of {cfg.init_from} would change in {', '.join(changes)}: give "
                        f"the new one a name in tables, other than {cfg.variant}: --variant=NAME")
    if corpus:
        check_same_vocab(cfg.init_from, state["vocab"], cfg.data_dir, corpus.vocab,
                         "prepare the text with the checkpoint's vocabulary (--tokenizer or "
                         "--compact_vocab of prepare.py)")
    # `restore` swaps attention_type in, as (e). The other changes go to models.convert.
    model = checkpoint.restore(state, device, name=cfg.init_from, **changes)
    converted = [f"{key} {trained[key] or 'none'} -> {value or 'none'}"
                 for key, value in changes.items()]
    print0(f"starting with the model of {cfg.init_from}; changed in it: "
           f"{', '.join(converted) or 'nothing'}")
    return model


def from_scratch(cfg, corpus, device):
    """Return a model with random weights."""
    # the corpus defines the vocabulary; a vocab_size that is set must agree with it
    if cfg.vocab_size not in (GPTConfig.vocab_size, corpus.vocab_size):
        raise UserError(f"{cfg.data_dir} has a vocabulary of {corpus.vocab_size} ids, not "
                        f"vocab_size={cfg.vocab_size}; leave vocab_size out")
    settings = {key: getattr(cfg, key) for key in MODEL_SETTINGS}
    settings["vocab_size"] = corpus.vocab_size
    # Initialized on the CPU, so that the weights do not depend on the device. They do not depend on
    # the attention type either, because s and b are not random.
    torch.manual_seed(cfg.seed)
    with explain("the settings of the model do not go together", ValueError):
        return models.build(ModelConfig(**settings)).to(device)


def check_run(cfg, model, run, is_resumed):
    """UserError if the run would fail later, or if a new run finds results of another one in its
    folder."""
    if cfg.switch_iter and cfg.switch_iter >= cfg.max_iters:
        raise UserError(f"switch_iter={cfg.switch_iter} must be below max_iters={cfg.max_iters}; "
                        "set both")
    if cfg.switch_iter and run["iter"] <= cfg.switch_iter:  # it is still to come
        with explain(f"switch_iter={cfg.switch_iter}: the model cannot be switched to "
                     f"{cfg.switch_attention_type}; leave switch_iter out", ValueError):
            copy.deepcopy(model).swap_attention(cfg.switch_attention_type)
    results = {path.name for path in Path(cfg.out_dir).glob("*.jsonl")}
    if checkpoint.checkpoints_in(cfg.out_dir):  # that of update 0: the run begins again
        results -= {"log.jsonl"}
    if results and not is_resumed:
        raise UserError(f"{cfg.out_dir} holds results of an earlier run: "
                        f"{', '.join(sorted(results))}; choose another --out_dir, or move them "
                        "away")
