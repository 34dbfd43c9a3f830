"""Makes the weights, inputs and outputs that `shard-tensor/tests/files/weights.rs` compares with.

    python3 -m venv torch && torch/bin/pip install torch safetensors --extra-index-url https://download.pytorch.org/whl/cpu
    torch/bin/python xtests/data/torch/make.py

Written with PyTorch 2 in single precision on a CPU. `NAME.safetensors` is the state of a model as `save_file(model.state_dict())`
writes it, `NAME.io.safetensors` an input `x` and the model's output `y`, both in training's absence (`model.eval()`).
"""

import pathlib

import torch
from safetensors.torch import save_file
from torch import nn

HERE = pathlib.Path(__file__).parent


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.middle = nn.ModuleList([nn.Conv2d(6, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)])
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.head = nn.Sequential(nn.Conv2d(12, 6, 3, padding=1), nn.GELU(), nn.Conv2d(6, 1, 1))

    def forward(self, x):
        skip = torch.relu(self.norm(self.down(x)))
        h = nn.functional.max_pool2d(skip, 2)
        for layer in self.middle:
            h = layer(h)
        return self.head(torch.cat([self.up(torch.relu(h)), skip], 1))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, width=12, heads=3):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, stride=4)
        self.position = nn.Parameter(torch.randn(1, 15, width) * 0.5)
        encoder = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([Block(width, heads), encoder])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def make(name, model, *shape):
    # Weights that no initialisation gives: every one matters.
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(torch.rand_like(tensor) * 0.2)
    x = torch.randn(*shape)
    with torch.no_grad():
        y = model.eval()(x)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, HERE / f"{name}.safetensors")
    save_file({"x": x, "y": y}, HERE / f"{name}.io.safetensors")


torch.manual_seed(1)
make("unet", UNet(), 2, 2, 14, 10)
make("vit", ViT(), 3, 1, 12, 20)
