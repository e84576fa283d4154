"""
Import models of Hugging Face's transformers, and export checkpoints for transformers and llama.cpp.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smol     a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smol
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smol --attention_type=ssmax --out_dir=hf/e    swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=hf/t --trainable            s stays a parameter
    python hf.py export out/b_ssmax --out_dir=hf/l --llama_cpp            for its convert_hf_to_gguf

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with its
tokenizer.json beside it. (The evaluations can also measure a folder of transformers as it is, see
docs/models.md.) Code in a folder is never executed.

export: lib/interop/mapping.py says which class of transformers computes which model. A folder with
a factor that no class has needs ssmax_hf.py.

A model with a feature that the other side lacks is refused. After an import or an export both
models run on the same tokens, ours here and the other in transformers, and their logits must be
equal.

First `pip install '.[hf]'`.
"""
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lib import attention, checkpoint, text
from lib.config import complete, configure
from lib.errors import UserError, explain, launch
from lib.interop import mapping, tokenizer_files
from lib.interop.tokenizer_files import read_text, tokenizer_text
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
        if self.trainable and self.llama_cpp:
            raise ValueError("trainable and llama_cpp exclude each other: choose one")
        if self.out_dir.endswith(".gguf"):
            raise ValueError(f"out_dir={self.out_dir} must be a folder: export with --llama_cpp, "
                             "then run convert_hf_to_gguf of llama.cpp on it")


# the files about text in a folder of transformers, and in one that `import_model` writes
TEXTS = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
DIFFERS = ("the export has other logits than the checkpoint, so it was not written; please report "
           "this error of hf.py")

# -----------------------------------------------------------------------------
# import


def read(source):
    """
    Read a folder, a model on the hub or a .gguf.

    Returns (ModelConfig, transformers' model, text of tokenizer.json, content of
    tokenizer_config.json). UserError if it cannot be represented.
    """
    from transformers import PreTrainedConfig

    import ssmax_hf  # noqa: F401  puts the factor into a model that was saved with one
    folder, gguf = source, {}
    if Path(source).suffix == ".gguf":
        folder, gguf = Path(source).parent, {"gguf_file": Path(source).name}
        if re.search(r"-\d+-of-\d+\.gguf$", source):
            raise UserError(f"{source} is one part of several: join them with llama.cpp's "
                            "llama-gguf-split --merge, and import the whole file")
    settings_given = PreTrainedConfig.get_config_dict(folder, **gguf)[0]
    model_type = settings_given.get("model_type")
    if model_type not in mapping.CLASSES or model_type == "ministral3":
        raise UserError(f"{source} has the model_type {model_type}; choose another model. "
                        f"{mapping.IMPORTABLE}")
    config_class, model_class = mapping.classes(model_type)
    hf_config = config_class.from_pretrained(folder, **gguf)
    hf_config._attn_implementation = "eager"  # config.json could name code to download and run
    for name in ("bos_token_id", "eos_token_id"):
        if name not in settings_given:  # the default of a class, such as 2, may be any token here
            setattr(hf_config, name, None)
    config = mapping.to_config(hf_config, source)
    # transformers itself reads shards, safetensors and GGUF, and ties embeddings
    model, info = model_class.from_pretrained(
        folder, config=hf_config, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True, **gguf)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{source}: its settings and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a whole copy of the model")
    if gguf:
        tokenizer, settings = tokenizer_files.of_gguf(source, model)
    else:
        # transformers would make another tokenizer out of the files, so we read them as they are
        tokenizer = read_text(folder, "tokenizer.json")
        settings = json.loads(read_text(folder, "tokenizer_config.json", "{}"))
        if template := read_text(folder, "chat_template.jinja", ""):
            settings["chat_template"] = template
    return config, model.eval(), tokenizer, settings


def import_model(source, out):
    """Write the folder `out` with ckpt.pt and the tokenizer of a model of transformers."""
    with explain(f"{source} is not a model that transformers can read, or it is incomplete; name a "
                 "folder, a .gguf or a model on the hub (OWNER/NAME)"):
        config, hf_model, tokenizer, settings = read(source)
        model = attention.build(config).eval()
        model.load_state_dict(mapping.from_hf(hf_model, model))
        state = {"model": model.state_dict(), "model_config": dataclasses.asdict(config)}
        vocab = tokenizer_files.vocab_of(tokenizer, hf_model.config)
    if text.vocab_size(vocab) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model has "
                        "embeddings; get the tokenizer.json of this model")
    generation = hf_model.generation_config.to_diff_dict()
    # a UserError if it has no end of text, as every program needs one
    generation.setdefault("eos_token_id", text.end_of_text(vocab))
    largest = compare(model, hf_model, f"{source} has other logits in transformers, so it has a "
                      "feature that model.py lacks, or broken numbers; choose another model")
    weights = state["model"]["blocks.0.attn.qkv.weight"].numpy()
    digest = hashlib.sha256(weights.tobytes()).hexdigest()[:16]
    state |= {
        "variant": config.attention_type, "vocab": vocab, "base": None, "optimizer": {}, "iter": 0,
        # no run of ours made it; plot.py needs a seed and a source
        "config": state["model_config"] | {"seed": 0, "init_from": str(source)},
        "data": {"digest": digest, "source": {"import": Path(source).name}}}
    with new(out) as folder:
        checkpoint.save(folder / "ckpt.pt", state)
        write_texts(folder, tokenizer, settings, generation)
    print(f"{out}: {model.num_params():,} parameters, trained at {config.block_size:,} tokens; its "
          f"logits differ from those in transformers by at most {largest:.1e}")


# -----------------------------------------------------------------------------
# export


README = """# {variant}, exported from nanoSSMax

{name}{needs}, attention type {attention_type} (arXiv 2501.19399), trained at {block_size:,} tokens.

- Any token that is not among the {vocab_size:,} of the vocabulary is an error.
- sample.py puts an end of text before a prompt. So does this tokenizer, unless it came with the
  corpus or with an imported model, or was exported for llama.cpp.
- Ministral3 takes n from position_ids: with padding on the left, pass them too, as `generate` does.
- llama.cpp ignores the windows of SmolLM3: do not convert such a folder to .gguf.
"""


def export_model(model, state, texts, cfg, out):
    """Write the folder `out` for transformers. texts: what `text_settings` returns."""
    from transformers import AutoModelForCausalLM
    c, vocab = model.config, state["vocab"]
    settings, generation = texts
    choice = mapping.choose(model, cfg.trainable)
    if cfg.llama_cpp:
        check_llama_cpp(c, choice, vocab)
    hf_model = mapping.to_hf(model, choice)
    name = type(hf_model).__name__
    hf_model.config.bos_token_id = generation.get("bos_token_id")
    hf_model.config.eos_token_id = generation.get("eos_token_id")
    if type(vocab) is list:
        hf_model.config.gpt2_ids = vocab  # for `import_model`
    needs = " with ssmax_hf.py" * choice.by_ssmax_hf
    readme = README.format(
        variant=checkpoint.variant_of(state, model), name=name, needs=needs,
        attention_type=c.attention_type, block_size=c.block_size, vocab_size=c.vocab_size)
    settings = settings | {
        # without one, a batch cannot be padded
        "pad_token": settings.get("pad_token") or settings.get("eos_token"),
        # older versions of transformers need this name, which version 5 does not write
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": hf_model.config.max_position_embeddings}
    tokenizer = tokenizer_text(vocab)
    if cfg.llama_cpp and vocab is None:
        # its converter knows GPT-2's tokenizer without this; llama.cpp itself puts the token there
        tokenizer = json.dumps(json.loads(tokenizer) | {"post_processor": None})
        settings["add_bos_token"] = True
    with new(out) as folder:
        # fp32, as trained; half precision can be chosen when the model is loaded
        hf_model.save_pretrained(folder)
        write_texts(folder, tokenizer, settings, generation)
        (folder / "README.md").write_text(readme, encoding="utf-8")
        exported = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        largest = compare(model, exported, DIFFERS)
    print(f"{out}: {name}{needs}; its logits differ from the checkpoint's by at most {largest:.1e}")


def check_llama_cpp(c, choice, vocab):
    """Raise a UserError if llama.cpp would compute something else."""
    if choice.by_ssmax_hf or choice.model_type not in mapping.OF_LLAMA_CPP:
        raise UserError(f"llama.cpp cannot compute attention_type={c.attention_type} with qk_norm="
                        f"{c.qk_norm} and window_pattern={c.window_pattern!r}: it has no windows, "
                        "and multiplies the query by one number only, or without qk_norm by s log "
                        "n; leave --llama_cpp out")
    if type(vocab) is list:
        raise UserError("llama.cpp's converter knows no compact vocabulary: leave --llama_cpp out, "
                        "or choose a checkpoint that was trained without compact_vocab")


def text_settings(path, state):
    """
    Return (content of tokenizer_config.json, content of generation_config.json) for an export. They
    stand beside the checkpoint if it was imported, or beside one that it was trained from.
    """
    vocab, runs = state["vocab"], [state["config"], *checkpoint.earlier_runs(state)]
    for origin in (path, *(run.get("init_from") or path for run in runs)):
        files = [checkpoint.find(origin).parent / name for name in TEXTS]
        # the tokenizer must be this checkpoint's, because a folder may have been used again
        if (all(file.is_file() for file in files)
                and files[0].read_text(encoding="utf-8") == tokenizer_text(vocab)):
            with explain(f"{files[1]} or {files[2].name} is damaged; delete it to export without "
                         "chat template and end tokens"):
                return [dict(json.loads(file.read_bytes())) for file in files[1:]]
    end = text.end_of_text(vocab)
    names = "bos_token", "eos_token", "pad_token"
    settings = dict.fromkeys((*names, "unk_token"), text.decode([end], vocab))
    return (settings | {"clean_up_tokenization_spaces": False},
            {f"{name}_id": end for name in names})


# -----------------------------------------------------------------------------
# both


def write_texts(folder, tokenizer, settings, generation):
    """Write the TEXTS into a folder. (save_pretrained refuses the settings of some models.)"""
    texts = tokenizer, json.dumps(settings), json.dumps(generation)
    for name, content in zip(TEXTS, texts, strict=True):
        (folder / name).write_text(content, encoding="utf-8")


@torch.no_grad()
def compare(model, hf_model, message):
    """Return the largest difference between the logits of our model and of one of transformers.
    UserError with `message` if it is too large."""
    generator = torch.Generator().manual_seed(0)
    # enough tokens to notice a wrong f(n)
    ids = torch.randint(model.config.vocab_size, (1, 300), generator=generator)
    logits = hf_model(ids).logits

    def difference():
        return (model.lm_head(model.hidden(ids)) - logits).abs().max().item()

    largest = error = difference()
    if hf_model.config.model_type == "ministral3":  # it adds 1 to its factor, which is no error
        for block in model.blocks:
            block.attn.b.copy_(block.attn.s / mapping.BETA)
        error = difference()
        for block in model.blocks:
            block.attn.b.zero_()
    if not error < 0.01:  # NaN is wrong, too
        raise UserError(f"{message} (largest difference: {error:.2g})")
    return largest


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
            (hidden / out.name).mkdir(parents=True)
            yield hidden / out.name
            os.replace(hidden / out.name, out)  # fails if `out` has become a folder with files
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def main():
    cfg = configure(HFConfig)
    command, source = cfg.files
    out = Path(cfg.out_dir)
    lock(out)  # before the check, so that of two commands the second is refused
    if out.exists():  # the checkpoint of a run that took days may be in it
        raise UserError(f"{out} exists, and is never overwritten; choose another --out_dir")
    try:
        import transformers  # brings safetensors and tokenizers
    except ImportError as e:
        raise UserError("hf.py needs more packages: pip install '.[hf]'") from e
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
    export_model(model, state, text_settings(source, state), cfg, out)


if __name__ == "__main__":
    launch(main)
