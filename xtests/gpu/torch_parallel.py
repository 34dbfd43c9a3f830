"""What PyTorch distributes over processes, as the group `parallel` of `bench` has it: the same sizes, numbers, placements and names.

Moves and ops are of DTensor, training of DDP, of FSDP2, and of plans for tensors and sequences. Every result is compared with one process's.
"""

import contextlib
import os
import time
import warnings
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch_models
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

# Seconds after which a rank gives up waiting for the others.
PATIENCE = 40
# How far a result may be from one process's, as `bench` has it.
TOLERANCE = 1e-4


class Wrong(Exception):
    """A result that is not that of one process."""


def begin(rank, ranks, store, quick):
    """Joins the other processes: what makes each case, by name, and what times so many calls of one."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.simplefilter("ignore")
    file = os.path.join(store, "ranks")
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks, timeout=timedelta(seconds=PATIENCE))
    mesh = init_device_mesh("cpu", (ranks,))
    dist.barrier()
    if rank == 0:
        with contextlib.suppress(FileNotFoundError):
            os.remove(file)
        os.rmdir(store)
    return dict(cases(mesh, quick)), timed


def timed(step, count):
    """Seconds from when the first rank begins to when the last one has finished."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        step()
    spans = [torch.zeros(2, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(spans, torch.tensor([start, time.perf_counter()], dtype=torch.float64))
    return float(max(s[1] for s in spans) - min(s[0] for s in spans))


def numbers(seed, *shape):
    """The numbers of `bench` in [-0.5, 1): numbers.rs."""
    count = int(np.prod(shape))
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed << 32)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return 1.5 * ((z >> np.uint64(40)).astype(np.float64) / (1 << 24)) - 0.5


def fixed(seed, *shape):
    return torch.from_numpy(numbers(seed, *shape).astype(np.float32)).reshape(shape)


def below(end, seed, *shape):
    """Integers from 0 on."""
    return torch.from_numpy(np.floor((numbers(seed, *shape) + 0.5) / 1.5 * end).astype(np.int64)).reshape(shape)


def seed_of(name):
    """Of a parameter: a hash (FNV-1a) of its name."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = (seed ^ byte) * 0x01000193 & 0xFFFFFFFF
    return seed


def numbered(model):
    """Gives parameters the numbers that those of `bench` have."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            centred = numbers(seed_of(name), *p.shape) - 0.25
            if p.dim() > 1:
                values = 2 / np.sqrt(float(np.prod(p.shape[1:]))) * centred
            else:
                values = 0.1 * centred + (1 if name.endswith("weight") else 0)
            p.copy_(torch.from_numpy(values.astype(np.float32)).reshape(p.shape))
    return model


def each(values):
    return values if isinstance(values, tuple) else (values,)


def waited(values):
    """What is here of results, when it has arrived."""
    for value in each(values):
        value = value.to_local() if isinstance(value, DTensor) else value
        if isinstance(value, AsyncCollectiveTensor):
            value.wait()


def compare(got, expected):
    """Fails on all ranks if a result is wrong on one."""
    worst = 0.0
    for g, e in zip(each(got), each(expected)):
        g = g.full_tensor() if isinstance(g, DTensor) else g
        if g.shape != e.shape:
            worst = float("inf")
        elif g.numel() > 0:
            g, e = g.detach().double(), e.detach().double()
            apart = (g - e).abs().max() / e.abs().max()
            worst = max(worst, float(apart.nan_to_num(nan=float("inf"))))
    worst = torch.tensor(worst)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if worst > TOLERANCE:
        how = "the shape" if worst.isinf() else f"{float(worst):.2g} of the largest"
        raise Wrong(f"wrong by {how}")


def replicated(x):
    """On a mesh the copies, of one process the same."""
    return x.redistribute(placements=[Replicate()]) if isinstance(x, DTensor) else x


def gradients(function):
    """By all operands that have gradients, of the function's result, whose cotangent is the last operand."""

    def apply(*operands):
        *operands, cotangent = operands
        operands = [x.detach().requires_grad_() if x.is_floating_point() else x for x in operands]
        y = function(*operands)
        if isinstance(y, DTensor):
            cotangent = cotangent.redistribute(placements=y.placements)
        return torch.autograd.grad(y, [x for x in operands if x.requires_grad], cotangent)

    return apply


def ten_maps(x):
    y = x
    for _ in range(5):
        y = y * 0.75 + x
    return y


def cross_entropy(logits, classes):
    """Of logits whose classes are sharded, and its gradient."""
    logits = logits.detach().requires_grad_()
    with loss_parallel() if isinstance(logits, DTensor) else contextlib.nullcontext():
        loss = functional.cross_entropy(logits, classes)
        loss.backward()
    return loss, logits.grad


def mean_square(x, y):
    x = x.detach().requires_grad_()
    loss = functional.mse_loss(x, y)
    loss.backward()
    return loss, x.grad


def op(mesh, function, *operands):
    """A function of tensors, given with their placements."""
    wholes = [make() for make, _ in operands]
    placed = [distribute_tensor(whole, mesh, [at]) for whole, (_, at) in zip(wholes, operands)]
    compare(function(*placed), function(*wholes))
    return lambda: waited(function(*placed))


def move(mesh, shape, source, target):
    whole = fixed(1, *shape)
    if source.is_partial():
        x, expected = DTensor.from_local(whole, mesh, [source]), whole * mesh.size()
    else:
        x, expected = distribute_tensor(whole, mesh, [source]), whole
    compare(x.redistribute(mesh, [target]), expected)
    return lambda: waited(x.redistribute(mesh, [target]))


def ops(size):
    """Names, functions and operands of ops."""
    s0, s1, r = Shard(0), Shard(1), Replicate()

    def x(at, seed, *shape):
        return lambda: fixed(seed, *shape), at

    def index(at, end, seed, count):
        return lambda: below(end, seed, count), at

    many = size(4_000_000, 40_000)
    yield "add of 16, S(0)", torch.add, x(s0, 1, 16), x(s0, 2, 16)
    yield "ten maps of 16, S(0)", ten_maps, x(s0, 1, 16)
    yield f"ten maps of {many}, S(0)", ten_maps, x(s0, 1, many)
    n = size(2048, 64)
    a, b, c = x(s0, 1, n, n), x(r, 2, n, n), x(s0, 3, n, n)
    yield f"product {n}, S(0) x R", torch.matmul, a, b
    yield f"product {n}, S(0) x R, fwd+bwd", lambda a, b, c: tuple(map(replicated_terms, gradients(torch.matmul)(a, b, c))), a, b, c
    yield f"product {n}, S(1) x S(0) -> R", lambda a, b: replicated(a @ b), x(s1, 1, n, n), x(s0, 2, n, n)
    rows, width = size(4097, 65), size(1024, 32)
    table = x(s0, 1, rows, width)
    yield f"sum {rows}x{width}, S(0) -> R", lambda x: replicated(x.sum()), table
    yield f"mean of rows {rows}x{width}, S(0) -> R", lambda x: replicated(x.mean(0)), table
    yield f"mse loss {rows}x{width}, S(0), fwd+bwd", lambda x, y: tuple(map(replicated_terms, mean_square(x, y))), table, x(s0, 2, rows, width)

    def layer_norm(x, w, b):
        return functional.layer_norm(x, (width,), w, b)

    normed = x(s1, 1, 4 * width, width), x(r, 2, width), x(r, 3, width)
    yield f"layer norm {4 * width}x{width}, S(1)", layer_norm, *normed
    yield f"layer norm {4 * width}x{width}, S(1), fwd+bwd", gradients(layer_norm), *normed, x(s1, 4, 4 * width, width)
    rows = size(16384, 256)
    yield f"softmax of columns {rows}x256, S(0)", lambda x: x.softmax(0), x(s0, 1, rows, 256)
    yield f"softmax of columns {rows}x256, S(0), fwd+bwd", gradients(lambda x: x.softmax(0)), x(s0, 1, rows, 256), x(s0, 4, rows, 256)

    def group_norm(x, w, b):
        return functional.group_norm(x, 8, w, b)

    side = size(512, 32)
    image = x(Shard(2), 1, 1, 32, side, side)
    yield f"group norm 1x32x{side}x{side}, S(2)", group_norm, image, x(r, 2, 32), x(r, 3, 32)
    yield (
        f"group norm 1x32x{side}x{side}, S(2), fwd+bwd",
        gradients(group_norm), image, x(r, 2, 32), x(r, 3, 32), x(Shard(2), 4, 1, 32, side, side),
    )  # fmt: skip

    def convolution(x, w):
        return functional.conv2d(x, w, padding=1)

    filters = x(r, 2, 32, 32, 3, 3)
    yield f"convolution 1x32x{side}x{side}, k3, S(2)", convolution, image, filters
    yield (
        f"convolution 1x32x{side}x{side}, k3, S(2), fwd+bwd",
        lambda *o: tuple(map(replicated_terms, gradients(convolution)(*o))), image, filters, x(Shard(2), 4, 1, 32, side, side),
    )  # fmt: skip
    rows, count = size(32768, 512), size(4096, 64)
    table, picked = x(s0, 1, rows, 256), index(r, rows, 2, count)
    yield f"embedding of {count}, {rows}x256, S(0) -> R", lambda x, i: replicated(functional.embedding(i, x)), table, picked
    yield f"rows {count} of {rows}x256 by index, S(0)", lambda x, i: replicated(x.index_select(0, i)), table, picked
    classes = size(8192, 64)
    yield (
        f"cross entropy {count // 2}x{classes}, S(1), fwd+bwd",
        cross_entropy, x(s1, 1, count // 2, classes), index(r, classes, 2, count // 2),
    )  # fmt: skip
    many = size(1_000_000, 10_000)
    yield f"sort of {many}, S(0)", lambda x: x.sort(0)[0], x(s0, 1, many)
    yield f"largest 64 of {many}, S(0)", lambda x: x.topk(64, 0)[0], x(s0, 1, many)


def replicated_terms(x):
    """Terms of a sum, summed; what is placed in another way stays."""
    return replicated(x) if isinstance(x, DTensor) and x.placements[0].is_partial() else x


def cases(mesh, quick):
    """Names, and functions that make a step."""

    def size(full, small):
        return small if quick else full

    moves = [
        ("S(0) -> S(1)", Shard(0), Shard(1)),
        ("S(1) -> S(0)", Shard(1), Shard(0)),
        ("S(0) -> R", Shard(0), Replicate()),
        ("P -> S(0)", Partial(), Shard(0)),
        ("P -> R", Partial(), Replicate()),
        ("R -> S(0)", Replicate(), Shard(0)),
    ]
    side = size(4096, 64)
    for shape in [(side, side), (size(1024, 32), size(1024, 32)), (4, 4), (side + 1, size(1024, 32))]:
        for name, source, target in moves:
            yield (
                f"parallel/{shape[0]}x{shape[1]} {name}",
                lambda shape=shape, source=source, target=target: move(mesh, shape, source, target),
            )
    for name, function, *operands in ops(size):
        yield f"parallel/{name}", lambda function=function, operands=operands: op(mesh, function, *operands)
    run = torch_models.Run("cpu", quick)
    for name, make in training(mesh, run):
        yield f"parallel/{name}", make


def trained(model, loss):
    """A step, and how its loss is told: the mean of what the ranks have, which are as many samples each."""
    step = torch_models.training(model, loss)

    def mean(value):
        value = value.full_tensor() if isinstance(value, DTensor) else value
        value = value.detach().clone()
        dist.all_reduce(value)
        return float(value) / dist.get_world_size()

    step.loss = mean
    return step


def training(mesh, run):
    """Steps of training whole models."""
    rank, ranks = mesh.get_rank(), mesh.size()

    def mine(x):
        """The samples of this rank."""
        return x.chunk(ranks)[rank]

    def data_parallel(model, loss, *batch):
        model, batch = torch.nn.parallel.DistributedDataParallel(numbered(model)), [mine(x) for x in batch]
        return trained(model, lambda: loss(model, *batch))

    def llama():
        return torch_models.llama(run, tokens)

    def next_tokens(model, given, follows):
        return functional.cross_entropy(model(given)[0].flatten(0, 1), follows.flatten())

    n, length, tokens = run.size(4, 4), run.size(256, 16), run.size(4096, 64)
    name = f"Llama {n}x{length} tokens"

    def batch():
        return below(tokens, 1, n, length), below(tokens, 2, n, length)

    def fully_sharded():
        model, (given, follows) = numbered(llama()), map(mine, batch())
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return trained(model, lambda: next_tokens(model, given, follows))

    def divided():
        """Heads, features and classes over the ranks, and tokens between them."""
        model, (given, follows) = numbered(llama()), batch()
        plan = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
        for i in range(len(model.blocks)):
            for norm in ("norm1", "norm2"):
                plan[f"blocks.{i}.{norm}"] = SequenceParallel()
            for layer in ("q_proj", "k_proj", "v_proj", "gate", "up"):
                plan[f"blocks.{i}.{layer}"] = ColwiseParallel()
            for layer in ("out_proj", "down"):
                plan[f"blocks.{i}.{layer}"] = RowwiseParallel(output_layouts=Shard(1))
        model = parallelize_module(model, mesh, plan)
        # The three layers behind a norm read what is gathered once.
        gathered = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
        gathered = {name: gathered for name in plan if name.rpartition(".")[2] in ("norm1", "norm2")}
        model = parallelize_module(model, mesh, gathered)

        step = trained(model, lambda: next_tokens(model, given, follows))

        def whole():
            with loss_parallel():
                return step()

        whole.parameters, whole.loss = step.parameters, step.loss
        return whole

    yield f"{name}, data parallel", lambda: data_parallel(llama(), next_tokens, *batch())
    yield f"{name}, fully sharded", fully_sharded
    yield f"{name}, tensor and sequence parallel", divided

    def numbers_of(model, images, targets):
        return functional.mse_loss(model(images), targets)

    def classes_of(model, images, classes):
        return functional.cross_entropy(model(images), classes)

    n, side, width = run.size(4, 4), run.size(64, 8), run.size(32, 8)
    images = n, 3, side, side
    yield (
        f"U-Net {n}x3x{side}x{side}, data parallel",
        lambda: data_parallel(torch_models.UNet(width), numbers_of, fixed(1, *images), fixed(2, *images)),
    )
    m, points, channels = run.size(32, 4), run.size(32, 16), run.size(32, 4)
    yield (
        f"ResNet {m}x3x{points}x{points}, data parallel",
        lambda: data_parallel(torch_models.ResNet(channels), classes_of, fixed(1, m, 3, points, points), below(10, 2, m)),
    )
