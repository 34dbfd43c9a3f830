"""Draws reference cases, as many as one likes, in the form of those in open/.

    python3 xtests/data/draw.py SEED COUNT FOLDER [KIND...]
    cargo run --release -p xtests --bin conformance -- FOLDER --budget 300

Shapes, options and which operands there are follow from the seed; what comes of them, and gradients, is PyTorch's in float64. Numbers are
away from where functions have kinks and from ties. What is left then are cases that rounding decides: gradients that are zero but for
it, as of attention to a single key or of a norm of two numbers, may differ by more than the tolerance.
"""

import json
import math
import random
import struct
import sys
import warnings
from pathlib import Path

import torch

F = torch.nn.functional
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
warnings.simplefilter("ignore")
rnd = random.Random()
KINDS = {}


def kind(draw):
    """A function that draws a case: op, attributes, inputs by name, function of them, and names of inputs without a gradient."""
    KINDS[draw.__name__] = draw
    return draw


def below(most, least=1):
    return rnd.randint(least, most)


def one_of(*all):
    return rnd.choice(all)


def chance(share=0.5):
    return rnd.random() < share


def extent(top=13, empty=True):
    return 0 if empty and chance(0.06) else min(one_of(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13), top)


def shape(least, most, top=13, empty=True):
    return [extent(top, empty) for _ in range(below(most, least))]


def apart(of):
    """Numbers no two of which are equal, in any order, none of them near a whole one."""
    n = math.prod(of)
    return ((torch.randperm(n) - n / 2 + 0.37) * max(0.02, 4 / max(n, 1))).reshape(of)


def broadcast():
    """Two shapes that broadcast."""
    whole = shape(0, 4)
    one = lambda: [n if chance(0.75) else 1 for n in whole][below(len(whole), 0) if chance(0.3) else 0:]
    return one(), one()


def dims_of(of):
    return rnd.sample(range(len(of)), below(len(of)))


def each(dims, most, least=1):
    return [below(most, least) for _ in range(dims)]


def maybe(inputs, share=0.6):
    return inputs if chance(share) else {}


def named(module, *names):
    name = rnd.choice(names)
    return name, getattr(module, name)


@kind
def maps():
    name = one_of(
        "exp", "sin", "cos", "tanh", "sigmoid", "erf", "erfc", "sinh", "cosh", "atan", "asinh", "expm1", "abs", "square", "sinc", "silu",
        "mish", "softsign", "relu", "relu6", "selu", "hardswish", "hardsigmoid", "logsigmoid", "tanhshrink",
    )
    f = getattr(F, name, None) or getattr(torch, name)
    return name, {}, {"input": apart(shape(0, 4))}, f


@kind
def maps_with_options():
    name, options = one_of(
        ("elu", {"alpha": one_of(0.5, 2.0)}),
        ("leaky_relu", {"negative_slope": one_of(0.3, -0.5)}),
        ("softplus", {"beta": one_of(0.5, 3.0), "threshold": one_of(20.0, 2.0)}),
        ("gelu", {"approximate": one_of("none", "tanh")}),
        ("hardtanh", {"min_val": -0.703, "max_val": 0.403}),
        ("hardshrink", {"lambd": 0.503}),
        ("softshrink", {"lambd": 0.503}),
    )
    return name, options, {"input": apart(shape(1, 4))}, lambda input: getattr(F, name)(input, **options)


@kind
def of_two():
    name, f = named(
        torch, "add", "sub", "mul", "div", "maximum", "minimum", "atan2", "hypot", "logaddexp", "logaddexp2", "fmax", "fmin", "copysign",
        "pow", "fmod", "remainder",
    )
    a, b = map(torch.randn, broadcast())
    if name in ("div", "fmod", "remainder"):
        b = b.sign() * (b.abs() + 0.5)
    if name == "pow":
        a = a.abs() + 0.2
    return name, {}, {"a": a, "b": b}, lambda a, b: f(a, b)


@kind
def of_three():
    a, b = broadcast()
    divisor = torch.randn(b)
    inputs = {"a": torch.randn(a), "b": divisor.sign() * (divisor.abs() + 0.3)}
    whole = list(torch.broadcast_shapes(a, b))
    if chance(0.3):
        inputs = {"condition": torch.rand(whole) < 0.5, **inputs}
        return "where", {}, inputs, lambda condition, a, b: torch.where(condition, a, b)
    name, f = named(torch, "addcmul", "addcdiv")
    value = one_of(1.0, -0.5)
    return name, {"value": value}, {"input": torch.randn(whole), **inputs}, lambda input, a, b: f(input, a, b, value=value)


def windowed(dims, kernel, stretch, padding):
    """Extents that have a window at least."""
    top = 13 if dims < 3 else 6
    return [max(extent(top, False), s * (k - 1) + 1 - 2 * p, 1) for k, s, p in zip(kernel, stretch, padding)]


@kind
def convolutions():
    dims, groups = below(3), one_of(1, 1, 2, 3)
    kernel, stride, dilation, padding = each(dims, 4), each(dims, 3), each(dims, 2), each(dims, 3, 0)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x = torch.randn([one_of(0, 1, 2, 3, 5), groups * below(3)] + windowed(dims, kernel, dilation, padding))
    w = torch.randn([groups * below(3), x.shape[1] // groups] + kernel)
    if chance(0.15):
        options |= {"padding": "same", "stride": [1] * dims}
    inputs = {"input": x, "weight": w, **maybe({"bias": torch.randn(w.shape[0])})}
    f = [F.conv1d, F.conv2d, F.conv3d][dims - 1]
    return f"conv{dims}d", options, inputs, lambda input, weight, bias=None: f(input, weight, bias, **options)


@kind
def transposed_convolutions():
    dims, groups = below(3), one_of(1, 1, 2)
    kernel, stride, dilation = each(dims, 4), each(dims, 3), each(dims, 2)
    more = [below(max(s, d) - 1, 0) for s, d in zip(stride, dilation)]
    reach = [d * (k - 1) for k, d in zip(kernel, dilation)]
    places = [extent(9 if dims < 3 else 5, False) for _ in range(dims)]
    padding = [below(min(2, r), 0) for r in reach]
    padding = [p if (n - 1) * s - 2 * p + r + m >= 0 else 0 for n, s, p, r, m in zip(places, stride, padding, reach, more)]
    options = {"stride": stride, "padding": padding, "output_padding": more, "groups": groups, "dilation": dilation}
    x = torch.randn([one_of(0, 1, 2, 3), groups * below(3)] + places)
    w = torch.randn([x.shape[1], below(3)] + kernel)
    inputs = {"input": x, "weight": w, **maybe({"bias": torch.randn(w.shape[1] * groups)})}
    f = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][dims - 1]
    return f"conv_transpose{dims}d", options, inputs, lambda input, weight, bias=None: f(input, weight, bias, **options)


@kind
def pools():
    dims, most = below(3), chance()
    kernel, stride = each(dims, 4), each(dims, 4)
    dilation = each(dims, 2) if most else [1] * dims
    options = {"kernel_size": kernel, "stride": stride, "padding": [below(k // 2, 0) for k in kernel], "ceil_mode": chance(0.4)}
    x = apart([below(3), below(3)] + windowed(dims, kernel, dilation, options["padding"]))
    if most:
        options |= {"dilation": dilation, "return_indices": chance(0.4)}
        f = [F.max_pool1d, F.max_pool2d, F.max_pool3d][dims - 1]
    else:
        options |= {"count_include_pad": chance(), **maybe({"divisor_override": below(7)} if dims > 1 else {}, 0.3)}
        f = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][dims - 1]
    return f.__name__ if not most else f"max_pool{dims}d", options, {"input": x}, lambda input: f(input, **options)


@kind
def adaptive_pools():
    dims = below(3)
    size = each(dims, 9 if dims < 3 else 4)
    x = apart([below(3), below(3)] + [extent(9, False) for _ in range(dims)])
    if chance():
        f = [F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d][dims - 1]
        return f"adaptive_avg_pool{dims}d", {"output_size": size}, {"input": x}, lambda input: f(input, size)
    f = [F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d][dims - 1]
    return f"adaptive_max_pool{dims}d", {"output_size": size}, {"input": x}, lambda input: f(input, size, return_indices=True)


@kind
def resized():
    dims = below(3)
    smooth = ["linear", "bilinear", "trilinear"][dims - 1]
    options = {"mode": one_of("nearest", "nearest-exact", "area", smooth, *(["bicubic"] if dims == 2 else []))}
    x = torch.randn([below(3), below(3)] + [extent(9, False) for _ in range(dims)])
    if chance(0.6):
        options["size"] = each(dims, 12 if dims < 3 else 6)
    else:
        options["scale_factor"] = [one_of(1.5, 2.0, 2.7, 3.0) if n < 3 else one_of(0.5, 0.8, 1.5, 2.0) for n in x.shape[2:]]
    if "linear" in options["mode"] or "cubic" in options["mode"]:
        options["align_corners"] = "size" in options and chance()
    return "interpolate", options, {"input": x}, lambda input: F.interpolate(input, **options)


@kind
def sampled():
    dims = below(3, 2)
    modes = ["bilinear", "nearest"] + (["bicubic"] if dims == 2 else [])
    edges = one_of("zeros", "border", "reflection")
    options = {"mode": rnd.choice(modes), "padding_mode": edges, "align_corners": chance()}
    x = torch.randn([below(3), below(3)] + each(dims, 7, 2))
    at = torch.rand([x.shape[0]] + each(dims, 5) + [dims]) * 2.6 - 1.3
    return "grid_sample", options, {"input": x, "grid": at}, lambda input, grid: F.grid_sample(input, grid, **options)


@kind
def unfolded():
    kernel, dilation, padding = each(2, 3), each(2, 2), each(2, 2, 0)
    options = {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": each(2, 3)}
    places = windowed(2, kernel, dilation, padding)
    x = torch.randn([below(3), below(3)] + places)
    if chance():
        return "unfold2d", options, {"input": x}, lambda input: F.unfold(input, **options)
    x = torch.randn_like(F.unfold(x, **options))
    options["output_size"] = places
    return "fold2d", options, {"input": x}, lambda input: F.fold(input, **options)


@kind
def padded():
    mode, x = one_of("constant", "reflect", "replicate", "circular"), torch.randn(shape(2, 4, 8, False))
    dims = below(x.ndim) if mode == "constant" else {2: 1, 3: below(2), 4: 2}[x.ndim]
    pad = []
    for n in reversed(x.shape[x.ndim - dims:]):
        if mode == "constant":
            pair = each(2, 3, -2)
            pad += pair if n + sum(pair) > 0 else [1, 1]
        else:
            pad += each(2, {"reflect": n - 1, "circular": n, "replicate": 5}[mode], 0)
    options = {"pad": pad, "mode": mode, **({"value": 1.5} if mode == "constant" else {})}
    return "pad", options, {"input": x}, lambda input: F.pad(input, **options)


@kind
def layer_norms():
    of = shape(1, 4, empty=False)
    normalized = of[below(len(of) - 1, 0):]
    options = {"normalized_shape": normalized, "eps": one_of(1e-5, 1e-3)}
    inputs = {"input": torch.randn(of), **maybe({"weight": torch.randn(normalized)}, 0.7)}
    name, f = named(F, "layer_norm", "rms_norm")
    if name == "layer_norm" and "weight" in inputs:
        inputs |= maybe({"bias": torch.randn(normalized)}, 0.7)
    return name, options, inputs, lambda input, **others: f(input, normalized, eps=options["eps"], **others)


@kind
def norms_of_channels():
    groups, which = below(4), one_of("group_norm", "instance_norm", "batch_norm")
    channels = groups * below(3)
    x = torch.randn([below(5, 2), channels] + shape(0, 2, 6, False) + [below(6, 3)])
    inputs = {"input": x, **maybe({"weight": torch.randn(channels), "bias": torch.randn(channels)}, 0.7)}
    if which == "group_norm":
        return which, {"num_groups": groups, "eps": 1e-5}, inputs, lambda input, **o: F.group_norm(input, groups, **o)
    if which == "instance_norm":
        return which, {"eps": 1e-5}, inputs, F.instance_norm
    training = chance(0.7)
    inputs |= maybe({"running_mean": torch.randn(channels), "running_var": torch.rand(channels) + 0.3}, 0.5 if training else 1)

    def batch_norm(input, running_mean=None, running_var=None, **others):
        old = [x if x is None else x.clone() for x in (running_mean, running_var)]
        return F.batch_norm(input, *old, training=training, **others)

    return which, {"training": training, "momentum": 0.1, "eps": 1e-5}, inputs, batch_norm, {"running_mean", "running_var"}


@kind
def reductions():
    x = apart(shape(1, 4, empty=False))
    dims, keepdim = dims_of(x.shape), chance(0.4)
    options = {"dim": dims, "keepdim": keepdim}
    name = one_of("sum", "mean", "amax", "amin", "logsumexp", "var", "std", "norm")
    if name == "norm":
        p = one_of(1, 2, 3, 2.5, "inf", "-inf")
        of = lambda input: torch.linalg.vector_norm(input, float(p), dims, keepdim=keepdim)
        return name, {"ord": p, **options}, {"input": x}, of
    if name in ("var", "std"):
        several = math.prod(x.shape[d] for d in dims) > 1
        name = name if several else "var"
        options["correction"] = below(1, 0) if several else 0
    return name, options, {"input": x}, lambda input: getattr(torch, name)(input, **options)


@kind
def along_a_dim():
    x = apart(shape(1, 4, empty=False))
    dim, keepdim = below(x.ndim) - 1, chance(0.4)
    name, f = named(
        torch, "softmax", "log_softmax", "prod", "argmax", "argmin", "max", "min", "median", "cumsum", "cumprod", "cummax", "cummin",
        "logcumsumexp", "kthvalue", "sort", "topk", "diff", "flip", "unbind",
    )
    options = {"dim": dim}
    if name in ("prod", "argmax", "argmin", "max", "min", "median", "kthvalue"):
        options["keepdim"] = keepdim
    if name in ("kthvalue", "topk"):
        options["k"] = below(x.shape[dim])
    if name == "topk":
        options["largest"] = chance()
    if name == "sort":
        options |= {"descending": chance(), "stable": True}
    if name == "diff":
        options["n"] = below(3, 0)
    if name == "flip":
        options = {"dims": dims_of(x.shape)}
    return name, options, {"input": x}, lambda input: f(input, **options)


@kind
def of_classes():
    n, classes, places = below(7), below(7), shape(0, 2, 6, False)
    options = {"reduction": one_of("mean", "sum", "none"), "label_smoothing": one_of(0.0, 0.1, 0.4)}
    x, target = torch.randn([n, classes] + places), torch.randint(0, classes, [n] + places)
    inputs = {"input": x, "target": target, **maybe({"weight": torch.rand(classes) + 0.1}, 0.4)}
    if chance(0.2):
        inputs["target"] = torch.softmax(torch.randn(x.shape), 1)
    elif chance(0.3) and (target != 0).any():
        options["ignore_index"] = 0
    if chance(0.3) and not inputs["target"].is_floating_point():
        del options["label_smoothing"]
        return "nll_loss", options, inputs, lambda input, target, weight=None: F.nll_loss(input, target, weight, **options), {"weight"}
    return "cross_entropy", options, inputs, lambda input, target, weight=None: F.cross_entropy(input, target, weight, **options), {"weight"}


@kind
def losses():
    of, options = shape(1, 3, empty=False), {"reduction": one_of("mean", "sum", "none")}
    x, target, without = torch.randn(of), torch.randn(of), set()
    name, f = named(
        F, "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss",
        "gaussian_nll_loss", "soft_margin_loss", "hinge_embedding_loss",
    )
    inputs = {"input": x, "target": target}
    if name == "smooth_l1_loss":
        options["beta"] = one_of(0.5, 2.0)
    if name == "huber_loss":
        options["delta"] = one_of(0.5, 2.0)
    if name.startswith("binary"):
        inputs |= {"target": torch.rand(of), **maybe({"weight": torch.rand(of)}, 0.4), **maybe({"pos_weight": torch.rand(of[-1]) + 0.2}, 0.4)}
        without = {"weight", "pos_weight"}
    if name == "kl_div":
        options = {"reduction": one_of("mean", "sum", "none", "batchmean"), "log_target": chance()}
        inputs["target"] = (torch.rand(of) + 0.1).log() if options["log_target"] else torch.rand(of) + 0.1
    if name == "poisson_nll_loss":
        options |= {"log_input": chance(), "full": chance(), "eps": 1e-8}
        inputs |= {"input": x if options["log_input"] else x.abs() + 0.1, "target": torch.randint(0, 5, of).double()}
        without = {"target"}
    if name == "gaussian_nll_loss":
        options |= {"full": chance(), "eps": 1e-6}
        inputs["var"] = x.abs() + 0.2
    if name in ("soft_margin_loss", "hinge_embedding_loss"):
        inputs["target"], without = target.sign(), {"target"}
    return name, options, inputs, lambda **inputs: f(**inputs, **options), without


@kind
def products():
    n, few = extent(), lambda: shape(0, 2, 4, False)
    which = one_of("matmul", "linear", "baddbmm", "einsum", "outer", "inner", "kron", "bilinear")
    if which == "matmul":
        batch = few()
        one = lambda: [k if chance(0.7) else 1 for k in batch]
        a = torch.randn(one_of([n], one() + [extent(), n]))
        return which, {}, {"a": a, "b": torch.randn(one_of([n], one() + [n, extent()]))}, lambda a, b: a @ b
    if which == "linear":
        w = torch.randn(extent(), n)
        inputs = {"input": torch.randn(shape(0, 3) + [n]), "weight": w, **maybe({"bias": torch.randn(w.shape[0])})}
        return which, {}, inputs, F.linear
    if which == "baddbmm":
        b, m, p = below(4), extent(), extent()
        options = {"beta": one_of(0.5, 1.0), "alpha": one_of(1.0, 2.5)}
        inputs = {"input": torch.randn(one_of([b, m, p], [1, p], [b, 1, p])), "a": torch.randn(b, m, n), "b": torch.randn(b, n, p)}
        return which, options, inputs, lambda input, a, b: torch.baddbmm(input, a, b, **options)
    if which == "einsum":
        equation = one_of(
            "ab,bc->ac", "ab,cb->ac", "abc,abd->acd", "abc,cd->abd", "ab,ab->a", "abc->ca", "ab->", "abcd,cd->ab", "abc,dbc->ad",
            "ab,b,bc->ac", "ab,ac->bc", "abcd,abed->abce",
        )
        extents = {letter: extent(6) for letter in "abcde"}
        terms = equation.split("->")[0].split(",")
        inputs = {name: torch.randn([extents[letter] for letter in term]) for name, term in zip("abc", terms)}
        return which, {"equation": equation}, inputs, lambda **inputs: torch.einsum(equation, *inputs.values())
    if which == "bilinear":
        rows, a, b = shape(1, 2), below(5), below(5)
        inputs = {"a": torch.randn(rows + [a]), "b": torch.randn(rows + [b]), "weight": torch.randn(below(5), a, b)}
        return which, {}, inputs, lambda a, b, weight: F.bilinear(a, b, weight)
    a, b = {"outer": ([n], [extent()]), "inner": (few() + [n], few() + [n]), "kron": (shape(1, 3, 4), shape(1, 3, 4))}[which]
    return which, {}, {"a": torch.randn(a), "b": torch.randn(b)}, lambda a, b: getattr(torch, which)(a, b)


@kind
def attention():
    batch, heads, width, queries, keys = below(3), below(4), below(6), below(9), below(9, 2)
    options = {**maybe({"scale": one_of(0.3, 1.25)}, 0.3)}
    served = one_of(*(h for h in range(1, heads + 1) if heads % h == 0)) if chance(0.3) else heads
    if served != heads:
        options["enable_gqa"] = True
    inputs = {"query": torch.randn(batch, heads, queries, width), "key": torch.randn(batch, served, keys, width)}
    inputs["value"] = torch.randn(batch, served, keys, below(6))
    mask = one_of(None, "causal", "bias", "seen")
    if mask == "causal":
        options["is_causal"] = True
    if mask == "bias":
        of = one_of([queries, keys], [batch, 1, queries, keys], [batch, heads, queries, keys], [1, keys])
        inputs["attn_mask"] = torch.randn(of)
    if mask == "seen":
        inputs["attn_mask"] = torch.rand(queries, keys) < 0.6
        inputs["attn_mask"][:, 0] = True
    return "scaled_dot_product_attention", options, inputs, lambda **i: F.scaled_dot_product_attention(**i, **options)


@kind
def by_indices():
    x = torch.randn(shape(1, 3, empty=False))
    dim, name = below(x.ndim) - 1, one_of("index_select", "gather", "scatter_add", "scatter_reduce", "index_add", "index_fill", "take", "masked_fill")
    some = [below(n) for n in x.shape]
    some[dim] = extent()
    row, all = torch.randint(0, x.shape[dim], [extent()]), torch.randint(0, x.shape[dim], some)
    rows = torch.randn([row.numel() if d == dim else n for d, n in enumerate(x.shape)])
    if name == "index_select":
        return name, {"dim": dim}, {"input": x, "index": row}, lambda input, index: input.index_select(dim, index)
    if name == "index_fill":
        return name, {"dim": dim, "value": 1.5}, {"input": x, "index": row}, lambda input, index: input.index_fill(dim, index, 1.5)
    if name == "index_add":
        alpha = one_of(1, -0.5)
        inputs = {"input": x, "index": row, "src": rows}
        return name, {"dim": dim, "alpha": alpha}, inputs, lambda input, index, src: input.index_add(dim, index, src, alpha=alpha)
    if name == "gather":
        return name, {"dim": dim}, {"input": x, "index": all}, lambda input, index: input.gather(dim, index)
    if name == "take":
        return name, {}, {"input": x, "index": torch.randint(0, x.numel(), shape(0, 2))}, torch.take
    if name == "masked_fill":
        return name, {"value": -2.5}, {"input": x, "mask": torch.rand(x.shape) < 0.4}, lambda input, mask: input.masked_fill(mask, -2.5)
    inputs = {"input": x, "index": all, "src": torch.randn(some)}
    if name == "scatter_add":
        return name, {"dim": dim}, inputs, lambda input, index, src: input.scatter_add(dim, index, src)
    how = {"reduce": one_of("sum", "mean", "amax", "amin", "prod"), "include_self": chance()}
    return name, {"dim": dim, **how}, inputs, lambda input, index, src: input.scatter_reduce(dim, index, src, **how)


@kind
def embeddings():
    table = torch.randn(below(9), below(6))
    options = maybe({"padding_idx": below(table.shape[0]) - 1}, 0.4)
    if chance():
        inputs = {"indices": torch.randint(0, table.shape[0], shape(1, 3)), "weight": table}
        return "embedding", options, inputs, lambda indices, weight: F.embedding(indices, weight, **options)
    count = below(12, 0)
    offsets = torch.randint(0, count + 1, [below(5)]).sort()[0]
    offsets[0] = 0
    options |= {"mode": one_of("sum", "mean", "max")}
    inputs = {"indices": torch.randint(0, table.shape[0], [count]), "weight": table, "offsets": offsets}
    return "embedding_bag", options, inputs, lambda indices, weight, offsets: F.embedding_bag(indices, weight, offsets, **options)


@kind
def moves():
    x = torch.randn(shape(2, 4))
    dim, two = below(x.ndim) - 1, rnd.sample(range(x.ndim), 2)
    name, options = one_of(
        ("permute", {"dims": rnd.sample(range(x.ndim), x.ndim)}),
        ("roll", {"shifts": (shifts := each(below(x.ndim), 9, -9)), "dims": rnd.sample(range(x.ndim), len(shifts))}),
        ("narrow", {"dim": dim, "start": (start := below(x.shape[dim], 0)), "length": below(x.shape[dim] - start, 0)}),
        ("tril", {"diagonal": below(4, -4)}),
        ("triu", {"diagonal": below(4, -4)}),
        ("rot90", {"k": below(5, -3), "dims": two}),
        ("diagonal", {"offset": below(3, -3), "dim1": two[0], "dim2": two[1]}),
        ("chunk", {"chunks": below(5), "dim": dim}),
        ("tensor_split", {"sections": below(5), "dim": dim}),
    )
    return name, options, {"input": x}, lambda input: getattr(torch, name)(input, **options)


@kind
def joins():
    of = shape(1, 4)
    dim, name = below(len(of)) - 1, one_of("cat", "stack")
    if name == "stack":
        return name, {"dim": dim}, {k: torch.randn(of) for k in "abc"}, lambda a, b, c: torch.stack([a, b, c], dim)
    parts = {k: torch.randn([extent() if d == dim else n for d, n in enumerate(of)]) for k in "abc"}
    return name, {"dim": dim}, parts, lambda a, b, c: torch.cat([a, b, c], dim)


@kind
def fourier():
    of, name = shape(1, 3, empty=False), one_of("rfft", "irfft", "fft", "ifft", "rfftn", "fftn", "irfftn")
    if name.endswith("n"):
        dims = dims_of(of)
        options = {"dim": dims, **maybe({"s": each(len(dims), 9)}, 0.4)}
        of[dims[-1]] = max(of[dims[-1]], 2)
    else:
        options = {"dim": below(len(of)) - 1, **maybe({"n": below(12)}, 0.4)}
        of[options["dim"]] = max(of[options["dim"]], 2)
    options["norm"] = one_of("backward", "ortho", "forward")
    real = name.startswith("rfft")

    def transformed(input):
        x = input if real else torch.view_as_complex(input.contiguous())
        y = getattr(torch.fft, name)(x, **options)
        return torch.view_as_real(y) if y.is_complex() else y

    return name, options, {"input": torch.randn(of if real else of + [2])}, transformed


DTYPES = {torch.float64: ("F64", "float64"), torch.int64: ("I64", "int64"), torch.bool: ("BOOL", "bool")}


def write(path, tensors):
    """A safetensors file."""
    head, parts, at = {}, [], 0
    for name, x in tensors.items():
        parts.append(x.detach().contiguous().numpy().tobytes())
        head[name] = {"dtype": DTYPES[x.dtype][0], "shape": list(x.shape), "data_offsets": [at, at := at + len(parts[-1])]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def drawn(name, draw):
    """A case and its tensors, or nothing where PyTorch refuses it or finds no number."""
    op, attributes, given, f, *without = draw()
    without = without[0] if without else set()
    inputs = {k: x.clone().requires_grad_() if x.is_floating_point() and k not in without else x for k, x in given.items()}
    try:
        found = f(**inputs)
    except (RuntimeError, ValueError, IndexError):
        return None
    outputs = [found] if isinstance(found, torch.Tensor) else list(found)
    smooth = [at for at, y in enumerate(outputs) if y.requires_grad]
    by = [k for k, x in inputs.items() if x.requires_grad] if smooth else []
    cotangents = {at: torch.randn_like(outputs[at]) for at in smooth}
    slopes = torch.autograd.grad([outputs[at] for at in smooth], [inputs[k] for k in by], list(cotangents.values()), materialize_grads=True) if by else []
    if not all(x.isfinite().all() for x in [*outputs, *slopes]):
        return None
    told = {f"in.{k}": x for k, x in given.items()} | {f"out.{at}": y for at, y in enumerate(outputs)}
    tensors = told | {f"cot.{at}": x for at, x in cotangents.items()} | {f"grad.{k}": x for k, x in zip(by, slopes)}
    case = {
        "name": name, "file": f"{name}.safetensors", "op": op, "attributes": attributes, "inputs": list(given), "outputs": len(outputs),
        "differentiable_outputs": smooth, "gradients": by, "shapes": {k: list(x.shape) for k, x in told.items()},
        "dtypes": {k: DTYPES[x.dtype][1] for k, x in told.items()}, "note": "",
    }
    return case, tensors


def main(seed, count, folder, *kinds):
    rnd.seed(int(seed))
    torch.manual_seed(int(seed))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    index, refused = [], 0
    while len(index) < int(count):
        kind = rnd.choice(kinds or list(KINDS))
        found = drawn(f"{kind}_{seed}_{len(index)}", KINDS[kind])
        if not found:
            refused += 1
            continue
        case, tensors = found
        write(folder / case["file"], tensors)
        (folder / f"{case['name']}.json").write_text(json.dumps(case))
        index.append({key: case[key] for key in ("name", "op", "file")})
    (folder / "index.json").write_text(json.dumps({"set": "drawn", "torch": torch.__version__, "dtype": "float64", "cases": index}))
    print(f"{count} cases, and {refused} that PyTorch refused or that have no numbers")


if __name__ == "__main__":
    main(*sys.argv[1:])
