"""
Continue a prompt with any checkpoint.

    python sample.py out/b_ssmax/ckpt.pt --prompt="Once upon a time"
"""
from dataclasses import dataclass

import torch

import checkpoint
import data
import runtime
from configurator import configure
from runtime import UserError


@dataclass(frozen=True)
class SampleConfig:
    files: tuple = ()  # the checkpoint
    prompt: str = ""  # text to continue; empty: a new document
    num_samples: int = 3  # how many continuations
    max_new_tokens: int = 200  # tokens of each; an end of text ends it earlier
    temperature: float = 0.8  # 0: greedy
    top_k: int = 200  # sample among so many likeliest tokens; 0: all
    rope_theta: float = 0.0  # base of RoPE; 0: that of training
    attention_type: str = ""  # swap attention of a softmax checkpoint at load
    seed: int = 1337  # of the sampling
    device: str = "auto"  # auto, cuda, cpu, mps
    dtype: str = "auto"  # auto, bfloat16, float32

    def __post_init__(self):
        if min(self.num_samples, self.max_new_tokens) < 1 or min(self.temperature, self.top_k, self.rope_theta) < 0:
            raise ValueError("num_samples and max_new_tokens must be positive; temperature, top_k and rope_theta not negative")


def main():
    cfg = configure(SampleConfig)
    if len(cfg.files) != 1:
        raise UserError("name one checkpoint; see --help")
    device = runtime.get_device(cfg.device)
    model, state = checkpoint.load_model(cfg.files[0], device, cfg.attention_type, cfg.rope_theta)
    vocab = state["vocab"]
    eot = data.end_of_text(vocab)
    prompt = [eot, *data.encode(cfg.prompt, vocab)]  # every document of the training data stands behind an end of text
    checkpoint.check_length(model, len(prompt) + cfg.max_new_tokens)
    torch.manual_seed(cfg.seed)
    idx = torch.tensor([prompt] * cfg.num_samples, device=device)
    with runtime.autocast(device, cfg.dtype):
        rows = model.generate(idx, cfg.max_new_tokens, cfg.temperature, cfg.top_k or None)
    for row in rows[:, 1:].tolist():
        print(data.decode(row[:row.index(eot)] if eot in row else row, vocab))
        print("-" * 80)


if __name__ == "__main__":
    runtime.launch(main)
