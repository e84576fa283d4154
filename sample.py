"""
Continue a prompt with any checkpoint.

    python sample.py out/b_ssmax --prompt="Once upon a time"
"""
from dataclasses import dataclass

import torch

from lib import checkpoint, runtime
from lib.checkpoint import LoadConfig
from lib.config import configure
from lib.errors import explain, launch
from lib.evaluate import check_length


@dataclass(frozen=True)
class SampleConfig(LoadConfig):
    # sampling
    prompt: str = ""  # text to continue; empty: a new document
    num_samples: int = 3  # number of continuations; with temperature 0 there is one
    max_new_tokens: int = 200  # tokens of each continuation, unless an end of text comes earlier
    temperature: float = 0.8  # divides the logits; 0: greedy
    top_k: int = 200  # sample among the top_k likeliest tokens; 0: among all
    seed: int = 1337  # seed of the sampling

    EFFECTIVE_IF = LoadConfig.EFFECTIVE_IF | dict.fromkeys(("top_k", "seed"), "temperature") | {
        "num_samples": "temperature or num_samples == 1"}

    def __post_init__(self):
        super().__post_init__()
        if len(self.files) != 1:
            raise ValueError(f"sample.py takes one checkpoint, not {len(self.files)}: python "
                             "sample.py out/b_ssmax")
        if min(self.num_samples, self.max_new_tokens) < 1:
            raise ValueError(f"num_samples={self.num_samples} and max_new_tokens="
                             f"{self.max_new_tokens} must be positive")
        if 0 < self.temperature < 1e-4:
            raise ValueError(f"temperature={self.temperature} divides the logits by almost 0: take "
                             "0, which is greedy")


def main():
    cfg = configure(SampleConfig)
    device = runtime.setup(cfg.device)
    model, state = checkpoint.load_model(cfg.files[0], cfg, device)
    vocab = state["vocab"]
    # In our training data every document follows an end of text. A model of transformers may begin
    # its texts with another token.
    end = vocab.end
    bos = end if state.get("bos") is None else state["bos"]
    prompt = [bos, *vocab.encode(cfg.prompt, special=True)]
    n_inputs = len(prompt) + cfg.max_new_tokens - 1  # the last new token is never an input
    check_length(cfg.files[0], model, n_inputs)
    torch.manual_seed(cfg.seed)  # after loading, which draws initial weights too
    # all continuations in one batch, so that each step reads the weights once
    n_samples = cfg.num_samples if cfg.temperature else 1  # greedy ones would be equal
    idx = torch.tensor([prompt], device=device).expand(n_samples, -1)
    with runtime.autocast(device, cfg.dtype), explain(
            f"{cfg.files[0]} cannot be sampled; its weights may be NaN: take another checkpoint",
            RuntimeError):
        rows = model.generate(idx, cfg.max_new_tokens, cfg.temperature, cfg.top_k)
    for row in rows.tolist():
        continuation = row[len(prompt):]
        if end in continuation:
            continuation = continuation[:continuation.index(end)]
        print(vocab.decode(prompt[1:] + continuation), "-" * 80, sep="\n")


if __name__ == "__main__":
    launch(main)
