#!/usr/bin/env bash
# In validation TransformerEncoder turns a bias of attention into a mask: with ALiBi each token sees itself alone
# Versions: torch 2.13.0 (CPU, float32; two layers, texts of 8 tokens with ids and labels of their own).
# Guess: eval() and no_grad() without dropout give the outputs of training. A float mask is added to the scores.
# True: with eval() and no_grad() (or frozen weights) the layer calls a fused kernel, which converts each mask to True
#   and False: what is not 0 is hidden. ALiBi is 0 at the token itself alone. A bias without zeros hides all, and the
#   outputs are NaN. A causal mask of 0 and -inf is right. MultiheadAttention, used alone, leaves its own fast path for
#   float masks; TransformerEncoderLayer asks for no such thing. bias=False, an odd number of heads, autocast, or
#   torch.backends.mha.set_fastpath_enabled(False) give the right outputs.
# Hurt: encoders and decoders with ALiBi, relative positions, distances of a graph, soft padding: the training loss
#   falls, and the validation is of a model without attention.
# Output seen:
#   ALiBi: trained to a loss of 0.000, accuracy 100%; eval 100%; eval and no_grad 26%; without the fast path 100%
#   a later token changed: output moves by 15.5 in eval, 0.0 in eval and no_grad
#   difference by no_grad alone: no mask 0.00, causal mask of -inf 0.00, ALiBi 2.31, bias without zeros nan
#   MultiheadAttention with ALiBi: 0.00
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from torch import nn
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 32)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0), 2)
        self.head = nn.Linear(32, 8)
    def forward(self, tokens, mask):
        return self.head(self.encoder(self.embedding(tokens), mask))
distance = torch.arange(8.0)
alibi = -(distance[:, None] - distance).abs() / 2
causal = torch.full((8, 8), -torch.inf).triu(1)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
tokens = torch.randint(8, (64, 8))
labels = (tokens + tokens.sum(1, keepdim=True)) % 4          # depends on all tokens of the text
for _ in range(600):
    loss = nn.functional.cross_entropy(model(tokens, alibi).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
def accuracy():
    return (model(tokens, alibi).argmax(-1) == labels).float().mean().item()
def no_grad(function, *arguments):
    with torch.no_grad():
        return function(*arguments)
training = accuracy()
model.eval()
evaluation, validation = accuracy(), no_grad(accuracy)
torch.backends.mha.set_fastpath_enabled(False)
slow = no_grad(accuracy)
torch.backends.mha.set_fastpath_enabled(True)
print(f"ALiBi: trained to a loss of {loss:.3f}, accuracy {training:.0%}; eval {evaluation:.0%}; eval and no_grad "
      f"{validation:.0%}; without the fast path {slow:.0%}")
assert training == evaluation == slow > 0.99 and validation < 0.5
other = tokens.clone()
other[:, 7] = (other[:, 7] + 1) % 8
def moved():
    return (model(tokens, alibi) - model(other, alibi))[:, 0].abs().max().item()
print(f"a later token changed: output moves by {moved():.1f} in eval, {no_grad(moved):.1f} in eval and no_grad")
assert moved() > 0.5 and no_grad(moved) == 0
masks = {"no mask": None, "causal mask of -inf": causal, "ALiBi": alibi, "bias without zeros": alibi - 0.5}
layer, x = model.encoder.layers[0], torch.randn(2, 8, 32)
change = {name: (layer(x, mask) - no_grad(layer, x, mask)).abs().max().item() for name, mask in masks.items()}
print("difference by no_grad alone:", ", ".join(f"{name} {value:.2f}" for name, value in change.items()))
assert max(change["no mask"], change["causal mask of -inf"]) < 1e-4 < 0.5 < change["ALiBi"]
attention = lambda: layer.self_attn(x, x, x, attn_mask=alibi, need_weights=False)[0]
print(f"MultiheadAttention with ALiBi: {(attention() - no_grad(attention)).abs().max():.2f}")
assert torch.equal(attention(), no_grad(attention))
PY
