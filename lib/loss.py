"""
The loss of a model over many targets, without all of its logits at once.

Why our own: forward and backward of 4,096 rows x 384 x 50,257 in bf16 took 1.25 s here, 2.07 s
with all logits at once. torch 2.13's F.linear_cross_entropy took 3.91 s in chunks of 2,048, or
1.47 s by its own choice, whose loss is rounded to bf16: 11.0 where the others say 10.903. (Medians
of 3, two cores of a Xeon with AMX; on an EPYC 1.62, 4.24, 3.28 and 8.9 s.)
"""
import torch
import torch.nn.functional as F


def summed_loss(model, idx, targets, chunk=0, where=None, documents=None):
    """
    The cross-entropy in nats, summed over all targets (B, T) that are not -1.

    chunk > 0: at most so many rows of logits exist at once, so that 20,000 tokens fit anywhere. It
    needs `where`, the places in targets.flatten() that are not -1, if any target is.
    documents: see Attention.position in model.py.
    """
    x, flat = model.hidden(idx, documents=documents).flatten(0, 1), targets.flatten()
    if chunk:
        return chunked_cross_entropy(x, model.lm_head.weight, flat, chunk, where)[0]
    logits = model.lm_head(x).float()
    return F.cross_entropy(logits, flat, ignore_index=-1, reduction="none").sum()


def token_losses(model, idx, targets, chunk):
    """The cross-entropy in nats of each target, (B, T). With chunk > 0 it has no gradient."""
    x, flat = model.hidden(idx).flatten(0, 1), targets.flatten()
    if chunk:
        _, losses = chunked_cross_entropy(x, model.lm_head.weight, flat, chunk)
    else:
        losses = F.cross_entropy(model.lm_head(x).float(), flat, reduction="none")
    return losses.view_as(targets)


@torch.compiler.disable  # unrolling the chunks takes minutes and gains nothing
def chunked_cross_entropy(x, weight, targets, chunk, where=None):
    """
    x (N, C), weight (V, C), targets (N,) -> (sum, losses (N,)) in nats.

    Only `chunk` rows of logits exist at once. Only the sum has a gradient. where: places of the
    targets that count; None: all. Logits are computed only for these, which in fine-tuning are few.
    (Finding them in `targets` would make the CPU wait for the GPU at each micro-batch.)
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    grad = torch.is_grad_enabled()
    if where is None:
        return ChunkedCrossEntropy.apply(x, weight, targets, chunk, grad)
    total, losses = ChunkedCrossEntropy.apply(x[where], weight, targets[where], chunk, grad)
    return total, torch.zeros(len(x), device=x.device).index_copy(0, where, losses)


class ChunkedCrossEntropy(torch.autograd.Function):
    """
    forward also computes the gradients, so that backward need not compute the logits again. The
    log-sum-exp and the sums of gradients are fp32.
    """

    @staticmethod
    def forward(ctx, x, weight, targets, chunk, grad):
        V = ctx.V = len(weight)
        on_cpu = x.device.type == "cpu"
        # the vocabulary is padded to a multiple of 64; softmax leaves the padding out
        w = x.new_zeros(V + -V % 64, x.size(1))
        w[:V] = weight
        losses = torch.empty(len(x), device=x.device)  # fp32 whatever x is
        # one buffer for all chunks
        buffer = x.new_empty(min(chunk, len(x)), len(w))
        dx = dw = part = None
        if grad:
            # transposed, (C, V): on a CPU this product is up to 1.7 times as fast
            dx, part = torch.empty_like(x), x.new_empty(w.T.shape)
            dw = torch.zeros_like(part, dtype=torch.float32)
        for i in range(0, len(x), chunk):
            xi, ti, li = x[i:i + chunk], targets[i:i + chunk], losses[i:i + chunk]
            # d holds the logits, which `part_of` overwrites with d loss / d logits
            d = torch.mm(xi, w.T, out=buffer[:len(xi)])
            rows = max(1, 2**20 // V) if on_cpu else chunk  # rows that fit in a CPU's cache
            for j in range(0, len(xi), rows):
                part_of(d[j:j + rows, :V], ti[j:j + rows, None], li[j:j + rows, None], grad)
            if grad:
                torch.mm(d, w, out=dx[i:i + chunk])
                torch.mm(xi.T.contiguous(), d, out=part)
                # in pieces of eight rows: the addition first converts bf16 to fp32
                n = 8 if on_cpu else len(dw)
                for total, piece in zip(dw.split(n), part.split(n), strict=True):
                    total += piece
        ctx.mark_non_differentiable(losses)
        # the finished gradients, which backward only scales
        ctx.save_for_backward(dx, dw)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx, g, _):
        dx, dw = ctx.saved_tensors
        return (dx.float() * g).to(dx.dtype), dw.T[:ctx.V].contiguous().mul_(g), None, None, None


def part_of(logits, targets, losses, grad):
    """Write `losses` (n, 1) of `logits` (n, V). With `grad`, replace logits by their gradient."""
    log_p = logits.log_softmax(dim=-1, dtype=torch.float32)
    torch.neg(log_p.gather(1, targets), out=losses)
    if grad:  # softmax minus one-hot
        p = log_p.exp_()
        logits.copy_(p.scatter_add_(1, targets, torch.full_like(losses, -1)))
