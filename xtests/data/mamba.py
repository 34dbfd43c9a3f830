"""Makes mamba.json: what the mixer of a block of Mamba gives in float64, as `mamba_ssm` defines it (`selective_scan_ref`, a loop over time).

    python3 xtests/data/mamba.py > xtests/data/mamba.json
"""

import json
import math

import torch

torch.set_default_dtype(torch.float64)
F, nn = torch.nn.functional, torch.nn
WIDTH, INNER, STATES, KERNEL, RANK, BATCH, TIME, STEPS = 6, 8, 3, 4, 2, 2, 11, 3


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.conv1d = nn.Conv1d(INNER, INNER, KERNEL, groups=INNER, padding=KERNEL - 1)
        self.x_proj = nn.Linear(INNER, RANK + 2 * STATES, bias=False)
        self.dt_proj = nn.Linear(RANK, INNER)
        self.A_log = nn.Parameter(torch.zeros(INNER, STATES))
        self.D = nn.Parameter(torch.zeros(INNER))
        self.out_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        time = x.shape[1]
        u, z = self.in_proj(x).chunk(2, -1)
        u = F.silu(self.conv1d(u.transpose(1, 2))[..., :time]).transpose(1, 2)
        dt, b, c = self.x_proj(u).split([RANK, STATES, STATES], -1)
        dt = F.softplus(self.dt_proj(dt))
        a = -torch.exp(self.A_log)
        h, found = torch.zeros(x.shape[0], INNER, STATES), []
        for t in range(time):
            h = torch.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None]
            found.append((h * c[:, t, None]).sum(-1) + self.D * u[:, t])
        return self.out_proj(torch.stack(found, 1) * F.silu(z)), h


def wave(shape, f):
    return f(torch.arange(math.prod(shape), dtype=torch.float64)).reshape(shape)


mixer = Mixer()
NAMES = ["in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D", "out_proj.weight"]
named = dict(mixer.named_parameters())
assert sorted(NAMES) == sorted(named)
with torch.no_grad():
    for p, name in enumerate(NAMES):
        named[name].copy_(wave(named[name].shape, lambda n: 0.8 * torch.sin(1.7 * n + p)))
x = wave([BATCH, TIME, WIDTH], lambda n: torch.cos(0.9 * n)).requires_grad_()
target = wave([BATCH, TIME, WIDTH], lambda n: torch.sin(0.4 * n))
of = lambda t: [float(f"{x:.13g}") for x in t.detach().flatten().tolist()]

y, h = mixer(x)
slopes = torch.autograd.grad(((y - target) ** 2).mean(), [x, *(named[name] for name in NAMES)])
found = {"y": of(y), "states": of(h), "x": of(slopes[0]), "gradients": {name: of(slope) for name, slope in zip(NAMES, slopes[1:])}}
optimizer, losses = torch.optim.AdamW(mixer.parameters(), lr=1e-2, weight_decay=0.01), []
for _ in range(STEPS):
    loss = ((mixer(x.detach())[0] - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
found["losses"] = of(torch.stack(losses))
print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in found.items()) + "\n}")
