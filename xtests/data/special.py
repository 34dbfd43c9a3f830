"""Makes special.json: what PyTorch's ops give in float64 of NaN, infinities, zeros, ties and ends, with the gradients of the sum of what they give
times 0.5, 0.75, .. 2, again and again.

    python3 xtests/data/special.py > xtests/data/special.json
"""

import json
import math

import torch

torch.set_default_dtype(torch.float64)
F, L = torch.nn.functional, torch.linalg
nan, inf = math.nan, math.inf
cases, shared = {}, []


def case(name, f, *operands):
    xs = [torch.tensor(x) for x in operands]
    xs = [x.requires_grad_() if x.is_floating_point() else x for x in xs]
    y = f(*xs)
    y = y[0] if isinstance(y, tuple) else y
    of = lambda t: [x if math.isfinite(x) else repr(x) for x in (float(f"{x:.13g}") for x in t.flatten().tolist())]
    slopes, inputs = [], []
    if y.requires_grad:
        weight = (0.5 + torch.arange(y.numel()) % 7 * 0.25).reshape(y.shape)
        tracked = [x for x in xs if x.requires_grad]
        slopes = torch.autograd.grad(y, tracked, weight.to(y.dtype), allow_unused=True)
        slopes = [of(torch.zeros_like(x) if s is None else s) for x, s in zip(tracked, slopes)]
    for x in xs:
        values = of(x) if x.is_floating_point() else x.to(torch.int64).flatten().tolist()
        operand = {"type": str(x.dtype).removeprefix("torch."), "shape": list(x.shape), "of": values}
        if operand not in shared:
            shared.append(operand)
        inputs.append(shared.index(operand))
    assert name not in cases, name
    cases[name] = {"inputs": inputs, "y": of(y), "gradients": slopes}


line = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, -3.0, 6.0, 40.0, -40.0, 1e6, -1e6, 1e-30, -1e-30, 1e300, -1e300]
for name in "abs exp expm1 log log1p sqrt sin cos tanh sigmoid relu round floor sign square reciprocal atan asinh erf".split():
    case(name, getattr(torch, name), line)
for name in "selu elu celu leaky_relu hardsigmoid log_sigmoid softplus gelu_erf threshold".split():
    names = {"log_sigmoid": "logsigmoid", "gelu_erf": "gelu"}
    of = getattr(F, names.get(name, name))
    numbers = [x for x in line if not (name.startswith("gelu") and abs(x) > 3)]
    case(name, (lambda x: F.threshold(x, 1.0, 9.0)) if name == "threshold" else of, numbers)
case("clamp", lambda x: torch.clamp(x, -0.5, 3.0), line)
case("clamp to no number", lambda x: torch.clamp(x, nan, 3.0), line)
case("clamp crossed", lambda x: torch.clamp(x, 2.0, -1.0), line)
for p in (0.0, 0.5, -0.5, 1.5, 2.0, -1.0):
    case(f"pow_scalar {p}", lambda x, p=p: x**p, line)
few = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5]
left, right = [a for a in few for _ in few], [b for _ in few for b in few]
for name in "add mul div pow maximum minimum fmod remainder xlogy logaddexp hypot atan2".split():
    case(name, getattr(torch, name), left, right)
# Of infinite numbers the sign's slope is NaN in PyTorch.
finite = [(a, b) for a, b in zip(left, right) if not math.isinf(a)]
case("copysign", torch.copysign, [a for a, _ in finite], [b for _, b in finite])
case("nextafter", torch.nextafter, left, right)
# Where the density has a power 0 of 0 or infinity PyTorch has no number for it, but shares of concentrations that are none.
pairs = [(a, b) for a, b in zip(left + [0.3, 2.5, 3.0], right + [0.1, 30.0, 1.0]) if a == a and not (a == inf and b != b) and (a, b) not in ((1, 0), (1, inf), (inf, 1))]
for name in ("igamma", "igammac"):
    case(name, lambda a, x, name=name: getattr(torch, name)(a.detach(), x), [a for a, _ in pairs], [b for _, b in pairs])
# PyTorch has no number for what falls to 0 at infinity, but has one for exponents that are none.
pairs = [(s, q) for s, q in zip(left + [1.5, 3.0, 2.0, 7.0], right + [0.1, -0.3, -2.5, 30.0]) if math.isfinite(s) and q != inf]
case("zeta", lambda s, q: torch.special.zeta(s.detach(), q), [s for s, _ in pairs], [q for _, q in pairs])
numbers = [x for x in line if abs(x) < 1e5 and x != inf] + [0.013, -0.013, -7.3, 25.5, 100.0]
for n in (2, 3, 6):
    case(f"polygamma {n}", lambda x, n=n: torch.polygamma(n, x), numbers)
for name in ("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0"):
    case(name, lambda x, name=name: getattr(torch.special, name)(x.detach()), numbers + [inf, -inf])
case("frexp", lambda x: torch.frexp(x)[0], line)
rows = [[1.0, 2.0, 3.0, 4.0], [nan, 1.0, 2.0, 0.0], [inf, 1.0, 2.0, 3.0], [-inf, inf, 0.0, 1.0], [-inf] * 4, [0.0, -0.0, 0.0, -0.0], [2.0, 2.0, 1.0, 2.0], [0.0, 3.0, -4.0, 2.0], [0.0, 0.0, 2.0, 3.0], [1.5] * 4]
calm = [rows[0]] + rows[5:]
for name in "sum mean nansum amax amin cumsum logsumexp softmax log_softmax cummax max min".split():
    case(name, lambda x, name=name: getattr(torch, name)(x, 1), rows)
for name in "prod cumprod".split():
    case(name, lambda x, name=name: getattr(torch, name)(x, 1), calm)
case("var", lambda x: x.var(1), rows)
case("std", lambda x: x.std(1), calm)
case("var of one", lambda x: x.var(1), [[1.0], [0.0]])
for order in (0.0, 1.0, 2.0, inf, -inf):
    case(f"norm {order}", lambda x, order=order: L.vector_norm(x, order, 1), calm)
case("normalize", lambda x: F.normalize(x, dim=1), calm)
case("sort", lambda x: torch.sort(x, dim=1, stable=True), rows)
case("median", lambda x: torch.median(x, 1)[0].detach(), rows)
case("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, 1), calm, calm[::-1])
case("layer_norm", lambda x: F.layer_norm(x, [4]), calm)
case("gradient", lambda x: torch.gradient(x)[0], [1.0, nan, 3.0, inf, 5.0, 6.0, 8.0])
case("mse", lambda x, y: F.mse_loss(x, y, reduction="none"), left, right)
case("l1", lambda x, y: F.l1_loss(x, y, reduction="none"), left, right)
case("huber", lambda x, y: F.huber_loss(x, y, reduction="none", delta=2.5), left, right)
case("smooth_l1", lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.0), left, right)
shares, targets = [p for p in (1e-30, 1e-13, 1e-9, 0.5, 1.0 - 1e-9) for _ in range(2)] + [1e-9], [0.25, 1.0] * 5 + [0.0]
case("bce", lambda p, t: F.binary_cross_entropy(p, t.detach(), reduction="none"), shares, targets)
case("bce of logits", lambda x, t: F.binary_cross_entropy_with_logits(x, t.detach(), reduction="none"), [100.0, -100.0, 1e300, -1e300, 0.0, inf], [1.0, 1.0, 0.5, 0.5, 0.0, 1.0])
logits = [[1.0, 2.0, 3.0], [inf, 1.0, 2.0], [-inf, 1.0, 2.0], [-inf] * 3, [1e300, -1e300, 0.0], [100.0, -100.0, 0.0]]
for k in (0, 1):
    case(f"cross_entropy {k}", lambda x, t: F.cross_entropy(x, t, reduction="none"), logits, [k] * 6)
case("cross_entropy, smooth", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), logits[::4], [1, 2])
case("cross_entropy of none", lambda x, t: F.cross_entropy(x, t), logits, [-100] * 6)
case("kl_div", lambda x, t: F.kl_div(x, t.detach(), reduction="none"), [-1.0, -inf, 2.0, nan], [0.5, 1.0, 0.0, 0.0])
case("where", lambda x, mask: torch.where(mask, x.log(), 0.0), [-1.0, 0.0, 2.0, nan, inf], [False, False, True, False, True])
case("masked_fill", lambda x, mask: x.masked_fill(mask, 3.0), [-1.0, nan, inf], [False, True, True])
into, at, what = [3.0, 0.0, 2.0, 7.0], [0, 0, 1, 1, 2, 2, 3], [3.0, 1.0, nan, 2.0, 2.0, 1.0, -inf]
for how in ("amax", "amin"):
    case(f"scatter_reduce {how}", lambda x, i, y, how=how: x.scatter_reduce(0, i, y, how), into, at, what)
case("addmm, of no product", lambda x, a, b: torch.addmm(x, a.detach(), b.detach(), beta=1.0, alpha=0.0), [[1.0, 2.0]] * 2, [[nan, 1.0], [inf, 0.0]], [[1.0, 2.0], [3.0, 4.0]])
case("addmm, of products alone", lambda x, a, b: torch.addmm(x.detach(), a, b, beta=0.0, alpha=1.0), [[nan, inf]] * 2, [[1.0, 0.0], [3.0, 0.0]], [[1.0, 2.0], [3.0, 4.0]])
edges = [-1e10, -1.5, -1.0, 0.25, 1.0, 1e10, inf, -inf]
for edge in ("zeros", "border"):
    # Beyond zeros, infinite places are NaN in PyTorch.
    ends = edges if edge == "border" else edges[:6]
    case(f"grid_sample, {edge}", lambda x, g, edge=edge: F.grid_sample(x, g.detach(), "bilinear", edge, True), [[[[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]]]], [[[[a, b] for b in ends] for a in ends]])
for how in ("max", "avg"):
    pool = getattr(F, f"{how}_pool1d")
    case(f"{how}_pool", lambda x, pool=pool: pool(x, 3, 2, 1, ceil_mode=True), [[[1.0, nan, 3.0, inf, 2.0, -0.0, 0.0, -1.0, 5.0, 5.0]], [[-inf] * 10]])
gamma = lambda a, x: torch.distributions.Gamma(a, 2.0, validate_args=False).log_prob(x.detach())
case("densities of Gamma at its end", gamma, [1.0, 0.5, 2.0, 1.0], [0.0, 0.0, 0.0, 3.0])
beta = lambda a, b, x: torch.distributions.Beta(a, b, validate_args=False).log_prob(x.detach())
case("densities of Beta at its ends", beta, [1.0, 1.0, 2.0], [2.0, 1.0, 1.0], [0.0, 1.0, 1.0])
ends = [0.0, 0.0, 1.0, 1.0, 0.25]
case("Bernoulli at its ends", lambda p, x: torch.distributions.Bernoulli(p, validate_args=False).log_prob(x.detach()), ends, [0.0, 1.0, 0.0, 1.0, 1.0])
case("entropy of Bernoulli at its ends", lambda p: torch.distributions.Bernoulli(p, validate_args=False).entropy(), ends)
case("Binomial at its ends", lambda p, x: torch.distributions.Binomial(3, p, validate_args=False).log_prob(x.detach()), ends + [0.0, 1.0], [0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 0.0])
case("renorm", lambda x: torch.renorm(x, 2, 0, 3.0), rows[:2] + rows[4:5] + rows[7:])
case("batch_norm, of given statistics", lambda x, w: F.batch_norm(x, torch.tensor([0.5, 0.0, 1.0, 0.0]), torch.tensor([1.0, 4.0, 0.25, 1.0]), w.detach()), rows, [1.0, 2.0, -1.0, 0.5])
lines = lambda found: ",\n".join(found)
print(f"""{{"operands": [
{lines(json.dumps(operand) for operand in shared)}
], "cases": {{
{lines(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())}
}}}}""")
