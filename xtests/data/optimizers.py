"""Makes optimizers.json: what PyTorch's optimizers, clipping, schedulers and averages give in float64.

    python3 xtests/data/optimizers.py > xtests/data/optimizers.json
"""

import json
import math

import torch
from torch.optim import lr_scheduler as sched

torch.set_default_dtype(torch.float64)
SHAPES = {"body.weight": (4, 3), "body.bias": (5,)}
STEPS = 6
SCHEDULED = 40


def numbers(generator, shape):
    return torch.randn(shape, generator=generator)


generator = torch.Generator().manual_seed(21)
start = {name: numbers(generator, shape) for name, shape in SHAPES.items()}
slopes = [{name: numbers(generator, shape) for name, shape in SHAPES.items()} for _ in range(STEPS)]
slopes[1]["body.weight"][0] = 0.0
slopes[3]["body.bias"] *= 1e-3
slopes[4]["body.weight"] *= 30.0


class Lion(torch.optim.Optimizer):
    """As its authors wrote it down: https://arxiv.org/abs/2302.06675, program 1."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(parameters, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (mean * first + p.grad * (1 - first)).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                mean.mul_(second).add_(p.grad, alpha=1 - second)


OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "sgd_momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "sgd_dampening": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.8, dampening=0.3, weight_decay=0.05),
    "sgd_nesterov": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adam_amsgrad": lambda ps: torch.optim.Adam(ps, lr=0.05, amsgrad=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.05),
    "adamw_amsgrad": lambda ps: torch.optim.AdamW(ps, lr=0.05, weight_decay=0.2, amsgrad=True),
    "lion": lambda ps: Lion(ps, lr=0.02, betas=(0.9, 0.95), weight_decay=0.3),
    "rms_prop": lambda ps: torch.optim.RMSprop(ps, lr=0.05, alpha=0.8, weight_decay=0.1),
    "rms_prop_momentum": lambda ps: torch.optim.RMSprop(ps, lr=0.02, momentum=0.7),
    "rms_prop_centered": lambda ps: torch.optim.RMSprop(ps, lr=0.02, eps=1e-3, centered=True),
    "rms_prop_both": lambda ps: torch.optim.RMSprop(ps, lr=0.02, momentum=0.7, centered=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.1),
    "adagrad_decay": lambda ps: torch.optim.Adagrad(
        ps, lr=0.1, lr_decay=0.2, weight_decay=0.1, initial_accumulator_value=0.3, eps=1e-3
    ),
    "adadelta": lambda ps: torch.optim.Adadelta(ps, lr=1.0),
    "adadelta_decay": lambda ps: torch.optim.Adadelta(ps, lr=0.5, rho=0.6, eps=1e-3, weight_decay=0.1),
    "adamax": lambda ps: torch.optim.Adamax(ps, lr=0.05),
    "adamax_decay": lambda ps: torch.optim.Adamax(ps, lr=0.05, betas=(0.7, 0.9), eps=1e-2, weight_decay=0.1),
    "nadam": lambda ps: torch.optim.NAdam(ps, lr=0.05),
    "nadam_decay": lambda ps: torch.optim.NAdam(ps, lr=0.05, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.1, momentum_decay=0.1),
    "nadam_decoupled": lambda ps: torch.optim.NAdam(ps, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.01),
    "rprop_options": lambda ps: torch.optim.Rprop(ps, lr=0.3, etas=(0.6, 1.5), step_sizes=(0.2, 0.5)),
    "asgd": lambda ps: torch.optim.ASGD(ps, lr=0.1),
    "asgd_options": lambda ps: torch.optim.ASGD(ps, lr=0.2, lambd=0.1, alpha=0.5, t0=1, weight_decay=0.1),
    "radam": lambda ps: torch.optim.RAdam(ps, lr=0.05),
    # Enough is known from the third step on.
    "radam_decay": lambda ps: torch.optim.RAdam(ps, lr=0.05, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.1),
    "radam_decoupled": lambda ps: torch.optim.RAdam(ps, lr=0.05, betas=(0.9, 0.99), weight_decay=0.1, decoupled_weight_decay=True),
}

OPTIMIZERS |= {
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.1),
    "adafactor_options": lambda ps: torch.optim.Adafactor(
        ps, lr=0.6, beta2_decay=-0.4, eps=(0.3, 2.0), d=1.1, weight_decay=0.1
    ),
}

# Of a tall matrix, as it is, and of a wide one, its transpose.
MUON = {
    "plain": dict(lr=0.05),
    "options": dict(lr=0.05, weight_decay=0.3, momentum=0.6, nesterov=False, ns_coefficients=(2.0, -1.5, 0.5), ns_steps=3),
    "like_adamw": dict(lr=0.05, adjust_lr_fn="match_rms_adamw"),
    "spectral": dict(lr=0.05, adjust_lr_fn="spectral_unclamped"),
}


def orthogonal(options):
    """In double precision, where PyTorch multiplies in bf16."""
    ends, states = {}, {}
    to = torch.Tensor.to
    torch.Tensor.to = lambda self, *args, dtype=None, **named: self.clone() if dtype is torch.bfloat16 else to(self, *args, dtype=dtype, **named)
    for name, turned in {"tall": lambda x: x, "wide": lambda x: x.T}.items():
        p = turned(start["body.weight"]).clone().contiguous().requires_grad_()
        optimizer = torch.optim.Muon([p], **options)
        for step in slopes:
            p.grad = turned(step["body.weight"]).clone().contiguous()
            optimizer.step()
        ends[name] = p.detach().flatten().tolist()
        states[name] = optimizer.state[p]["momentum_buffer"].flatten().tolist()
    torch.Tensor.to = to
    return {"end": ends, "state": states}



def trained(make, clip=None):
    """Parameters and states after all steps, and norms before clipping; the bias has no gradient in the third step."""
    parameters = {name: p.clone().requires_grad_() for name, p in start.items()}
    optimizer, scheduler = make(parameters)
    norms = []
    for i, step in enumerate(slopes):
        for name, p in parameters.items():
            p.grad = None if (i, name) == (2, "body.bias") and clip is None else step[name].clone()
        if clip is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(parameters.values(), clip)))
        if isinstance(optimizer, Lion) and parameters["body.bias"].grad is None:
            # It knows no parameters without gradients.
            kept = optimizer.param_groups[0]["params"]
            optimizer.param_groups[0]["params"] = kept[:1]
            optimizer.step()
            optimizer.param_groups[0]["params"] = kept
        else:
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
    state = {}
    for name, p in parameters.items():
        for kind, value in optimizer.state[p].items():
            if torch.is_tensor(value) and value.dim() > 0:
                state[f"{kind}.{name}"] = value.flatten().tolist()
    ends = {name: p.detach().flatten().tolist() for name, p in parameters.items()}
    return {"end": ends, "state": state, "norms": norms}


def groups(parameters):
    listed = [
        {"params": [parameters["body.weight"]]},
        {"params": [parameters["body.bias"]], "lr": 0.01, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(listed, lr=0.05, weight_decay=0.1)
    warmup = sched.LinearLR(optimizer, start_factor=1 / 3, total_iters=2)
    cosine = sched.CosineAnnealingLR(optimizer, T_max=STEPS - 2)
    return optimizer, sched.SequentialLR(optimizer, [warmup, cosine], milestones=[2])


def clipped(order, limit):
    parameters = [p.clone().requires_grad_() for p in start.values()]
    for p, name in zip(parameters, SHAPES):
        p.grad = slopes[0][name].clone()
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit, norm_type=order))
    left = {name: p.grad.flatten().tolist() for p, name in zip(parameters, SHAPES)}
    return {"order": "inf" if math.isinf(order) else order, "limit": limit, "norm": norm, "left": left}


def clipped_by_value(limit):
    parameters = [p.clone().requires_grad_() for p in start.values()]
    for p, name in zip(parameters, SHAPES):
        p.grad = slopes[0][name].clone()
    torch.nn.utils.clip_grad_value_(parameters, limit)
    return {name: p.grad.flatten().tolist() for p, name in zip(parameters, SHAPES)}


def rates(make, rate=0.5, losses=None):
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=rate)
    scheduler = make(optimizer)
    found = []
    for step in range(SCHEDULED):
        if losses is None:
            found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if losses is None:
            if step + 1 < SCHEDULED:
                scheduler.step()
        else:
            scheduler.step(losses[step])
            found.append(optimizer.param_groups[0]["lr"])
    return found


def warm_cosine(optimizer):
    first = sched.LinearLR(optimizer, start_factor=1 / 9, total_iters=8)
    rest = sched.CosineAnnealingLR(optimizer, T_max=SCHEDULED - 8, eta_min=0.01)
    return sched.SequentialLR(optimizer, [first, rest], milestones=[8])


def stable_and_down(optimizer):
    first = sched.LinearLR(optimizer, start_factor=1 / 6, total_iters=5)
    second = sched.ConstantLR(optimizer, factor=1.0, total_iters=0)
    last = sched.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=10)
    return sched.SequentialLR(optimizer, [first, second, last], milestones=[5, 25])


losses = [3.0 / (1 + step) + 0.3 * math.sin(2.0 * step) for step in range(SCHEDULED)]
SCHEDULES = {
    "cosine": rates(lambda o: sched.CosineAnnealingLR(o, T_max=SCHEDULED, eta_min=0.02)),
    "cosine_restarts": rates(lambda o: sched.CosineAnnealingWarmRestarts(o, T_0=5, T_mult=2, eta_min=0.02)),
    "cosine_restarts_even": rates(lambda o: sched.CosineAnnealingWarmRestarts(o, T_0=7)),
    "warm_cosine": rates(warm_cosine),
    "polynomial": rates(lambda o: sched.PolynomialLR(o, total_iters=30, power=1.7)),
    "then": rates(stable_and_down),
    "linear": rates(lambda o: sched.LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=30)),
    "step": rates(lambda o: sched.StepLR(o, step_size=7, gamma=0.3)),
    "milestones": rates(lambda o: sched.MultiStepLR(o, milestones=[4, 11, 30], gamma=0.2)),
    "exponential": rates(lambda o: sched.ExponentialLR(o, gamma=0.9)),
    "one_cycle": rates(lambda o: sched.OneCycleLR(o, max_lr=0.5, total_steps=SCHEDULED)),
    "one_cycle_straight": rates(
        lambda o: sched.OneCycleLR(
            o, 0.5, total_steps=SCHEDULED, pct_start=0.4, anneal_strategy="linear", div_factor=10, final_div_factor=100
        )
    ),
    "one_cycle_three": rates(lambda o: sched.OneCycleLR(o, 0.5, total_steps=SCHEDULED, three_phase=True)),
    "plateau": rates(lambda o: sched.ReduceLROnPlateau(o, factor=0.5, patience=2, cooldown=3), losses=losses),
    "plateau_scores": rates(
        lambda o: sched.ReduceLROnPlateau(
            o, mode="max", factor=0.7, patience=1, threshold=0.01, threshold_mode="abs", min_lr=0.1
        ),
        losses=losses,
    ),
}


def averaged(**how):
    model = torch.nn.Linear(3, 4)
    with torch.no_grad():
        model.weight.copy_(start["body.weight"])
        model.bias.zero_()
    mean = torch.optim.swa_utils.AveragedModel(model, **how)
    mean.update_parameters(model)
    for step in slopes:
        with torch.no_grad():
            model.weight.sub_(0.1 * step["body.weight"])
        mean.update_parameters(model)
    return mean.module.weight.detach().flatten().tolist()


LBFGS = {
    "plain": dict(lr=0.2, max_iter=6, history_size=2),
    "searched": dict(lr=1.0, max_iter=8, history_size=3, line_search_fn="strong_wolfe"),
    "far": dict(lr=40.0, max_iter=5, history_size=4, line_search_fn="strong_wolfe"),
    "few": dict(lr=25.0, max_iter=9, max_eval=4, line_search_fn="strong_wolfe"),
    "done": dict(lr=1.0, max_iter=60, history_size=20, tolerance_grad=0.2, line_search_fn="strong_wolfe"),
}


def fitted(options):
    """What every loss was, and how many there were after each step, with the bias out of the loss in the second."""
    weight, bias = [p.clone().requires_grad_() for p in start.values()]
    optimizer = torch.optim.LBFGS([weight, bias], **options)
    points, heights = slopes[2]["body.weight"], slopes[0]["body.bias"][:4]
    losses, counts = [], []

    def closure():
        optimizer.zero_grad()
        fit = (points @ weight.T).tanh().sum(1) - heights
        loss = fit.square().mean() + 0.05 * (weight.square() - 1).square().sum()
        if len(counts) != 1:
            loss = loss + 0.1 * (bias.square() + weight.sum() * bias.sin()).sum()
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(3):
        optimizer.step(closure)
        counts.append(len(losses))
    return {"losses": losses, "counts": counts, "end": flat({"body.weight": weight.detach(), "body.bias": bias.detach()})}


def flat(named):
    return {name: value.flatten().tolist() for name, value in named.items()}


print(
    json.dumps(
        {
            "torch": torch.__version__,
            "shapes": SHAPES,
            "start": flat(start),
            "slopes": [flat(step) for step in slopes],
            "optimizers": {name: trained(lambda ps, make=make: (make(ps.values()), None)) for name, make in OPTIMIZERS.items()},
            "muon": {name: orthogonal(options) for name, options in MUON.items()},
            "lbfgs": {name: fitted(options) for name, options in LBFGS.items()},
            "groups": trained(groups, clip=2.0),
            "clip_norm": [clipped(order, limit) for order, limit in [(2.0, 1.0), (1.0, 2.5), (3.5, 0.1), (math.inf, 0.5), (2.0, 1e3)]],
            "clip_value": {"limit": 0.5, "left": clipped_by_value(0.5)},
            "losses": losses,
            "schedules": SCHEDULES,
            "average": averaged(multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)),
            "average_alike": averaged(),
        },
        indent=1,
    )
)
