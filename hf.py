"""
Export a checkpoint as a folder of Hugging Face's transformers.

    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/a_softmax --attention_type=ssmax --out_dir=hf/e     swapped, as in (e)

The model leaves as a Llama, or as a SmolLM3 if it has windows or layers without position. A factor
needs ssmax_hf.py, which is copied into the folder; s stays a parameter. A model that no class
of transformers computes is refused. At the end both models, ours and that of transformers, get the
same tokens, and their logits must agree within .01.

First `pip install '.[hf]'`.
"""
import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from lib import checkpoint
from lib.checkpoint import LoadConfig
from lib.config import configure
from lib.errors import UserError, explain, launch
from lib.interop import tokenizer_files
from lib.storage import lock
from lib.text import Compact


@dataclass(frozen=True)
class HFConfig(LoadConfig):
    # arguments
    files: tuple = ()  # export, and then a checkpoint
    # output
    out_dir: str = ""  # folder to write

    EFFECTIVE_IF = LoadConfig.EFFECTIVE_IF | {"device": None, "dtype": None}

    def __post_init__(self):
        super().__post_init__()
        if len(self.files) != 2 or self.files[0] != "export" or not self.out_dir:
            raise ValueError("give export CHECKPOINT --out_dir=FOLDER; see --help")


# -----------------------------------------------------------------------------
# our model -> a Hugging Face model

SETTINGS = {  # our name: that of transformers
    "vocab_size": "vocab_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_embd": "hidden_size", "n_inner": "intermediate_size", "norm_eps": "rms_norm_eps",
    "init_std": "initializer_range",
}
# {our parameter: those of transformers whose rows it has, one after the other}
OUTER = {
    "wte.weight": ["model.embed_tokens.weight"],
    "norm.weight": ["model.norm.weight"],
    "lm_head.weight": ["lm_head.weight"],
}
LAYER = {
    "norm_1.weight": ["input_layernorm.weight"],
    "attn.qkv.weight": [f"self_attn.{x}_proj.weight" for x in "qkv"],
    "attn.s": ["self_attn.ssmax_norm.s"],
    "attn.b": ["self_attn.ssmax_norm.b"],
    "attn.proj.weight": ["self_attn.o_proj.weight"],
    "norm_2.weight": ["post_attention_layernorm.weight"],
    "mlp.gate_up.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "mlp.down.weight": ["mlp.down_proj.weight"],
}


@torch.no_grad()
def to_hf(model):
    """Return a Hugging Face model that computes the same as ours. UserError if no class does."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from ssmax_hf import KINDS
    c = model.config
    reasons = {
        f"attention={c.attention}": c.attention,
        f"attention_type={c.attention_type}": c.attention_type not in ("softmax", *KINDS),
        f"rope_scaling={c.rope_scaling}": c.rope_scaling not in ("", "theta"),
        f"rope_factor={c.rope_factor} with a window": c.window and c.rope_factor > 1,
    }
    if lacks := " and ".join(reason for reason, applies in reasons.items() if applies):
        raise UserError(f"{lacks} cannot be exported to the Llama or SmolLM3 that hf.py makes: "
                        "choose a checkpoint without it, or leave it out")

    letters = [c.letter(layer) for layer in range(c.n_layer)]
    settings = {hf_name: getattr(c, name) for name, hf_name in SETTINGS.items()}
    settings["num_key_value_heads"] = c.n_head
    if c.window_pattern:
        settings |= {
            "layer_types": ["sliding_attention" if x == "S" else "full_attention" for x in letters],
            "no_rope_layers": [int(x != "L") for x in letters],  # 1: the layer has RoPE
            "use_sliding_window": bool(c.window)}
    if c.attention_type != "softmax":
        full = [layer for layer, letter in enumerate(letters) if letter != "S"]
        settings["ssmax"] = {"kind": c.attention_type, "length": c.block_size, "layers": full,
                             "s": 1.0}
    hf_model = AutoModelForCausalLM.from_config(AutoConfig.for_model(
        "smollm3" if c.window_pattern else "llama", head_dim=c.n_embd // c.n_head,
        tie_word_embeddings=False, sliding_window=c.window or None,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta * c.rope_factor},
        # Token ids stand in generation_config.json; a default of the class may be any token here.
        bos_token_id=None, eos_token_id=None, pad_token_id=None, training_length=c.block_size,
        # Clients cut prompts at this length. Not more, because vLLM reserves memory for it: 4.8 GB
        # for 131,072 tokens of the paper's model in fp16.
        max_position_embeddings=max(2**17, 32 * c.block_size), **settings))
    names = dict(OUTER)
    for layer in range(c.n_layer):
        names |= {f"blocks.{layer}.{name}": [f"model.layers.{layer}.{part}" for part in parts]
                  for name, parts in LAYER.items()}
    tensors = hf_model.state_dict()  # shares the memory of its model
    for name, rows in model.state_dict().items():
        for part in names[name]:
            tensors[part].copy_(rows[:len(tensors[part])])
            rows = rows[len(tensors[part]):]
    return hf_model.eval()


# -----------------------------------------------------------------------------
# the folder


def export_model(model, vocab, out):
    """Write the folder `out` with a Hugging Face model and its tokenizer."""
    from transformers import AutoModelForCausalLM
    hf_model, files = to_hf(model), tokenizer_files.made_of(vocab)
    if isinstance(vocab, Compact):  # which of GPT-2's ids ours are; evaluations need it
        hf_model.config.compact_vocab = vocab.stored
    with new(out) as folder:
        # fp32, as trained; half precision can be chosen when the model is loaded
        hf_model.save_pretrained(folder)
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
        # mlx-lm and transformers 4 read theta at the top level alone, and compute with 10,000 where
        # it is missing.
        settings = json.loads((folder / "config.json").read_text())
        files["config.json"] = json.dumps(
            settings | {"rope_theta": settings["rope_parameters"]["rope_theta"]}, indent=2)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        if hasattr(hf_model.config, "ssmax"):
            shutil.copy(Path(__file__).with_name("ssmax_hf.py"), folder)
        hf_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        length, difference = largest_difference(model, hf_model)
        if not difference < 0.01:  # NaN is wrong, too
            raise UserError(f"the export has other logits than the checkpoint (by {difference:.2g})"
                            ", so it was not written; please report this error of hf.py")
    needs = ", which needs `import ssmax_hf`" if hasattr(hf_model.config, "ssmax") else ""
    print(f"{out}: {type(hf_model).__name__}{needs}. At 300 places of a text of {length:,} tokens "
          f"its logits differ from the checkpoint's by at most {difference:.1e}")


@torch.no_grad()
def largest_difference(model, hf_model):
    """Return the length of a random text, and the largest difference of the logits at 300 places in
    it. It is longer than the training length, where factors such as the clip begin, and than a
    window."""
    c, generator = model.config, torch.Generator().manual_seed(0)
    T = c.block_size + c.window + 300
    ids = torch.randint(c.vocab_size, (1, T), generator=generator)
    places = torch.linspace(0, T - 1, 300).long()
    logits = model.lm_head(model.hidden(ids)[:, places])
    return T, (logits - hf_model(ids, logits_to_keep=places).logits).abs().max().item()


@contextlib.contextmanager
def new(out):
    """Yield a hidden folder, which becomes `out` when the block ends without an error."""
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
    out = Path(cfg.out_dir)
    lock(out)  # before the check, so that of two commands the second is refused
    if out.exists():  # the checkpoint of a run that took days may be in it
        raise UserError(f"{out} exists, and is never overwritten; choose another --out_dir")
    with explain("hf.py needs more packages: pip install '.[hf]'", ImportError):
        import transformers  # brings safetensors and tokenizers
    transformers.utils.logging.disable_progress_bar()
    source = cfg.files[1]
    if checkpoint.is_of_transformers(checkpoint.find(source)):
        raise UserError(f"{source} is a Hugging Face model already; name a checkpoint")
    model, state = checkpoint.load_model(source, cfg)
    export_model(model, state["vocab"], out)


if __name__ == "__main__":
    launch(main)
