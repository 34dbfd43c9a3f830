"""PyTorch's side of the group `ops` of `bench`: a function for each op's name, of operands that the case's name describes.

Operands hold the numbers that ours hold (`xtests/src/bin/bench/groups/ops/operand.rs`), so that results can be compared. What is a
view in PyTorch is copied where ours is a tensor of its own.
"""

import torch
from torch.fft import fft, ifft, irfft, irfft2, rfft, rfft2
from torch.nn import functional

# Sequences of the cotangent, and of weights in digests.
COTANGENT, WEIGHTS = 99, 100

# Of each sequence the longest beginning that was asked for, as others are parts of it.
KEPT = {}


def sequence(seed, count):
    if count > len(KEPT.get(seed, ())):
        KEPT[seed] = drawn(seed, count)
    return KEPT[seed][:count]


def drawn(seed, count):
    """Numbers in [-0.5, 1): those of `numbers.rs`, a step of SplitMix64 each."""

    def signed(number):
        return number - (1 << 64)

    def shifted(z, by):
        return z >> by & (1 << 64 - by) - 1

    z = torch.arange(1, count + 1) * signed(0x9E3779B97F4A7C15) + (seed << 32)
    z = (z ^ shifted(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * signed(0x94D049BB133111EB)
    return 1.5 * (shifted(z, 40).double() / (1 << 24)) - 0.5


def filled(seed, shape):
    return sequence(seed, torch.Size(shape).numel()).reshape(shape)


def operand(text, seed, dtype):
    """A tensor as `4096x1024` or `sorted 4096<1000` says, and whether a gradient is asked for."""
    *words, extents = text.split(" ")
    extents, _, end = extents.partition("<")
    shape = [int(n) for n in extents.split("x")]
    x, kind = filled(seed, shape), words[-1] if words else ""
    share = (x + 0.5) / 1.5
    if kind == "bool":
        return share >= 0.5, False
    if kind == "sorted":
        places = torch.arange(x.numel()).reshape(shape)
        return ((places + share) * int(end) / x.numel()).floor().long(), False
    if end:
        return (share * int(end)).floor().long(), False
    if kind == "positive":
        x = x + 0.75
    elif kind == "unit":
        x = 0.05 + 0.9 * share
    elif kind == "weights":
        x = (x - 0.25) * 2 / shape[-1] ** 0.5
    elif kind == "definite":
        x = x.tril() + x.tril(-1).mT + shape[-1] * torch.eye(shape[-1])
    return x.to(torch.bfloat16 if kind == "bf16" else dtype), "given" not in words


def digest(results):
    """One number that tells results apart: the sum of magnitudes, those above 0 twice, each with a weight of its place."""
    found = 0.0
    for x in results:
        x = x.detach().double().reshape(-1)
        found += float((x.abs() * (1 + (x > 0).double()) * (sequence(WEIGHTS, len(x)) + 1)).sum())
    return found


def step_of(function, operands, varied, backward):
    """A function that does the work once, and at first is told apart by its digest."""

    def forward():
        return [function(*operands)]

    step = forward
    if backward:
        leaves = [x.requires_grad_() for x, vary in zip(operands, varied) if vary]
        with torch.no_grad():
            (y,) = forward()
        cotangent = filled(COTANGENT, y.shape).to(y.dtype)

        def step():
            return torch.autograd.grad(function(*operands), leaves, cotangent)

    def loss(value):
        del step.loss
        return digest(value)

    step.loss = loss
    return step


def maker(name):
    """What makes a step of a case such as `ops/linear: 4096x1024, 1024x1024, 1024/fwd+bwd/bf16`; None if its op is not here."""
    op, _, rest = name.removeprefix("ops/").partition(": ")
    if not name.startswith("ops/") or op not in OPS:
        return None
    texts, way, *halves = rest.split("/")
    dtype = torch.bfloat16 if halves else torch.float32

    def make():
        made = [operand(text, seed, dtype) for seed, text in enumerate(texts.split(", "), 1)]
        operands, varied = zip(*made)
        return step_of(OPS[op], operands, varied, way == "fwd+bwd")

    return make


def pool(function, *rest, **named):
    return lambda x: function(x, *rest, **named)


def doubled(**how):
    return lambda x: functional.interpolate(x, [2 * n for n in x.shape[2:]], **how)


def conv(run, **how):
    """A convolution with as many groups as its weight says, which keeps extents unless told otherwise."""

    def function(x, w, b):
        padding = how.get("padding", w.shape[-1] // 2)
        return run(x, w, b, how.get("stride", 1), padding, how.get("dilation", 1), x.shape[1] // w.shape[1])

    return function


def patches(x, w, b):
    return functional.conv2d(x, w, b, stride=w.shape[2])


def attention(**how):
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **how)


def windows(x):
    n, rows, columns, width = x.shape
    x = x.view(n, rows // 8, 8, columns // 8, 8, width)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 64, width)


def turned(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def thirds(x):
    q, k, v = x.chunk(3, -1)
    return q + k + v


def segment_max(x, ids, like):
    found = x.new_zeros(len(like), x.shape[1])
    return found.scatter_reduce(0, ids[:, None].expand_as(x), x, "amax", include_self=False)


def real(function):
    """A function of complex numbers, or one that gives them, with two numbers for each."""

    def of(*operands):
        y = function(*(torch.view_as_complex(x) for x in operands))
        return torch.view_as_real(y) if y.is_complex() else y

    return of


def spectrum(function):
    return lambda x: torch.view_as_real(function(x))


OPS = {
    # Maps of one number.
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "pow 2.5": lambda x: x**2.5,
    "pow 3": lambda x: x**3,
    "abs": torch.abs,
    "neg": torch.neg,
    "square": torch.square,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "softplus": functional.softplus,
    "clamp": lambda x: x.clamp(-0.25, 0.5),
    "leaky relu": functional.leaky_relu,
    "elu": functional.elu,
    "hardswish": functional.hardswish,
    "floor": torch.floor,
    "add a number": lambda x: x + 1.5,
    "mul by a number": lambda x: x * 1.5,
    # Of two.
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "atan2": torch.atan2,
    "add a row": torch.add,
    "add a column": torch.add,
    "mul by a column": torch.mul,
    "add a number for each channel": torch.add,
    "add a plane": torch.add,
    "lerp by a number": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp": torch.lerp,
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
    "swiglu": lambda gate, x: functional.silu(gate) * x,
    "glu": functional.glu,
    # Comparisons and choices.
    "gt": torch.gt,
    "gt a number": lambda x: x > 0.1,
    "where": torch.where,
    "masked fill": lambda x, mask: x.masked_fill(mask, 0.0),
    "masked fill of scores": lambda x, mask: x.masked_fill(mask, -1e4),
    "dropout": lambda x: functional.dropout(x, 0.1),
    # Losses.
    "mse loss": functional.mse_loss,
    "l1 loss": functional.l1_loss,
    "smooth l1 loss": lambda x, t: functional.smooth_l1_loss(x, t, beta=0.5),
    "huber loss": lambda x, t: functional.huber_loss(x, t, delta=0.5),
    "binary cross entropy": functional.binary_cross_entropy,
    "binary cross entropy with logits": functional.binary_cross_entropy_with_logits,
    "kl divergence": lambda x, t: functional.kl_div(x, t, reduction="batchmean"),
    "cross entropy": functional.cross_entropy,
    "cross entropy of planes": functional.cross_entropy,
    "nll loss": functional.nll_loss,
    # Conversions.
    "to bf16": lambda x: x.to(torch.bfloat16),
    "to f64": lambda x: x.double(),
    "to f32": lambda x: x.float(),
    "to truth values": lambda x: x.bool(),
    "integers to f32": lambda x: x.float(),
    # Reductions.
    "sum": torch.sum,
    "sum of rows": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "sum of planes": lambda x: x.sum((2, 3)),
    "sum but of channels": lambda x: x.sum((0, 2, 3)),
    "mean": torch.mean,
    "mean of rows": lambda x: x.mean(-1),
    "mean of tokens": lambda x: x.mean(1),
    "amax of rows": lambda x: x.amax(-1),
    "amin of columns": lambda x: x.amin(0),
    "max of rows": lambda x: x.max(-1).values,
    "argmax of rows": lambda x: x.argmax(-1),
    "argmin of columns": lambda x: x.argmin(0),
    "var of rows": lambda x: x.var(-1),
    "var of columns": lambda x: x.var(0),
    "std of rows": lambda x: x.std(-1),
    "norm": torch.linalg.vector_norm,
    "norm of rows": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "sum of squares": lambda x: x.square().sum(),
    "logsumexp of rows": lambda x: x.logsumexp(-1),
    "prod of rows": lambda x: x.prod(-1),
    "any of rows": lambda x: x.any(-1),
    "normalize rows": lambda x: functional.normalize(x, dim=-1),
    "cosine similarity": lambda x, y: functional.cosine_similarity(x, y, dim=-1),
    # Softmax and norms.
    "softmax of rows": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "log softmax of rows": lambda x: x.log_softmax(-1),
    "layer norm": lambda x, w, b: functional.layer_norm(x, w.shape, w, b),
    "rms norm": lambda x, w: functional.rms_norm(x, w.shape, w, 1e-6),
    "group norm, 8 groups": lambda x, w, b: functional.group_norm(x, 8, w, b),
    "batch norm": lambda x, w, b: functional.batch_norm(x, None, None, w, b, True),
    "batch norm of running statistics": lambda x, w, b, mean, var: functional.batch_norm(x, mean, var, w, b),
    "instance norm": lambda x, w, b: functional.instance_norm(x, weight=w, bias=b),
    # Scans.
    "cumsum of rows": lambda x: x.cumsum(-1),
    "cumsum of columns": lambda x: x.cumsum(0),
    "cumprod of rows": lambda x: x.cumprod(-1),
    "cummax of rows": lambda x: x.cummax(-1).values,
    "logcumsumexp of rows": lambda x: x.logcumsumexp(-1),
    "diff of rows": torch.diff,
    "sum of all after a product": lambda x, y: torch.einsum("ij,ij->", x, y),
    # Products.
    "matmul": torch.matmul,
    "matrix by vector": torch.matmul,
    "matrices by vectors": lambda x, y: (x @ y[..., None])[..., 0],
    "dot": torch.dot,
    "outer": torch.outer,
    "linear": functional.linear,
    "einsum bhqd,bhkd->bhqk": lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y),
    "einsum bi,oij,bj->bo": lambda x, w, y: torch.einsum("bi,oij,bj->bo", x, w, y),
    "einsum bixy,ioxy->boxy": lambda x, w: torch.einsum("bixy,ioxy->boxy", x, w),
    "cross": torch.linalg.cross,
    "cdist": torch.cdist,
    "pairwise distance": functional.pairwise_distance,
    "attention": attention(),
    "attention, causal": attention(is_causal=True),
    "attention with a mask": functional.scaled_dot_product_attention,
    "attention of a query": attention(),
    "attention of grouped heads": attention(enable_gqa=True),
    "lstm cell": lambda x, h, c, *weights: torch.lstm_cell(x, (h, c), *weights)[0],
    "gru cell": torch.gru_cell,
    # Convolutions.
    "conv1d": conv(functional.conv1d),
    "conv2d": conv(functional.conv2d),
    "conv2d, stride 2": conv(functional.conv2d, stride=2),
    "conv2d, 7 x 7, stride 2": conv(functional.conv2d, stride=2),
    "conv2d, dilated": conv(functional.conv2d, padding=2, dilation=2),
    "conv2d, patches": patches,
    "conv2d, depthwise": conv(functional.conv2d),
    "conv2d, depthwise, stride 2": conv(functional.conv2d, stride=2),
    "conv2d, 4 groups": conv(functional.conv2d),
    "conv3d": conv(functional.conv3d),
    "transposed conv2d, stride 2": lambda x, w, b: functional.conv_transpose2d(x, w, b, 2, 1),
    # Pooling.
    "max pool 2": pool(functional.max_pool2d, 2),
    "max pool 3, stride 2": pool(functional.max_pool2d, 3, 2, 1),
    "avg pool 2": pool(functional.avg_pool2d, 2),
    "avg pool 3, stride 1": pool(functional.avg_pool2d, 3, 1, 1),
    "adaptive avg pool to 1": pool(functional.adaptive_avg_pool2d, 1),
    "adaptive avg pool to 7": pool(functional.adaptive_avg_pool2d, 7),
    "adaptive max pool to 7": pool(functional.adaptive_max_pool2d, 7),
    # Interpolation and samples.
    "interpolate, nearest": doubled(mode="nearest"),
    "interpolate, linear": doubled(mode="bilinear"),
    "interpolate, linear, aligned": doubled(mode="bilinear", align_corners=True),
    "interpolate, cubic": doubled(mode="bicubic"),
    "grid sample": lambda x, grid: functional.grid_sample(x, grid, align_corners=False),
    "grid sample, nearest": lambda x, grid: functional.grid_sample(x, grid, "nearest", align_corners=False),
    # Edges and windows.
    "pad with zeros": pool(functional.pad, (1, 1, 1, 1)),
    "pad, reflected": pool(functional.pad, (2, 2, 2, 2), "reflect"),
    "pad, circular": pool(functional.pad, (2, 2, 2, 2), "circular"),
    "unfold 3 x 3": pool(functional.unfold, 3, padding=1),
    "pixel shuffle 2": pool(functional.pixel_shuffle, 2),
    # Rows and elements by index.
    "embedding": lambda table, index: functional.embedding(index, table),
    "index select": lambda x, index: x.index_select(0, index),
    "index select of columns": lambda x, index: x.index_select(1, index),
    "gather": lambda x, index: x.gather(1, index),
    "take along rows": lambda x, index: x.take_along_dim(index, 1),
    "scatter add": lambda x, index, y: x.scatter_add(1, index, y),
    "index add": lambda x, index, y: x.index_add(0, index, y),
    "segment sum, sorted": lambda x, ids, like: x.new_zeros(len(like), x.shape[1]).index_add(0, ids, x),
    "segment max": segment_max,
    "one hot of 1000": lambda x: functional.one_hot(x, 1000),
    "masked select": torch.masked_select,
    "nonzero": torch.nonzero,
    "rows where a mask is": lambda x, mask: x[mask],
    # Order and counts.
    "sort": lambda x: x.sort(-1).values,
    "argsort": lambda x: torch.argsort(x, dim=-1, stable=True),
    "sort of integers": lambda x: x.sort(0).values,
    "topk 8": lambda x: x.topk(8, -1).values,
    "median of rows": lambda x: x.median(-1).values,
    "searchsorted": torch.searchsorted,
    "unique": torch.unique,
    "bincount": torch.bincount,
    "histc of 64": lambda x: torch.histc(x, 64, -0.5, 1.0),
    "isin": torch.isin,
    # Moves.
    "transpose": lambda x: x.transpose(-1, -2).contiguous(),
    "channels last": lambda x: x.permute(0, 2, 3, 1).contiguous(),
    "channels first": lambda x: x.permute(0, 3, 1, 2).contiguous(),
    "split heads of 8": lambda x: x.unflatten(-1, (8, -1)).transpose(1, 2).contiguous(),
    "merge heads": lambda x: x.transpose(1, 2).flatten(2, 3),
    "windows of 8 x 8": windows,
    "cat of rows": lambda *x: torch.cat(x, 0),
    "cat of columns": lambda *x: torch.cat(x, 1),
    "cat of channels": lambda *x: torch.cat(x, 1),
    "stack": lambda *x: torch.stack(x),
    "stack last": lambda *x: torch.stack(x, -1),
    "thirds of columns, summed": thirds,
    "rotary places": turned,
    "flip rows": lambda x: x.flip(0),
    "flip columns": lambda x: x.flip(1),
    "roll of planes": lambda x: x.roll((-3, -3), (1, 2)),
    "repeat": lambda x: x.repeat(4, 4),
    "repeat interleave": lambda x: x.repeat_interleave(4, 0),
    "expand": lambda x: x.expand(-1, 16, -1).contiguous(),
    "tril": torch.tril,
    "triu": lambda x: x.triu(1),
    "diagonal": lambda x: x.diagonal().contiguous(),
    "every second column": lambda x: x[:, ::2].contiguous(),
    "every second row": lambda x: x[::2].contiguous(),
    "a quarter of columns": lambda x: x[:, : x.shape[1] // 4].contiguous(),
    "first token": lambda x: x[:, 0].contiguous(),
    "rows assigned": lambda x, y: x.slice_scatter(y, 0, 8, 8 + len(y)),
    # Signals.
    "fft": real(fft),
    "ifft": real(ifft),
    "fft of columns": real(lambda x: fft(x, dim=0)),
    "rfft": spectrum(rfft),
    "irfft": real(irfft),
    "rfft of planes": spectrum(rfft2),
    "irfft of planes": real(irfft2),
    "complex mul": real(torch.mul),
    # Factors of matrices.
    "det": torch.linalg.det,
    "inv": torch.linalg.inv,
    "cholesky": torch.linalg.cholesky,
    "solve": torch.linalg.solve,
    "qr": lambda x: torch.linalg.qr(x).R,
    "svd": lambda x: torch.linalg.svd(x, full_matrices=False).S,
    "eigh": lambda x: torch.linalg.eigh(x).eigenvalues,
}
