"""Makes ops.json: what PyTorch's ops give in float64, with the gradients of the sum of what they give times a cosine.

    python3 xtests/data/ops.py > xtests/data/ops.json
"""

import json
import math

import scipy.special
import torch

torch.set_default_dtype(torch.float64)
F, L = torch.nn.functional, torch.linalg


def wave(shape, k):
    n = math.prod(shape)
    return torch.sin(1.7*torch.arange(n, dtype=torch.float64)+0.6*k+0.3).reshape(shape)
signs = lambda shape: torch.where(torch.arange(math.prod(shape)).reshape(shape)%3==0, -1.0, 1.0)
cases = []


def case(name, f, *shapes):
    cases.append((name, f, shapes))


case("soft_margin_loss", lambda x: F.soft_margin_loss(x, signs(x.shape)), [5, 3])
tg = torch.tensor([2, 0, 3, 3, 1])
case("multi_margin_loss", lambda x: F.multi_margin_loss(x, tg, p=1, margin=0.7, reduction="none"), [5, 4])
case("multi_margin_loss of squares, weighted", lambda x: F.multi_margin_loss(x, tg, p=2, margin=1.0, weight=torch.linspace(0.5, 2, 4)), [5, 4])
case("multilabel_soft_margin_loss", lambda x, t: F.multilabel_soft_margin_loss(x, t*t, weight=torch.linspace(0.5, 2, 4), reduction="none"), [5, 4], [5, 4])
own = torch.tensor([[3, 0, -1, 1], [-1, 2, 0, 1], [2, 1, 0, 3], [1, -1, 1, -1], [0, 0, 2, -1]])
case("multilabel_margin_loss", lambda x: F.multilabel_margin_loss(3*x, own, reduction="none"), [5, 4])
case("multilabel_margin_loss of a sample", lambda x: F.multilabel_margin_loss(x, own[0]), [4])
def mode(x):
    value, at = torch.mode(torch.cat([x, x[:, 2:4]], 1), 1)
    return value + at


case("mode", mode, [4, 5])
for name in ("i0", "i0e", "i1", "i1e"):
    case(name, lambda x, name=name: getattr(torch.special, name)(x * 4.3), [5, 2])
case("pairwise_distance", lambda x, y: F.pairwise_distance(x, y), [5, 3], [5, 3])
case("pairwise_distance of magnitudes", lambda x, y: F.pairwise_distance(x, y, p=1, keepdim=True), [5, 3], [3])
case("pdist", lambda x: F.pdist(x), [5, 3])
case("pdist of cubes", lambda x: F.pdist(x, 3.0), [4, 2])
case("cov", lambda x: torch.cov(x), [3, 7])
case("cov of a list", lambda x: torch.cov(x, correction=0), [7])
case("cov, weighted", lambda x, w: torch.cov(x, correction=1, fweights=torch.tensor([1, 2, 0, 3, 1, 1, 2]), aweights=w*w), [3, 7], [7])
case("cov, counted", lambda x: torch.cov(x, correction=1, fweights=torch.tensor([1, 2, 0, 3, 1, 1, 2])), [3, 7])
case("corrcoef", lambda x: torch.corrcoef(x), [3, 7])
case("renorm", lambda x: torch.renorm(x, 2, 0, 1.2), [5, 3])
case("renorm of magnitudes", lambda x: torch.renorm(x, 1, 1, 2.0), [5, 3])


def hole(x):
    every_fourth = torch.arange(x.numel()).reshape(x.shape) % 4 == 1
    return torch.where(every_fourth | (torch.arange(x.shape[-1]) == 2), float("nan"), x)


case("nanquantile", lambda x: torch.nanquantile(hole(x), torch.tensor([0.3, 0.75]), dim=0).nan_to_num(9.0), [6, 3])
case("nanquantile, midpoints", lambda x: torch.nanquantile(hole(x), 0.3, dim=1, interpolation="midpoint").nan_to_num(9.0), [4, 7])
case("trapezoid", lambda x: torch.trapezoid(x, dx=0.3, dim=0), [7, 2])
case("trapezoid at places", lambda y, x: torch.trapezoid(y, x.unsqueeze(1).expand(7, 2), dim=0), [7, 2], [7])
case("trapezoid at places of each", lambda y, x: torch.trapezoid(y, x, dim=1), [3, 6], [3, 6])
case("cumulative_trapezoid", lambda x: torch.cumulative_trapezoid(x, dx=0.3, dim=-1), [2, 7])
case("cumulative_trapezoid at places", lambda y, x: torch.cumulative_trapezoid(y, x, dim=1), [2, 7], [7])
case("vander", lambda x: torch.stack([x**i for i in range(4)], 1), [5])
case("vander, falling", lambda x: torch.stack([x**2, x, x**0], 1), [5])


def recurring(b, a, first, dim, backwards=False):
    """A loop, as programs in PyTorch have it."""
    b, a = torch.broadcast_tensors(b, a)
    h = torch.zeros(()) if first is None else first.squeeze(dim)
    found = []
    for b, a in list(zip(b.unbind(dim), a.unbind(dim)))[::-1 if backwards else 1]:
        h = a * h + b
        found.append(h)
    return torch.stack(found[::-1 if backwards else 1], dim)


def selective(x, dt, a, b, c):
    h = recurring((dt * x).unsqueeze(2) * b.unsqueeze(1), (dt.unsqueeze(2) * a).exp(), None, 0)
    return (h * c.unsqueeze(1)).sum(2)


case("linear_recurrence", lambda b, a: recurring(b, a, None, 0), [7, 3], [7, 3])
case("linear_recurrence from a state", lambda b, a, h: recurring(b, a, h, 1), [5, 4], [5, 1], [5, 1])
case("linear_recurrence, backwards", lambda b, a, h: recurring(b, a, h, 0, True), [6, 2], [2], [1, 2])
case("linear_recurrence, backwards, of few terms", lambda b, a: recurring(b, a, None, 0, True), [1, 2], [6, 2])
case("selective scan", selective, [6, 2], [6, 2], [2, 3], [6, 3], [6, 3])
case("take", lambda x: torch.take(x, torch.tensor([[7, 0, 7], [-1, 3, 11]])), [4, 3])
case("tensor_split", lambda x: torch.cat([torch.tensor_split(x, 3)[2], torch.tensor_split(x, 3)[0]]), [7, 2])
for k in (1,2,3):
    case(f"rot90 by {k}", lambda x, k=k: torch.rot90(x, k), [5, 3])
case("block_diag", lambda a, b, c: torch.block_diag(a, b, c), [3, 2], [4], [2, 2])


class Polygamma(torch.autograd.Function):
    """Of SciPy: PyTorch's own is right to nine digits."""

    @staticmethod
    def forward(ctx, n, x):
        ctx.n = n
        ctx.save_for_backward(x)
        return torch.from_numpy(scipy.special.polygamma(n, x.detach().numpy()))

    @staticmethod
    def backward(ctx, slope):
        return None, slope * torch.from_numpy(scipy.special.polygamma(ctx.n + 1, ctx.saved_tensors[0].numpy()))


for name in ("lgamma", "sinc"):
    case(name, lambda x, name=name: getattr(torch, name)(x * 4.3), [5, 2])
for n, name in enumerate(("digamma", "trigamma")):
    case(name, lambda x, n=n: Polygamma.apply(n, x * 4.3), [5, 2])
ri = torch.view_as_real
hann = torch.hann_window(8)
case("stft", lambda x: ri(torch.stft(x, 8, 3, window=hann, center=True, return_complex=True)), [2, 20])
case("stft, two-sided", lambda x: ri(torch.stft(x, 6, 2, win_length=5, window=torch.hamming_window(5, periodic=False), center=False, normalized=True, onesided=False, return_complex=True)), [2, 13])
case("istft", lambda x: torch.istft(torch.view_as_complex(x), 8, 3, window=torch.blackman_window(8), length=15), [2, 5, 7, 2])
case("istft, two-sided", lambda x: torch.istft(torch.view_as_complex(x), 6, 2, window=torch.ones(6), onesided=False, normalized=True), [2, 6, 5, 2])
S = lambda a: a+3*torch.eye(a.shape[-1])
case("solve_triangular", lambda a, b: L.solve_triangular(S(a), b, upper=False), [4, 3, 3], [4, 3, 2])
case("solve_triangular of ones above", lambda a, b: L.solve_triangular(a, b.unsqueeze(2), upper=True, unitriangular=True).squeeze(2), [4, 3, 3], [4, 3])
case("pinv", lambda a: L.pinv(a), [4, 3, 2])
case("pinv of more columns", lambda a: L.pinv(a), [4, 2, 3])
case("lstsq", lambda a, b: L.pinv(a)@b, [4, 5, 2], [4, 5, 3])
case("lstsq of more columns", lambda a, b: (L.pinv(a)@b.unsqueeze(2)).squeeze(2), [4, 2, 3], [4, 2])
case("matrix_exp", lambda a: torch.matrix_exp(4*a), [4, 3, 3])
case("matrix_power", lambda a: torch.matrix_power(a, 5), [4, 3, 3])
case("matrix_power below 0", lambda a: torch.matrix_power(S(a), -2), [4, 3, 3])
for o,r in (("'fro'","MatrixNorm::Frobenius"),("'nuc'","MatrixNorm::Nuclear"),("1","1.0"),("-1","-1.0"),("2","2.0"),("-2","-2.0"),("float('inf')","f64::INFINITY"),("-float('inf')","f64::NEG_INFINITY")):
    case(f"matrix_norm of {r}", lambda a, o=eval(o): L.matrix_norm(a, o), [4, 3, 2])
case("cond", lambda a: L.cond(a), [4, 3, 2])
case("cond of columns", lambda a: L.matrix_norm(S(a), 1)*L.matrix_norm(torch.linalg.solve(S(a), torch.eye(3).expand(4, 3, 3)), 1), [4, 3, 3])
for form, shape, dim in (("", [4, 3, 3], -1), (" of more rows", [2, 5, 3], -2), (" of more columns", [2, 3, 5], -1)):
    case(f"lu{form}", lambda a, dim=dim: torch.cat(L.lu(a*a*a)[1:], dim), shape)
case("svdvals", lambda a: L.svdvals(a), [4, 3, 2])

found = {}
for name, f, shapes in cases:
    xs = [wave(shape, k).requires_grad_() for k, shape in enumerate(shapes)]
    y = f(*xs)
    weight = torch.cos(0.9 * torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape)
    slopes = torch.autograd.grad((y * weight).sum(), xs, allow_unused=True)
    slopes = [torch.zeros_like(x) if slope is None else slope for x, slope in zip(xs, slopes)]
    of = lambda t: [float(f"{x:.13g}") for x in t.flatten().tolist()]
    found[name] = {"inputs": shapes, "y": of(y), "gradients": [of(slope) for slope in slopes]}
print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items()) + "\n}")
