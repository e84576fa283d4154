"""
The loss of a model over many targets, without all of its logits at once.

We wrote our own because the alternatives were slower. Seconds for forward and backward of 4,096
rows x 384 x 50,257 in bf16 (medians of 3, two cores; the Xeon has AMX):

                                                      Xeon  EPYC
    chunked_cross_entropy, below                      1.25  1.62
    all logits at once                                2.07  4.24
    torch 2.13's F.linear_cross_entropy, chunk 2,048  3.91  3.28
    the same, with the chunk that it chooses          1.47  8.9

The last one rounds the loss from 10.903 to 11.0.
"""
import math

import torch
import torch.nn.functional as F


def summed_loss(model, idx, targets, chunk=0, counted=None, documents=None):
    """
    Return the cross-entropy in nats, summed over all targets (B, T) that are not -1.

    chunk > 0: at most `chunk` rows of logits exist at once, so that 20,000 tokens fit anywhere.
    With chunk, pass `counted`, the indices of the targets >= 0, unless all are.
    documents: see Attention.make_position in model.py.
    """
    x, flat = model.hidden(idx, documents=documents).flatten(0, 1), targets.flatten()
    if chunk:
        chunked = chunked_cross_entropy
        # Unrolling the chunks would take the compiler minutes and gain nothing. (As a decorator,
        # `disable` would import the compiler, which takes two seconds.)
        if torch.compiler.is_compiling():
            chunked = torch.compiler.disable(chunked)
        return chunked(x, model.lm_head.weight, flat, chunk, counted)[0]
    logits = model.lm_head(x).float()
    return F.cross_entropy(logits, flat, ignore_index=-1, reduction="none").sum()


def token_losses(model, idx, targets, chunk):
    """Return the cross-entropy in nats of each target, (B, T), without gradient. chunk > 0."""
    x = model.hidden(idx).flatten(0, 1)
    _, losses = chunked_cross_entropy(x, model.lm_head.weight, targets.flatten(), chunk)
    return losses.view_as(targets)


def chunked_cross_entropy(x, weight, targets, chunk, counted=None):
    """
    Return (sum, losses (N,)) in nats, for x (N, C), weight (V, C) and targets (N,).

    Only `chunk` rows of logits exist at once. Only the sum has a gradient. counted: indices of the
    targets that count, in fine-tuning few; None: all. (Looking for them here would make the CPU
    wait for the GPU.)
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    grad = torch.is_grad_enabled()
    if counted is None:
        return ChunkedCrossEntropy.apply(x, weight, targets, chunk, grad)
    total, losses = ChunkedCrossEntropy.apply(x[counted], weight, targets[counted], chunk, grad)
    return total, torch.zeros(len(x), device=x.device).index_copy(0, counted, losses)


class ChunkedCrossEntropy(torch.autograd.Function):
    """
    Cross-entropy in chunks of rows. forward also computes the gradients, so that backward need not
    compute the logits again. The log-sum-exp and the sums of gradients are fp32.
    """

    @staticmethod
    def forward(ctx, x, weight, targets, chunk, grad):
        V = ctx.V = len(weight)
        on_cpu = x.device.type == "cpu"
        # padded with zero rows to a multiple of 64, which is faster
        w = x.new_zeros(64 * math.ceil(V / 64), x.size(1))
        w[:V] = weight
        losses = torch.empty(len(x), device=x.device)  # fp32, even if x is bf16
        buffer = x.new_empty(min(chunk, len(x)), len(w))
        dx = dw = None
        if grad:
            # dw is transposed, (C, V): on a CPU its product is up to 1.7 times as fast
            dx = torch.empty_like(x)
            dw = torch.zeros(w.T.shape, device=x.device)
            chunk_dw = None if x.dtype == dw.dtype else x.new_empty(w.T.shape)
        for i in range(0, len(x), chunk):
            xi, ti, li = x[i:i + chunk], targets[i:i + chunk], losses[i:i + chunk]
            # `d` holds the logits, then their gradient. Columns >= V are padding and stay 0.
            d = torch.mm(xi, w.T, out=buffer[:len(xi)])
            rows = max(1, 2**20 // V) if on_cpu else chunk  # rows that fit in a CPU's cache
            for j in range(0, len(xi), rows):
                loss_and_gradient_(
                    d[j:j + rows, :V], ti[j:j + rows, None], li[j:j + rows, None], grad)
            if grad:
                torch.mm(d, w, out=dx[i:i + chunk])
                add_product(dw, xi.T.contiguous(), d, chunk_dw)
        ctx.mark_non_differentiable(losses)
        ctx.save_for_backward(dx, dw)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx, g, _):
        dx, dw = ctx.saved_tensors
        return (dx.float() * g).to(dx.dtype), dw.T[:ctx.V].contiguous().mul_(g), None, None, None


def add_product(total, a, b, buffer):
    """Add a @ b to `total`, which is fp32. buffer: for the product, or None if it is fp32 too."""
    if buffer is None:
        total.addmm_(a, b)
        return
    torch.mm(a, b, out=buffer)
    # The sum makes an fp32 copy of `buffer`: in eight rows at a time it stays in a CPU's cache.
    n = 8 if total.device.type == "cpu" else len(total)
    for rows, more in zip(total.split(n), buffer.split(n), strict=True):
        rows += more


def loss_and_gradient_(logits, targets, losses, grad):
    """
    Write the losses of `logits` (n, V) into `losses` (n, 1). With `grad`, replace the logits by
    their gradient; without it they hold nothing useful afterwards.
    """
    if logits.device.type == "cpu":
        # In place: on a CPU, log_softmax and exp take 1.2 (bf16) to 1.6 times as long. On a GPU
        # these steps would start more kernels.
        p = logits.float()  # fp32 logits are not copied: then p is `logits` itself
        of_targets, largest = p.gather(1, targets), p.amax(dim=1, keepdim=True)
        total = p.sub_(largest).exp_().sum(dim=1, keepdim=True)
        torch.sub(total.log() + largest, of_targets, out=losses)
        if grad:
            p.div_(total)
    else:
        log_p = logits.log_softmax(dim=-1, dtype=torch.float32)
        torch.neg(log_p.gather(1, targets), out=losses)
        p = log_p.exp_() if grad else None
    if grad:
        p.scatter_add_(1, targets, torch.full_like(losses, -1))  # softmax minus one-hot
        if p is not logits:
            logits.copy_(p)
