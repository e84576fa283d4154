#!/usr/bin/env bash
# nystrom-attention: masked padding takes the landmarks: a text of 512 padded to 4,096 has an error of .53, alone .09
# Versions: nystrom-attention 0.0.14, einops 0.8.2, torch 2.13.0 (CPU), numpy 2.4.6 (one layer of random weights without
#   the convolution, 64 landmarks, scores of spread 1; the error is the distance from exact attention by its norm).
# Guess: with a mask the text of a padded batch has the output that it has alone. More iterations of the inverse are
#   more exact.
# True: the padded length is cut into num_landmarks equal pieces, and a text of an eighth of it has an eighth of the
#   landmarks. The rest are landmarks of padding. So the quality of a text depends on the longest of its batch. The
#   inverse starts from the largest sum in the whole batch, over all texts and heads, so that a neighbour with one loud
#   piece makes the error of the others .25, without any padding. And 18 iterations are worse than the 6 of the default:
#   they come nearer to the inverse of a nearly singular matrix, and with torch.linalg.pinv the error is 1.8.
# Hurt: batches of texts of different lengths, evaluations by length, tuning of pinv_iterations.
# Output seen:
#   a text of 512 padded to 512: error 0.09
#   a text of 512 padded to 576: error 0.09
#   a text of 512 padded to 1,024: error 0.13
#   a text of 512 padded to 2,048: error 0.26
#   a text of 512 padded to 4,096: error 0.53
#   a text of 512 beside another text: error 0.09
#   a text of 512 beside one with a loud piece: error 0.25
#   6 iterations: error 0.09
#   12 iterations: error 0.14
#   18 iterations: error 0.85
. "$(dirname "$0")/common.sh"
venv nystrom-attention==0.0.14 einops==0.8.2 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from nystrom_attention import NystromAttention
from torch.nn.functional import avg_pool1d, scaled_dot_product_attention

def texts(count, length):
    """Vectors of size 1 that change slowly along the text, as hidden states do, and noise."""
    slow = avg_pool1d(torch.randn(count, 64, length + 31), 32, 1).transpose(1, 2) * 32 ** 0.5
    return (slow + 0.5 * torch.randn(count, length, 64)) / 1.25 ** 0.5

torch.manual_seed(0)
torch.set_grad_enabled(False)
layer = NystromAttention(dim=64, dim_head=64, heads=4, num_landmarks=64, residual=False).eval()
layer.to_qkv.weight[:512] *= 3 ** 0.5                              # queries and keys of size 1
x = texts(8, 512)
q, k, v = (part.unflatten(-1, (4, 64)).transpose(1, 2) for part in layer.to_qkv(x).chunk(3, dim=-1))
exact = layer.to_out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

def error(outputs):
    return ((torch.cat(list(outputs)) - exact).norm() / exact.norm()).item()

padded = {}
for length in (512, 576, 1024, 2048, 4096):
    batch, mask = torch.zeros(1, length, 64), torch.arange(length)[None] < 512
    outputs = []
    for text in x:
        batch[0, :512] = text
        outputs.append(layer(batch, mask=mask)[:, :512])
    padded[length] = error(outputs)
    print(f"a text of 512 padded to {length:,}: error {padded[length]:.2f}")
loud = texts(1, 512)
loud[:, :8] = 20 * loud[:, :1]
beside = {}
for name, neighbour in (("another text", texts(1, 512)), ("one with a loud piece", loud)):
    beside[name] = error(layer(torch.cat([text[None], neighbour]))[:1] for text in x)
    print(f"a text of 512 beside {name}: error {beside[name]:.2f}")
iterations = {}
for number in (6, 12, 18):
    layer.pinv_iterations = number
    iterations[number] = error(layer(text[None]) for text in x)
    print(f"{number} iterations: error {iterations[number]:.2f}")
assert padded[512] < 0.12 and padded[1024] > 1.3 * padded[512] and padded[4096] > 4 * padded[512]
assert beside["another text"] < 1.2 * padded[512] and beside["one with a loud piece"] > 1.5 * padded[512]
assert iterations[18] > 2 * iterations[6]
PY
