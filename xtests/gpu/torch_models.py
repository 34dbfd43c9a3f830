"""Whole models in PyTorch, as the group `models` of `bench` has them: the same sizes, parameters and names.

Each is written as programs of PyTorch are: one product for queries, keys and values, one call for attention, and so on.
"""

import contextlib

import torch
from torch import nn
from torch.nn import functional

RATE = 1e-3


def training(model, loss, cast=contextlib.nullcontext):
    """A step of training: forward, loss, backward, and a step of the optimizer. The first two may be computed in 16 bits."""
    adam = torch.optim.AdamW(model.parameters(), RATE)

    def step():
        adam.zero_grad()
        with cast():
            value = loss()
        value.backward()
        adam.step()
        return value

    return counted(step, model)


def counted(step, model):
    """A step that says how many numbers the model learns."""
    step.parameters = sum(p.numel() for p in model.parameters())
    return step


class Attention(nn.Module):
    """Of tokens to each other, in heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        samples, tokens, width = x.shape
        heads = self.in_proj(x).view(samples, tokens, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        found = functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(found.transpose(1, 2).reshape(x.shape))


class EncoderLayer(nn.Module):
    """Attention and a net of each token's features, both behind norms."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attn = Attention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.feed(x + self.self_attn(self.norm1(x)))

    def feed(self, x):
        return x + self.linear2(functional.gelu(self.linear1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, side, width, depth, patch=16, heads=3, classes=100):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, width))
        self.encoder = nn.Sequential(*[EncoderLayer(width, heads) for _ in range(depth)], nn.LayerNorm(width))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.encoder(tokens).mean(1))


class SwinBlock(EncoderLayer):
    """Attention within windows of a field with channels last, which may be shifted."""

    WINDOW = 7

    def __init__(self, width, shift, heads=3):
        super().__init__(width, heads)
        self.shift = shift

    def forward(self, x):
        y = self.norm1(x)
        if self.shift:
            y = y.roll((-self.shift, -self.shift), (1, 2))
        y = self.merged(self.self_attn(self.windows(y)), x.shape)
        if self.shift:
            y = y.roll((self.shift, self.shift), (1, 2))
        return self.feed(x + y)

    def windows(self, x):
        samples, rows, columns, width = x.shape
        window = self.WINDOW
        x = x.view(samples, rows // window, window, columns // window, window, width)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, width)

    def merged(self, windows, shape):
        samples, rows, columns, width = shape
        window = self.WINDOW
        x = windows.view(samples, rows // window, columns // window, window, window, width)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(shape)


def turned(x, cos, sin):
    """Rotary places."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()

        def linear(inputs, outputs):
            return nn.Linear(inputs, outputs, bias=False)

        self.features = width // heads
        keys = kv_heads * self.features
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_proj, self.k_proj, self.v_proj = linear(width, width), linear(width, keys), linear(width, keys)
        self.out_proj = linear(width, width)
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def forward(self, x, cos, sin, past=None):
        """Tokens, and keys and values of those so far."""
        y = self.norm1(x)
        q, k, v = (
            p(y).unflatten(2, (-1, self.features)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        causal = past is None
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        x = x + self.out_proj(found.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), (k, v)


class Llama(nn.Module):
    def __init__(self, tokens, places, width, hidden, depth, heads=4, kv_heads=2):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, kv_heads, hidden) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, tokens, bias=False)
        half = width // heads // 2
        angles = torch.arange(places)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        angles = torch.cat([angles, angles], 1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, place=0, past=None):
        """Logits for tokens from a place on, and keys and values of all blocks."""
        x, kept = self.embedding(tokens), []
        end = place + tokens.shape[1]
        for i, block in enumerate(self.blocks):
            x, pair = block(x, self.cos[place:end], self.sin[place:end], past and past[i])
            kept.append(pair)
        return self.head(self.norm(x)), kept


def decode(model, token, count, cast):
    """So many tokens, each the likeliest after those before."""
    with torch.no_grad(), cast():
        past = None
        for place in range(count):
            logits, past = model(token, place, past)
            token = logits.argmax(2)
        return token


class ResNetBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.skip(x) + self.norm2(self.conv2(y)))


class ResNet(nn.Module):
    def __init__(self, width, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        ends = [(1, 1), (1, 2), (2, 4), (4, 8)]
        self.blocks = nn.Sequential(*[ResNetBlock(a * width, b * width) for a, b in ends])
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images):
        return self.head(self.blocks(functional.relu(self.stem(images))).mean((2, 3)))


class ConvNextBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.near = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = self.norm(self.near(x).permute(0, 2, 3, 1))
        y = self.down(functional.gelu(self.up(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self, width, patch=4, depth=3, classes=100):
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*[ConvNextBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class UNetBlock(nn.Module):
    def __init__(self, inputs, outputs, groups=8):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, inputs), nn.GroupNorm(groups, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x):
        y = self.conv1(functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        wide = 2 * width
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.fine = UNetBlock(width, width)
        self.down = nn.Conv2d(width, wide, 3, 2, 1)
        self.coarse = nn.Sequential(UNetBlock(wide, wide), UNetBlock(wide, wide))
        self.up = nn.ConvTranspose2d(wide, width, 2, 2)
        self.joined = UNetBlock(wide, width)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, images):
        fine = self.fine(self.first(images))
        up = self.up(self.coarse(self.down(fine)))
        return self.last(functional.silu(self.joined(torch.cat([fine, up], 1))))


def generator(channels):
    def twice(inputs, outputs):
        return nn.ConvTranspose2d(inputs, outputs, 4, 2, 1)

    half, fourth = channels // 2, channels // 4
    first = [twice(channels, half), nn.BatchNorm2d(half), nn.ReLU()]
    second = [twice(half, fourth), nn.BatchNorm2d(fourth), nn.ReLU()]
    return nn.Sequential(*first, *second, twice(fourth, 3), nn.Tanh())


class SpectralConv(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, 2 * modes, modes, 2) / width)

    def forward(self, x):
        modes, weight = self.modes, torch.view_as_complex(self.weight)
        frequencies = torch.fft.rfft2(x)
        made = torch.zeros_like(frequencies)
        for place, part in ((slice(modes), weight[:, :, :modes]), (slice(-modes, None), weight[:, :, modes:])):
            made[:, :, place, :modes] = torch.einsum("nixy,oixy->noxy", frequencies[:, :, place, :modes], part)
        return torch.fft.irfft2(made, s=x.shape[-2:])


class FnoLayer(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.spectral, self.pointwise = SpectralConv(width, modes), nn.Conv2d(width, width, 1)

    def forward(self, x):
        return functional.gelu(self.spectral(x) + self.pointwise(x))


def operator(width, modes, depth=4):
    layers = [FnoLayer(width, modes) for _ in range(depth)]
    return nn.Sequential(nn.Conv2d(3, width, 1), *layers, nn.Conv2d(width, 1, 1))


def solution(width):
    hidden = [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), *hidden, nn.Linear(width, 1))


def residual(model, points):
    """By how much a solution of the heat equation misses it."""
    (slopes,) = torch.autograd.grad(model(points).sum(), points, create_graph=True)
    (bends,) = torch.autograd.grad(slopes[:, 0].sum(), points, create_graph=True)
    return (slopes[:, 1] - bends[:, 0]).square().mean()


def net(inputs, hidden, outputs, *more):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs), *more)


class MeshGraphRound(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.edges = net(3 * width, width, width, nn.LayerNorm(width))
        self.nodes = net(2 * width, width, width, nn.LayerNorm(width))

    def forward(self, nodes, edges, begin, end):
        edges = edges + self.edges(torch.cat([edges, nodes.index_select(0, begin), nodes.index_select(0, end)], 1))
        heard = torch.zeros_like(nodes).index_add(0, end, edges)
        return nodes + self.nodes(torch.cat([nodes, heard], 1)), edges


class MeshGraphNet(nn.Module):
    def __init__(self, width, rounds=3):
        super().__init__()
        self.nodes = net(8, width, width, nn.LayerNorm(width))
        self.edges = net(4, width, width, nn.LayerNorm(width))
        self.rounds = nn.ModuleList(MeshGraphRound(width) for _ in range(rounds))
        self.decoder = net(width, width, 3)

    def forward(self, nodes, edges, begin, end):
        nodes, edges = self.nodes(nodes), self.edges(edges)
        for layer in self.rounds:
            nodes, edges = layer(nodes, edges, begin, end)
        return self.decoder(nodes)


class GraphAttentionLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.project = nn.Linear(width, width, bias=False)
        self.begin = nn.Parameter(torch.randn(heads, width // heads))
        self.end = nn.Parameter(torch.randn(heads, width // heads))

    def forward(self, nodes, begin, end):
        heads = self.project(nodes).unflatten(1, self.begin.shape)
        scores = (heads * self.begin).sum(2)[begin] + (heads * self.end).sum(2)[end]
        weights = self.softmax(functional.leaky_relu(scores, 0.2), end, len(nodes))
        messages = heads[begin] * weights.unsqueeze(2)
        return functional.elu(messages.new_zeros(heads.shape).index_add(0, end, messages).flatten(1))

    @staticmethod
    def softmax(scores, end, count):
        """Over the edges that lead to the same node."""
        nothing = scores.new_zeros(count, scores.shape[1])
        index = end.unsqueeze(1).expand_as(scores)
        largest = (nothing - 1e30).scatter_reduce(0, index, scores.detach(), "amax")
        powers = (scores - largest[end]).exp()
        return powers / nothing.index_add(0, end, powers)[end]


class GraphAttention(nn.Module):
    def __init__(self, width, heads=4, depth=2, classes=7):
        super().__init__()
        self.layers = nn.ModuleList(GraphAttentionLayer(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, nodes, begin, end):
        for layer in self.layers:
            nodes = layer(nodes, begin, end)
        return self.head(nodes)


class Sequences(nn.Module):
    """Recurrent layers, and a head on their last step."""

    def __init__(self, layers, inputs, hidden, depth=2, classes=10):
        super().__init__()
        self.layers = layers(inputs, hidden, depth, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequences):
        return self.head(self.layers(sequences)[0][:, -1])


class Run:
    """Where, and how large."""

    def __init__(self, device, quick, products=torch.float32):
        self.device, self.quick, self.products = device, quick, products

    def cast(self):
        """Where products are computed in their type."""
        whole = self.products == torch.float32
        return contextlib.nullcontext() if whole else torch.autocast(torch.device(self.device).type, self.products)

    def size(self, full, small):
        return small if self.quick else full

    def normal(self, *shape):
        return torch.randn(shape, device=self.device)

    def below(self, end, *shape):
        return torch.randint(end, shape, device=self.device)

    def classes(self, model, inputs, classes):
        model.to(self.device)
        return training(model, lambda: functional.cross_entropy(model(*inputs), classes), self.cast)

    def numbers(self, model, inputs, targets):
        model.to(self.device)
        return training(model, lambda: functional.mse_loss(model(*inputs), targets), self.cast)


def vit_case(run):
    n, side, width, depth = run.size(8, 4), run.size(224, 32), run.size(192, 24), run.size(4, 2)
    return f"ViT {n}x3x{side}x{side}", lambda: run.classes(Vit(side, width, depth), [run.normal(n, 3, side, side)], run.below(100, n))


def swin_case(run):
    n, side, width = run.size(2, 2), run.size(56, 14), run.size(96, 12)

    def make():
        model = nn.Sequential(SwinBlock(width, 0), SwinBlock(width, SwinBlock.WINDOW // 2))
        return run.numbers(model, [run.normal(n, side, side, width)], run.normal(n, side, side, width))

    return f"Swin blocks {n}x{side}x{side}x{width}", make


def llama(run, tokens):
    return Llama(tokens, run.size(256, 32), run.size(256, 16), run.size(688, 40), run.size(4, 2)).to(run.device)


def llama_case(run):
    n, length, tokens = run.size(4, 4), run.size(256, 16), run.size(4096, 64)

    def make():
        model, given, follows = llama(run, tokens), run.below(tokens, n, length), run.below(tokens, n, length)
        return training(model, lambda: functional.cross_entropy(model(given)[0].flatten(0, 1), follows.flatten()), run.cast)

    return f"Llama {n}x{length} tokens", make


def decoding_case(run):
    count, tokens = run.size(32, 4), run.size(4096, 64)

    def make():
        model, first = llama(run, tokens), run.below(tokens, 1, 1)
        return counted(lambda: decode(model, first, count, run.cast), model)

    return f"Llama decodes {count} tokens", make


def resnet_case(run):
    n, side, width = run.size(32, 4), run.size(32, 16), run.size(32, 4)
    return f"ResNet {n}x3x{side}x{side}", lambda: run.classes(ResNet(width), [run.normal(n, 3, side, side)], run.below(10, n))


def convnext_case(run):
    n, side, width = run.size(4, 4), run.size(128, 32), run.size(96, 8)
    return f"ConvNeXt blocks {n}x3x{side}x{side}", lambda: run.classes(ConvNext(width), [run.normal(n, 3, side, side)], run.below(100, n))


def unet_case(run):
    n, side, width = run.size(4, 4), run.size(64, 8), run.size(32, 8)
    images = (n, 3, side, side)
    return f"U-Net {n}x3x{side}x{side}", lambda: run.numbers(UNet(width), [run.normal(*images)], run.normal(*images))


def dcgan_case(run):
    n, channels, side = run.size(16, 4), run.size(128, 8), run.size(8, 4)
    seeds, images = (n, channels, side, side), (n, 3, 8 * side, 8 * side)
    return f"DCGAN {n}x{channels}x{side}x{side}", lambda: run.numbers(generator(channels), [run.normal(*seeds)], run.normal(*images))


def fno_case(run):
    n, side, width, modes = run.size(4, 4), run.size(64, 12), run.size(32, 4), run.size(12, 3)
    fields, found = (n, 3, side, side), (n, 1, side, side)
    return f"FNO {n}x3x{side}x{side}", lambda: run.numbers(operator(width, modes), [run.normal(*fields)], run.normal(*found))


def pinn_case(run):
    n, width = run.size(1024, 32), run.size(64, 8)

    def make():
        model, points = solution(width).to(run.device), run.normal(n, 2).requires_grad_()
        return training(model, lambda: residual(model, points), run.cast)

    return f"PINN {n} points", make


def mesh_graph_case(run):
    nodes, width = run.size(4000, 60), run.size(64, 8)
    edges = 6 * nodes

    def make():
        graph = [run.normal(nodes, 8), run.normal(edges, 4), run.below(nodes, edges), run.below(nodes, edges)]
        return run.numbers(MeshGraphNet(width), graph, run.normal(nodes, 3))

    return f"mesh graph net {nodes} nodes", make


def graph_attention_case(run):
    nodes, edges, width = run.size(3000, 60), run.size(20_000, 400), run.size(64, 8)

    def make():
        graph = [run.normal(nodes, width), run.below(nodes, edges), run.below(nodes, edges)]
        return run.classes(GraphAttention(width), graph, run.below(7, nodes))

    return f"graph attention {nodes} nodes", make


def recurrent_case(kind, layers):
    def case(run):
        n, steps, inputs, hidden = run.size(32, 4), run.size(48, 6), run.size(64, 8), run.size(128, 8)

        def make():
            return run.classes(Sequences(layers, inputs, hidden), [run.normal(n, steps, inputs)], run.below(10, n))

        return f"{kind} {n}x{steps}x{inputs}", make

    return case


CASES = [
    vit_case,
    swin_case,
    llama_case,
    decoding_case,
    resnet_case,
    convnext_case,
    unet_case,
    dcgan_case,
    fno_case,
    pinn_case,
    mesh_graph_case,
    graph_attention_case,
    recurrent_case("LSTM", nn.LSTM),
    recurrent_case("GRU", nn.GRU),
]


def cases(device, quick):
    """Names, and functions that make a step."""
    for case in CASES:
        for products, suffix in [(torch.float32, ""), (torch.bfloat16, " in bf16")]:
            name, make = case(Run(device, quick, products))
            yield f"models/{name}{suffix}", make
