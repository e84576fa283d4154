"""
Import models of Hugging Face's transformers, and export checkpoints for transformers and llama.cpp.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smol     a hub name or a folder
    python hf.py import smollm.gguf --out_dir=out/smol
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smol --attention_type=ssmax --out_dir=hf/e    swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=hf/t --trainable            s stays a parameter
    python hf.py export out/b_ssmax --out_dir=hf/l --llama_cpp            for its convert_hf_to_gguf

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with its tokenizer
beside it, whose code can be changed. (To measure a model as it is, or to put SSMax into it, no
import is needed: docs/models.md.)

export: lib/interop/mapping.py says which class of transformers computes which model. A folder with
a factor that no class has needs ssmax_hf.py.

What the other side lacks is refused. At the end both models, ours here and the other one in
transformers, get the same tokens, and their logits must be equal.

First `pip install '.[hf]'`.
"""
import contextlib
import dataclasses
import hashlib
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
from lib.interop import mapping, tokenizer_files
from lib.interop.hf_model import read_config, read_weights
from lib.storage import lock
from model import ATTENTION


@dataclass(frozen=True)
class HFConfig:
    # arguments
    files: tuple = ()  # import, then a hub name, folder or .gguf; or export, then a checkpoint
    # model
    attention_type: Literal[("", *ATTENTION)] = ""  # export: swapped into a softmax model, as (e)
    rope_factor: float = 1.0  # export: multiply theta by this (paper: 50); 1: as trained
    trainable: bool = False  # export: s and b stay parameters (the folder needs ssmax_hf.py)
    llama_cpp: bool = False  # export: a folder that llama.cpp's converter reads
    # output
    out_dir: str = ""  # folder to write

    def __post_init__(self):
        if len(self.files) != 2 or self.files[0] not in ("import", "export") or not self.out_dir:
            raise ValueError("give import SOURCE or export CHECKPOINT, and --out_dir; see --help")
        if self.out_dir.endswith(".gguf"):
            raise ValueError(f"hf.py writes folders, and --out_dir={self.out_dir} is the name of a "
                             "file: export with --llama_cpp --out_dir=FOLDER, then run llama.cpp's "
                             f"convert_hf_to_gguf.py FOLDER --outfile {self.out_dir}")
        if self.trainable and self.llama_cpp:
            raise ValueError("trainable and llama_cpp exclude each other: choose one")


# -----------------------------------------------------------------------------
# import


def import_model(source, out):
    """Write the folder `out` with ckpt.pt and the tokenizer of a model of transformers. UserError
    if model.py cannot represent it."""
    with explain(f"{source} is not a model that transformers can read, or it is incomplete; name a "
                 "folder, a .gguf or a model on the hub (OWNER/NAME)"):
        files = tokenizer_files.of_gguf(source) if source.endswith(".gguf") else None
        hf_config = read_config(source)
        config = mapping.to_config(hf_config, source)
        hf_model = read_weights(source, hf_config)
        files = files or tokenizer_files.read(source)
        model = attention.build(config).eval()
        model.load_state_dict(mapping.from_hf(hf_model, model))
        vocab = tokenizer_files.vocab_of(files["tokenizer.json"], hf_config)
    if text.vocab_size(vocab) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model has "
                        "embeddings; get the tokenizer.json of this model")
    text.end_of_text(vocab)  # a UserError if there is none, as every program needs it
    difference = check_equal(logits(model), logits(hf_model),
                             f"{source} has other logits in transformers, so it has a feature that "
                             "model.py lacks, or broken numbers; choose another model")
    weights = model.blocks[0].attn.qkv.weight.detach().numpy()
    state = {
        "model": model.state_dict(), "model_config": dataclasses.asdict(config), "vocab": vocab,
        "variant": config.attention_type, "base": None, "optimizer": {}, "iter": 0,
        # no run of ours made it; plot.py needs a seed and a source
        "config": dataclasses.asdict(config) | {"seed": 0, "init_from": source},
        "data": {"digest": hashlib.sha256(weights.tobytes()).hexdigest()[:16],
                 "source": {"import": Path(source).name}}}
    with new(out) as folder:
        checkpoint.save(folder / "ckpt.pt", state)
        write(folder, files)
    print(f"{out}: {model.num_params():,} parameters, trained at {config.block_size:,} tokens; its "
          f"logits differ from those in transformers by at most {difference:.1e}")


# -----------------------------------------------------------------------------
# export


@torch.no_grad()
def export_model(model, state, path, cfg, out):
    """Write the folder `out` for transformers with the model of the checkpoint at `path`."""
    from transformers import AutoModelForCausalLM
    vocab, files = state["vocab"], text_files(path, state, cfg.llama_cpp)
    hf_model = mapping.to_hf(model, cfg.trainable)
    name, by_ssmax_hf = type(hf_model).__name__, hasattr(hf_model.config, "ssmax")
    if cfg.llama_cpp and (by_ssmax_hf or name == "SmolLM3ForCausalLM" or type(vocab) is list):
        raise UserError("llama.cpp cannot compute this model, because it has no windows, no other "
                        "factors than a constant or, without qk_norm, s log n, and no compact "
                        "vocabulary: leave --llama_cpp out")
    before = exact = logits(model)
    if name == "Ministral3ForCausalLM":  # its factor is 1 + BETA log n
        for block in model.blocks:
            block.attn.b.copy_(block.attn.s / mapping.BETA)
        exact = logits(model)
    if type(vocab) is list:
        hf_model.config.gpt2_ids = vocab  # for `import_model`
    with new(out) as folder:
        # fp32, as trained; half precision can be chosen when the model is loaded
        hf_model.save_pretrained(folder)
        write(folder, files)
        exported = logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
        check_equal(exact, exported, "the export has other logits than the checkpoint, so it was "
                    "not written; please report this error of hf.py")
    needs = ", which needs ssmax_hf.py" if by_ssmax_hf else ""
    print(f"{out}: {name}{needs}. Its logits differ from the checkpoint's by at most "
          f"{(before - exported).abs().max():.1e}")


def text_files(path, state, llama_cpp):
    """
    Return {name: text} of tokenizer_files.FILES. They stand beside a checkpoint that was imported,
    or beside one that it was trained from; otherwise they are made of the vocabulary.
    """
    vocab, runs = state["vocab"], [state["config"], *checkpoint.earlier_runs(state)]
    tokenizer = tokenizer_files.tokenizer_text(vocab)
    names = "bos_token", "eos_token", "pad_token"
    files = tokenizer_files.files_of(tokenizer, dict.fromkeys(names, text.end_of_text(vocab)))
    for origin in (path, *(run.get("init_from") or path for run in runs)):
        folder = checkpoint.find(origin).parent
        file = folder / "tokenizer.json"
        # the tokenizer must be this checkpoint's, because a folder may have been used again
        if file.is_file() and tokenizer_files.same_ids(
                file.read_text(encoding="utf-8"), tokenizer):
            files |= tokenizer_files.read(folder)
            break
    if llama_cpp and vocab is None:
        # its converter knows GPT-2's tokenizer without this; llama.cpp itself puts the token there
        settings = json.loads(files["tokenizer_config.json"]) | {"add_bos_token": True}
        files["tokenizer_config.json"] = json.dumps(settings)
        files["tokenizer.json"] = json.dumps(json.loads(tokenizer) | {"post_processor": None})
    return files


# -----------------------------------------------------------------------------
# both


@torch.no_grad()
def logits(model):
    """Return the logits of 300 tokens, which are enough to notice a wrong f(n), of a model of ours
    or of transformers."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, 300), generator=generator)
    is_ours = hasattr(model, "hidden")
    return model.lm_head(model.hidden(ids)) if is_ours else model(ids).logits


def check_equal(a, b, message):
    """Return the largest difference of logits. UserError with `message` if it is too large."""
    difference = (a - b).abs().max().item()
    if not difference < 0.01:  # NaN is wrong, too
        raise UserError(f"{message} (largest difference: {difference:.2g})")
    return difference


def write(folder, files):
    """Write {name: text} into a folder."""
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


@contextlib.contextmanager
def new(out):
    """
    Yield a hidden folder, which becomes `out` when the block ends; after an error nothing is left
    of it. The caller holds the lock of `out`.
    """
    from safetensors import SafetensorError
    hidden = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(hidden, ignore_errors=True)  # left by a killed run
    try:
        with explain(f"cannot write {out}; make space, or choose another --out_dir",
                     (OSError, SafetensorError)):
            hidden.mkdir(parents=True)
            yield hidden
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
    export_model(model, state, source, cfg, out)


if __name__ == "__main__":
    launch(main)
