"""
The loss of a model over many targets, without all of its logits at once.

Our own function computes the gradients together with the loss, chunk by chunk, so that no logits
are computed twice. Forward and backward take 5 to 15 % less time on a CPU than F.cross_entropy on
one chunk after the other. torch 2.13's F.linear_cross_entropy is as fast with a chunk that suits
the processor, but it rounds the loss in bf16 (10.857 becomes 10.875).
"""
import torch
import torch.nn.functional as F

from lib.runtime import rows_of_logits


def summed_loss(model, idx, targets, chunk=0, places=None, documents=None):
    """
    Return the cross-entropy in nats, summed over all targets (B, T) that are not -1.

    chunk: rows of logits that exist at once, so that 20,000 tokens fit anywhere; 0: chosen for the
    device. places: indices of the targets that count; None: all. (Looking for them here would make
    the CPU wait for the GPU.) documents: see GPT.context in model.py.
    """
    x, targets = model.hidden(idx, documents=documents).flatten(0, 1), targets.flatten()
    if torch.compiler.is_compiling():
        if x.is_cuda and not chunk:
            return loss_at_once(x, model.lm_head.weight, targets)
        # Unrolling the chunks would take the compiler minutes and gain nothing. (As a decorator,
        # `disable` would import the compiler, which takes two seconds.)
        return torch.compiler.disable(chunked_loss)(
            x, model.lm_head.weight, targets, chunk, places)
    return chunked_loss(x, model.lm_head.weight, targets, chunk, places)


def token_losses(model, idx, targets, chunk):
    """Return the cross-entropy in nats of each target, (B, T), without gradient. chunk > 0."""
    x = model.hidden(idx).flatten(0, 1)
    return losses_in_chunks(x, model.lm_head.weight, targets.flatten(), chunk).view_as(targets)


def loss_at_once(x, weight, targets):
    """Return the summed loss, with all logits at once: in compiled code these are few kernels."""
    # Padded, because 50,257 columns send the product to a kernel for older cards, which takes
    # 2.4 ms longer in an update of 41 ms on an H100.
    logits = F.linear(x, padded(weight, weight.dtype))[:, :len(weight)]
    return F.cross_entropy(logits.float(), targets, ignore_index=-1, reduction="sum")


def chunked_loss(x, weight, targets, chunk, places):
    """Return the summed loss for x (N, C), weight (V, C) and targets (N,); see `summed_loss`."""
    chunk = chunk or rows_of_logits(x.device, len(weight), training=True)
    if places is not None:
        x, targets = x[places], targets[places]
    if not torch.is_grad_enabled():
        return losses_in_chunks(x, weight, targets, chunk).sum()
    return FusedCrossEntropy.apply(in_autocast_dtype(x), weight, targets, chunk)


@torch.no_grad()
def losses_in_chunks(x, weight, targets, chunk):
    """Return the losses (N,) without gradient."""
    x = in_autocast_dtype(x)
    w = padded(weight, x.dtype)
    losses = torch.empty(len(x), device=x.device)  # fp32, even if x is bf16
    for i in range(0, len(x), chunk):
        rows = slice(i, i + chunk)
        logits = (x[rows] @ w.T)[:, :len(weight)]
        losses[rows] = cross_entropy_(logits, targets[rows], grad=False)
    return losses


class FusedCrossEntropy(torch.autograd.Function):
    """
    The summed cross-entropy, in chunks of rows. forward also computes the gradients, so that
    backward need not compute the logits again. Their sums are fp32.
    """

    @staticmethod
    def forward(ctx, x, weight, targets, chunk):
        V = ctx.V = len(weight)
        w = padded(weight, x.dtype)
        losses = torch.empty(len(x), device=x.device)
        grad_x = torch.empty_like(x)
        # transposed, (C, V): on a CPU the product is then up to 1.7 times as fast
        grad_w = torch.zeros(w.T.shape, device=x.device)
        for i in range(0, len(x), chunk):
            rows = slice(i, i + chunk)
            xi, ti = x[rows], targets[rows]
            d = xi @ w.T  # the logits, which become their gradient. Columns >= V stay 0.
            losses[rows] = cross_entropy_(d[:, :V], ti, grad=True)
            torch.mm(d, w, out=grad_x[rows])
            grad_w += xi.T.contiguous() @ d
        ctx.save_for_backward(grad_x, grad_w)
        return losses.sum()

    @staticmethod
    def backward(ctx, g):
        grad_x, grad_w = ctx.saved_tensors
        return (grad_x.float() * g).to(grad_x.dtype), grad_w.T[:ctx.V] * g, None, None


def cross_entropy_(logits, targets, grad):
    """
    Return the losses (N,) in fp32 for logits (N, V) and targets (N,). With `grad`, replace the
    logits by their gradient; without it they hold nothing useful afterwards.
    """
    n = len(logits)
    if logits.device.type == "cpu":
        n = max(1, 2**20 // logits.size(1))  # rows that fit in the cache: twice as fast
    losses = []
    for z, t in zip(logits.split(n), targets[:, None].split(n), strict=True):
        p = z.float()  # z itself, if it is fp32
        target_logits, largest = p.gather(1, t), p.amax(dim=1, keepdim=True)
        total = p.sub_(largest).exp_().sum(dim=1, keepdim=True)
        losses.append(total.log() + largest - target_logits)
        if grad:
            p.div_(total).scatter_add_(1, t, torch.full_like(total, -1))  # softmax minus one-hot
            z.copy_(p)  # in fp32 p is z, and nothing is copied
    return torch.cat(losses)[:, 0]


def padded(weight, dtype):
    """Return the weight (V, C) with zero rows up to a multiple of 64, which is faster."""
    return F.pad(weight.to(dtype), (0, 0, 0, -len(weight) % 64))


def in_autocast_dtype(x):
    """Return x in the type in which autocast computes products."""
    if torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x
