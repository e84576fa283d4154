"""
Compare a checkpoint with its .gguf in llama.cpp, for several types of weights and of KV cache: how
far the logits differ, and whether it answers the prompts of eval_niah.py in the same words.

    python hf.py export out/b --rope_factor=50 --out_dir=out/b.gguf
    python eval_niah.py config/quick_niah.py out/b --dtype=float32 --dump=out/prompts.jsonl
    python -m experiments.export.measure out/b out/b.gguf out/prompts.jsonl out/b/niah.jsonl

First run pip install llama-cpp-python. The settings of the evaluation are taken from niah.jsonl.
"""
import ctypes
import itertools
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from eval_niah import score
from lib import checkpoint, gguf_files
from lib.config import configure
from lib.runtime import UserError, launch, read_lines


@dataclass(frozen=True)
class Config:
    # arguments
    files: tuple = ()  # a checkpoint, its .gguf in F32, a file of --dump, its niah.jsonl
    # measurement
    weights: tuple = ("F32", "BF16", "F16", "Q8_0", "Q8_0+")  # types; "+": W_q stays F32
    caches: tuple = ("f32", "f16")  # types of the KV cache
    lengths: tuple = (300, 8000)  # numbers of tokens on which logits are compared

    def __post_init__(self):
        if len(self.files) != 4:
            raise ValueError("name a checkpoint, its .gguf, prompts and answers; see --help")


def quantise(path, weights, out):
    """
    Write the GGUF at `path` with `weights` of another type to `out`, by llama-quantize's function.
    Return the file to use: `out`, or `path` for F32.
    """
    import llama_cpp
    name = weights.removesuffix("+")
    if name == "F32":
        return path
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    override = llama_cpp.llama_model_tensor_override
    kept = (override * 2)((b"attn_q", llama_cpp.GGML_TYPE_F32), (None, 0))
    if name != weights:
        settings.tt_overrides = kept
    if llama_cpp.llama_model_quantize(path.encode(), out.encode(), ctypes.byref(settings)):
        raise UserError(f"llama.cpp cannot quantise {path} to {name}; leave {weights} out of "
                        "--weights")
    return out


@torch.no_grad()
def differences(model, vocab, llm, tokens):
    """
    Compare the logits of llama.cpp and the model. Return as text: the largest difference, the mean
    KL divergence in nats, and the share of positions with the same most likely token.
    """
    ids = torch.tensor(vocab if type(vocab) is list else range(model.config.vocab_size))
    place = {i: n for n, i in enumerate(ids.tolist())}
    idx = torch.tensor([[place[i] for i in tokens]])
    ours = model(idx, idx)[0][0]
    logits = gguf_files.llama_cpp_logits(llm, tokens, len(tokens))[:, ids]
    p, q = ours.log_softmax(-1), logits.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1).mean()
    same = (ours.argmax(-1) == logits.argmax(-1)).double().mean()
    return f"{(ours - logits).abs().max():.1e} | {kl:.0e} | {same:.2%}"


def needles(llm, prompts, answers, groups):
    """
    Ask all prompts. Return as text, for each context size: how many were answered right, and how
    many in the same words as in eval_niah.py.
    """
    right, same, asked = Counter(), Counter(), Counter()
    new = 1 + (len(groups) if len(groups) > 1 else 1 + groups[0])  # as in eval_niah.py
    for prompt in prompts:
        tokens = llm.tokenize(prompt["prompt"].encode(), add_bos=False, special=True)
        text = llm.create_completion(tokens, max_tokens=new, temperature=0.0, logit_bias={
            llm.token_eos(): -float("inf")})["choices"][0]["text"]
        size, key = prompt["size"], (prompt["size"], prompt["depth"], prompt["answers"][0])
        right[size] += score(prompt["answers"], text, groups)["exact"]
        same[size] += text == answers[key]
        asked[size] += 1
    return " | ".join(f"{right[n]}, {same[n]} of {asked[n]}" for n in asked)


def main():
    cfg = configure(Config)
    path, gguf, prompts = *cfg.files[:2], read_lines(Path(cfg.files[2]))
    header, *records = read_lines(Path(cfg.files[3]))
    answers = {(r["size"], r["depth"], r["answers"][0]): r["text"] for r in records}
    settings = header["settings"]
    stretch = {key: settings[key] for key in ("rope_scaling", "rope_factor")}
    model, state = checkpoint.load_model(path, attention_type=settings["attention_type"],
                                         **stretch if settings["rope_factor"] > 1 else {})
    sizes = " | ".join(f"{n:,}" for n in dict.fromkeys(p["size"] for p in prompts))
    print(f"weights, cache | tokens | largest difference | KL | same likeliest | {sizes}")
    with tempfile.TemporaryDirectory() as folder:
        for weights, cache in itertools.product(cfg.weights, cfg.caches):
            file = quantise(gguf, weights, f"{folder}/{weights}.gguf")
            llm = gguf_files.open_in_llama_cpp(file, max(cfg.lengths), cache)
            text = "".join(prompt["prompt"] for prompt in prompts)
            tokens = llm.tokenize(text.encode(), add_bos=False, special=True)
            for length in cfg.lengths:
                row = differences(model, state["vocab"], llm, tokens[:length])
                print(f"{weights}, {cache} | {length:,} | {row}", flush=True)
            llm.close()
            longest = max(prompt["size"] for prompt in prompts)
            llm = gguf_files.open_in_llama_cpp(file, longest + 16, cache, logits_all=False)
            row = needles(llm, prompts, answers, settings["number_format"])
            print(f"{weights}, {cache} | {row}", flush=True)
            llm.close()


if __name__ == "__main__":
    launch(main)
