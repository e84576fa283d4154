"""
Import models of Hugging Face's transformers, and export checkpoints for transformers and llama.cpp.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smol     a hub name or a folder
    python hf.py import smol/model.gguf --out_dir=out/smol                with its tokenizer.json
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smol --attention_type=ssmax --out_dir=hf/e    swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=hf/l --llama_cpp            for its convert_hf_to_gguf

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with its tokenizer
beside it, whose code can be changed. (To measure a model as it is, or to put SSMax into it, no
import is needed: docs/models.md.)

export: lib/interop/mapping.py says which class of transformers computes which model. A factor of n
needs ssmax_hf.py, and s stays a parameter. With --llama_cpp no code is needed: s is in the weights.

What the other side lacks is refused. At the end both models, ours here and the other one in
transformers, get the same tokens, and their logits must be equal.

First `pip install '.[hf]'`.
"""
import contextlib
import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lib import attention, checkpoint, text
from lib.config import complete, configure
from lib.errors import UserError, explain, launch
from lib.interop import hf_model, mapping, tokenizer_files
from lib.storage import lock
from model import ATTENTION


@dataclass(frozen=True)
class HFConfig:
    # arguments
    files: tuple = ()  # import, then a hub name, folder or .gguf; or export, then a checkpoint
    # model
    attention_type: Literal[("", *ATTENTION)] = ""  # export: swapped into a softmax model, as (e)
    rope_factor: float = 1.0  # export: multiply theta by this (paper: 50); 1: as trained
    llama_cpp: bool = False  # export: s in the weights, so that llama.cpp's converter reads them
    # output
    out_dir: str = ""  # folder to write

    def __post_init__(self):
        if len(self.files) != 2 or self.files[0] not in ("import", "export") or not self.out_dir:
            raise ValueError("give import SOURCE or export CHECKPOINT, and --out_dir; see --help")
        changes = self.attention_type or self.rope_factor > 1 or self.llama_cpp
        if self.files[0] == "import" and changes:
            raise ValueError("attention_type, rope_factor and llama_cpp are for an export: leave "
                             "them out")


def import_model(source, out):
    """Write the folder `out` with ckpt.pt and the tokenizer of a model of transformers. UserError
    if model.py cannot represent it."""
    with hf_model.readable(source):  # the config before the weights, which may be gigabytes
        config = mapping.to_config(hf_model.read_config(source), source)
    theirs, state = hf_model.load(source, checkpoint.LoadConfig())
    theirs, files = theirs.hf_model, tokenizer_files.read(source)
    if source.endswith(".gguf"):
        tokenizer_files.check_gguf(source, theirs, files["tokenizer.json"])
    if text.vocab_size(state["vocab"]) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model has "
                        "embeddings; get the tokenizer.json of this model")
    text.end_of_text(state["vocab"])  # a UserError if there is none, as every program needs it
    model = attention.build(config).eval()
    model.load_state_dict(mapping.from_hf(theirs, model))
    difference = check_equal(model, theirs, f"{source} has other logits in transformers, so it has "
                             "a feature that model.py lacks, or broken numbers; choose another "
                             "model")
    settings = dataclasses.asdict(config)
    state |= {"model": model.state_dict(), "model_config": settings, "optimizer": {},
              "config": state["config"] | settings}
    state["data"]["digest"] = state.pop("fingerprint")  # differs between models
    with new(out, files) as folder:
        checkpoint.save(folder / "ckpt.pt", state)
    print(f"{out}: {model.num_params():,} parameters, trained at {config.block_size:,} tokens; its "
          f"logits differ from those in transformers by at most {difference:.1e}")


def export_model(model, state, path, llama_cpp, out):
    """Write the folder `out` for transformers with the model of the checkpoint at `path`."""
    from transformers import AutoModelForCausalLM
    if type(state["vocab"]) is list:
        raise UserError(f"{path} has a compact vocabulary, which has no tokenizer in transformers: "
                        "export a model of a corpus without --compact_vocab")
    theirs, files = mapping.to_hf(model, llama_cpp), text_files(path, state)
    name = type(theirs).__name__
    if llama_cpp and state["vocab"] is None:
        # Its converter knows GPT-2's tokenizer only without an end of text in front. llama.cpp
        # itself puts it there, because of add_bos_token.
        tokenizer = json.loads(files["tokenizer.json"]) | {"post_processor": None}
        files["tokenizer.json"] = json.dumps(tokenizer)
    with new(out, files) as folder:
        # fp32, as trained; half precision can be chosen when the model is loaded
        theirs.save_pretrained(folder)
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        difference = check_equal(model, theirs, "the export has other logits than the checkpoint, "
                                 "so it was not written; please report this error of hf.py",
                                 # Ministral3 adds 1 to BETA log n
                                 0.1 if name == "Ministral3ForCausalLM" else 0.01)
    needs = ", which needs ssmax_hf.py" if hasattr(theirs.config, "ssmax") else ""
    print(f"{out}: {name}{needs}. Its logits differ from the checkpoint's by at "
          f"most {difference:.1e}")


def text_files(path, state):
    """
    Return {name: text} of tokenizer_files.FILES. They stand beside a checkpoint that was imported,
    or beside one that it was trained from; otherwise they are made of the vocabulary.
    """
    made, runs = tokenizer_files.made_of(state["vocab"]), checkpoint.earlier_runs(state)
    for origin in (path, *(run.get("init_from") or path for run in (state["config"], *runs))):
        folder = checkpoint.find(origin).parent
        file = folder / "tokenizer.json"
        # the tokenizer must be this checkpoint's, because a folder may have been used again
        if file.is_file() and file.read_text(encoding="utf-8") == state["vocab"]:
            return made | tokenizer_files.read(folder)
    return made


# -----------------------------------------------------------------------------
# both


@torch.no_grad()
def check_equal(ours, theirs, message, most=0.01):
    """Return the largest difference of the logits of 300 tokens, which are enough to notice a wrong
    f(n). UserError with `message` if it is too large."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(ours.config.vocab_size, (1, 300), generator=generator)
    difference = (ours(ids, ids)[0] - theirs(ids).logits).abs().max().item()
    if not difference < most:  # NaN is wrong, too
        raise UserError(f"{message} (largest difference: {difference:.2g})")
    return difference


@contextlib.contextmanager
def new(out, files):
    """
    Yield a hidden folder, which becomes `out` when the block ends, with `files`, {name: text}.
    After an error nothing is left of it. The caller holds the lock of `out`.
    """
    from safetensors import SafetensorError
    hidden = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(hidden, ignore_errors=True)  # left by a killed run
    try:
        with explain(f"cannot write {out}; make space, or choose another --out_dir",
                     (OSError, SafetensorError)):
            hidden.mkdir(parents=True)
            yield hidden
            for name, content in files.items():
                (hidden / name).write_text(content, encoding="utf-8")
            os.replace(hidden, out)  # fails if `out` has become a folder with files
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def main():
    cfg = configure(HFConfig)
    command, source = cfg.files
    out = Path(cfg.out_dir)
    lock(out)  # before the check, so that of two commands the second is refused
    if out.exists():  # the checkpoint of a run that took days may be in it
        raise UserError(f"{out} exists, and is never overwritten; choose another --out_dir")
    with explain("hf.py needs more packages: pip install '.[hf]'", ImportError):
        import transformers  # brings safetensors and tokenizers
    transformers.logging.set_verbosity_error()  # hides warnings about settings Ministral3 needs
    transformers.utils.logging.disable_progress_bar()
    if command == "import":
        import_model(source, out)
        return
    if checkpoint.is_of_transformers(checkpoint.find(source)):
        raise UserError(f"{source} is a model of transformers already; name a checkpoint")
    changes = complete(checkpoint.LoadConfig(), attention_type=cfg.attention_type,
                       rope_factor=cfg.rope_factor)
    model, state = checkpoint.load_model(source, changes)
    export_model(model, state, source, cfg.llama_cpp, out)


if __name__ == "__main__":
    launch(main)
