#!/usr/bin/env python3
"""What PyTorch takes for the work of `bench --device cuda` on one rank, and the ratios.

    torch_reference.py [--device cuda|cpu] [--quick] [--seconds S] [--only TEXT] --json FILE
    torch_reference.py --compare OURS.json... --with THEIRS.json...
    torch_reference.py --serve --device cpu [--ranks P]    (as `bench --beside-torch PYTHON` starts it)

Cases have the names, shapes and element types of the benchmarks. Single precision is full: no TF32. Times are between CUDA events
around a batch of calls, after warming up. Either file may hold several runs: of each case the median of the medians counts.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

GROUPS = 4


def measure(step, device, seconds):
    """Median and least seconds of a call."""
    import torch

    def batch(count):
        if device == "cpu":
            start = time.perf_counter()
            for _ in range(count):
                step()
            return (time.perf_counter() - start) / count
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / count

    for _ in range(3):
        step()
    if device != "cpu":
        torch.cuda.synchronize()
    once = max(min(batch(1) for _ in range(3)), 1e-7)
    count = max(1, min(10_000, round(2e-3 / once)))
    repetitions = max(5, min(101, int(seconds / (count * once))))
    times = sorted(batch(count) for _ in range(repetitions))
    return times[len(times) // 2], times[0], repetitions


def unet(torch, inputs, outputs, width):
    """The main job's model: shard-tensor/examples/downscale/model.rs."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride=1):
            super().__init__()
            self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.norm = nn.GroupNorm(GROUPS, outputs)

        def forward(self, x):
            return functional.gelu(self.norm(self.conv(x)))

    def joined(coarse, skip):
        up = functional.interpolate(coarse, skip.shape[2:], mode="bilinear", align_corners=False)
        return torch.cat([up, skip], 1)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            w, w2, w4 = width, 2 * width, 4 * width
            self.at_fine = nn.Sequential(Block(inputs, w), Block(w, w))
            self.at_half = nn.Sequential(Block(w, w2, 2), Block(w2, w2))
            self.at_quarter = nn.Sequential(Block(w2, w4, 2), Block(w4, w4))
            self.up_half = Block(w4 + w2, w2)
            self.up_fine = Block(w2 + w, w)
            self.head = nn.Conv2d(w, outputs, 1)

        def forward(self, x):
            fine = self.at_fine(x)
            half = self.at_half(fine)
            half = self.up_half(joined(self.at_quarter(half), half))
            return self.head(self.up_fine(joined(half, fine)))

    return UNet()


def cases(torch, device, quick):
    """Names, and functions that make a step; some take memory that the next one needs."""
    # This folder is a repository's: nothing is to be left in it.
    sys.dont_write_bytecode = True
    import torch_models

    functional = torch.nn.functional

    def size(full, small):
        return small if quick else full

    def tensor(*shape, dtype=torch.float32):
        return torch.rand(shape, device=device, dtype=dtype)

    def leaf(*shape, dtype=torch.float32):
        return tensor(*shape, dtype=dtype).requires_grad_()

    def matmul(n, dtype=torch.float32):
        a, b = tensor(n, n, dtype=dtype), tensor(n, n, dtype=dtype)
        return lambda: a @ b

    n, large = size(2048, 64), size(8192, 48)
    yield f"matmul/{n}^3", lambda: matmul(n)
    yield f"matmul/{large}^3", lambda: matmul(large)
    yield f"matmul/{n}^3 bf16", lambda: matmul(n, torch.bfloat16)
    yield f"matmul/{large}^3 bf16", lambda: matmul(large, torch.bfloat16)

    def convolution(x, w, stride, padding, groups, backward, dtype):
        run = {4: functional.conv2d, 5: functional.conv3d}[len(x)]
        make = leaf if backward else tensor
        x, w, b = make(*x, dtype=dtype), make(*w, dtype=dtype), make(w[0], dtype=dtype)

        def forward():
            return run(x, w, b, stride, padding, 1, groups)

        if not backward:
            return forward
        cotangent = torch.rand_like(forward())
        return lambda: torch.autograd.grad(forward(), [x, w, b], cotangent)

    side, depth = size(512, 24), size(96, 12)
    grids = [
        (f"conv2d/1x32x{side}x{side}/32->32/k3p1/shardH", (1, 32, side, side), (32, 32, 3, 3), 1, 1, 1),
        (f"conv3d/1x8x{depth}x{depth}x{depth}/8->16/k3p1/shardD", (1, 8, depth, depth, depth), (16, 8, 3, 3, 3), 1, 1, 1),
    ]
    side, channels = size(256, 32), size(64, 16)
    grids.append(
        (f"conv2d/1x{channels}x{side}x{side}/depthwise/k3p1/shardH", (1, channels, side, side), (channels, 1, 3, 3), 1, 1, channels)
    )
    side, out = size(512, 64), size(256, 16)
    grids.append((f"conv2d/1x3x{side}x{side}/3->{out}/k16s16/shardH", (1, 3, side, side), (out, 3, 16, 16), 16, 0, 1))
    grids = [(name, (*rest, torch.float32)) for name, *rest in grids]
    for batch, channels, side in [(2, 64, size(56, 14)), (4, size(256, 64), 14)]:
        x, w = (batch, channels, side, side), (channels, channels, 3, 3)
        grids.append((f"conv2d/{batch}x{channels}x{side}x{side}/{channels}->{channels}/k3p1/shardH", (x, w, 1, 1, 1, torch.float32)))
    grids += [(f"{name}/bf16", (*rest, torch.bfloat16)) for name, (*rest, _) in grids]
    for name, case in grids:
        for kind, backward in [("fwd", False), ("fwd+bwd", True)]:
            yield f"{name}/{kind}", lambda case=case, backward=backward: convolution(*case[:-1], backward, case[-1])

    def attention(length, causal, dtype, backward):
        make = leaf if backward else tensor
        q, k, v = (make(1, 8, length, 64, dtype=dtype) for _ in range(3))

        def forward():
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        if not backward:
            return forward
        cotangent = torch.rand_like(forward())
        return lambda: torch.autograd.grad(forward(), [q, k, v], cotangent)

    length = size(4096, 256)
    for dtype, suffix in [(torch.float32, ""), (torch.bfloat16, "/bf16")]:
        for causal, how in [(False, ""), (True, "/causal")]:
            for kind, backward in [("fwd", False), ("fwd+bwd", True)]:
                yield (
                    f"sdpa/B1H8S{length}D64{how}{suffix}/{kind}",
                    lambda causal=causal, dtype=dtype, backward=backward: attention(length, causal, dtype, backward),
                )

    def of(function, *shapes):
        operands = [tensor(*shape) for shape in shapes]
        return lambda: function(*operands)

    def gradients_of(function, *shapes):
        operands = [leaf(*shape) for shape in shapes]
        cotangent = torch.rand_like(function(*operands))
        return lambda: torch.autograd.grad(function(*operands), operands, cotangent)

    count, rows = size(10_000_000, 100_000), size(16384, 256)
    yield f"elem/add {count}", lambda: of(torch.add, (count,), (count,))
    yield f"elem/dot {count}", lambda: of(torch.dot, (count,), (count,))
    yield f"elem/(x*y).sum() full {count}", lambda: of(lambda x, y: (x * y).sum(), (count,), (count,))
    yield f"elem/silu(x)*y in one pass {count}", lambda: of(lambda x, y: functional.silu(x) * y, (count,), (count,))
    yield f"elem/gelu {count}", lambda: of(functional.gelu, (count,))
    yield f"elem/exp {count}", lambda: of(torch.exp, (count,))
    yield f"elem/tanh {count}", lambda: of(torch.tanh, (count,))
    side = size(512, 32)
    image, table = (1, 32, side, side), (rows, 256)
    norms = [
        (f"group_norm(8) 1x32x{side}x{side} shardH", lambda x, w, b: functional.group_norm(x, 8, w, b), [image, (32,), (32,)]),
        (f"layer_norm {rows}x256 shard tokens", lambda x, w, b: functional.layer_norm(x, (256,), w, b), [table, (256,), (256,)]),
        (f"softmax {rows}x256 shard tokens", lambda x: x.softmax(1), [table]),
        (f"softmax over sharded dim {rows}x256", lambda x: x.softmax(0), [table]),
        (f"log_softmax {rows}x256 shard tokens", lambda x: x.log_softmax(1), [table]),
        ("layer_norm over sharded dims", lambda x: functional.layer_norm(x, image[1:]), [image]),
    ]
    for name, function, shapes in norms:
        for kind, make in [("fwd", of), ("fwd+bwd", gradients_of)]:
            yield f"norm/{name} {kind}", lambda make=make, function=function, shapes=shapes: make(function, *shapes)
    yield f"norm/mean {count}", lambda: of(torch.mean, (count,))
    yield "norm/mean image shardH (full)", lambda: of(torch.mean, image)
    yield "norm/mean over sharded dim (full)", lambda: of(lambda x: x.mean(2), image)

    if device == "cpu":

        def tree(points, queries):
            """SciPy's search for neighbours, which is not PyTorch's but is what programs of PyTorch call."""
            from scipy.spatial import cKDTree

            p, q = (torch.rand(n, 3).numpy() for n in (points, queries))
            return lambda: cKDTree(p).query(q, k=16)

        points, queries = size(20_000, 1000), size(5000, 300)
        yield f"knn/{points}x{queries}k16", lambda: tree(points, queries)

    yield "dispatch/add 16 elements", lambda: of(torch.add, (16,), (16,))

    def training(height, width):
        model = unet(torch, 4, 3, 16).to(device)
        x, y = tensor(1, 4, height, width), tensor(1, 3, height, width)
        return torch_models.training(model, lambda: functional.mse_loss(model(x), y))

    height, width = size(204, 24), size(187, 22)
    yield f"train/U-Net {height}x{width} step, shardH", lambda: training(height, width)
    yield from torch_models.cases(device, quick)


def set_up(args):
    """PyTorch, in full precision, on a host with one thread."""
    try:
        import torch
    except ImportError as error:
        sys.exit(f"torch_reference: no PyTorch here: {error}")
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_reference: PyTorch sees no GPU; --device cpu only shows that this program runs")
    if args.device == "cpu":
        torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    return torch


def processes(ranks):
    """Makes copies of this process, one for each rank but 0: this one's rank, the lines that it is told, and where rank 0 passes on what
    it is told itself. To be called before PyTorch has threads."""
    others = []
    for rank in range(1, ranks):
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(write)
            for other in others:
                other.close()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return rank, os.fdopen(read), []
        os.close(read)
        others.append(os.fdopen(write, "w", buffering=1))
    return 0, sys.stdin, others


def repeated(step, count):
    start = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - start


def serve(args):
    """Says what it is; then answers `case NAME` with ready, and what is to be compared: how many parameters are learnt, if it trains a
    model, and then what it finds, on several ranks three losses, and of an op a digest of its result; or with none, or with what is wrong;
    and `run COUNT` with the seconds of so many calls.

    On several ranks it is rank 0 that does so. There a rank that fails ends, since nobody knows then what the others wait for; they fail
    by that, and whoever asks starts all of them anew."""
    store = tempfile.mkdtemp() if args.ranks > 1 else None
    rank, lines, others = processes(args.ranks)
    torch = set_up(args)
    if store:
        # This folder is a repository's: nothing is to be left in it.
        sys.dont_write_bytecode = True
        import torch_parallel

        makers, timed = torch_parallel.begin(rank, args.ranks, store, args.quick)
        maker = makers.get
        name = f"PyTorch {torch.__version__}, {args.ranks} processes over gloo"
    else:
        import torch_ops

        makers, timed = dict(cases(torch, args.device, args.quick)), repeated

        def maker(case):
            return makers.get(case) or torch_ops.maker(case)

        name = f"PyTorch {torch.__version__}"
    print(name, flush=True)
    step = None
    for line in lines:
        for other in others:
            other.write(line)
        what, _, rest = line.rstrip("\n").partition(" ")
        if what == "run" and step:
            print(timed(step, int(rest)), flush=True)
            continue
        step, answer = None, "none"
        try:
            make = maker(rest) if what == "case" else None
            step = make() if make else None
            compared = [getattr(step, "parameters", "-")]
            for _ in range(3 if step else 0):
                value = step()
                if hasattr(step, "loss"):
                    compared.append(step.loss(value))
            if step:
                answer = " ".join(["ready", *map(str, compared)]).rstrip()
        except ImportError:
            step = None
        except Exception as error:
            step, answer = None, f"{type(error).__name__}: {' '.join(str(error).split())}"
            if args.ranks > 1:
                if isinstance(error, torch_parallel.Wrong):
                    answer = answer.partition(": ")[2]
                print(answer, flush=True)
                os._exit(1)
        print(answer, flush=True)


def run(args):
    torch = set_up(args)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    print(f"PyTorch {torch.__version__} on {name}")
    with open(args.json, "a") as out:
        for case, make in cases(torch, args.device, args.quick):
            if args.only and args.only not in case:
                continue
            median, least, repetitions = measure(make(), args.device, args.seconds)
            record = {"case": case, "peer": "torch", "device": args.device, "ranks": 1, "median_s": median, "min_s": least, "reps": repetitions}
            out.write(json.dumps(record) + "\n")
            print(f"{case:<58} {1e3 * median:10.4f} ms")


def medians(paths):
    """Of each case on one rank, the median over runs of the median time, and how many runs."""
    times = {}
    for path in paths:
        with open(path) as lines:
            for line in filter(str.strip, lines):
                record = json.loads(line)
                if record["ranks"] == 1:
                    times.setdefault(record["case"], []).append(record["median_s"])
    return {case: (statistics.median(all), len(all)) for case, all in times.items()}


def compare(args):
    ours, theirs = medians(args.compare), medians(args.reference)
    both = [case for case in theirs if case in ours]
    if not both:
        sys.exit("torch_reference: the files have no case in common")
    print(f"{'case':<58} {'ours, ms':>10} {'torch, ms':>10} {'ratio':>7}  runs")
    for case in both:
        (a, n), (b, m) = ours[case], theirs[case]
        print(f"{case:<58} {1e3 * a:10.4f} {1e3 * b:10.4f} {a / b:7.2f}  {n}, {m}")
    for case in theirs:
        if case not in ours:
            print(f"{case:<58} {'-':>10} {1e3 * theirs[case][0]:10.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="the small sizes of bench --quick")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring, for each case")
    parser.add_argument("--only", help="only cases whose name contains this")
    parser.add_argument("--json", help="where the times are appended, a line for each case")
    parser.add_argument("--serve", action="store_true", help="answer on standard output what is asked on standard input")
    parser.add_argument("--ranks", type=int, default=1, help="with --serve: so many processes, which talk over gloo")
    parser.add_argument("--compare", nargs="+", metavar="OURS", help="times of bench --json")
    parser.add_argument("--with", nargs="+", metavar="THEIRS", dest="reference", help="times of this program")
    args = parser.parse_args()
    if args.serve:
        serve(args)
    elif args.compare or args.reference:
        if not (args.compare and args.reference):
            parser.error("--compare needs --with")
        compare(args)
    elif args.json:
        run(args)
    else:
        parser.error("say --json, --serve, or --compare and --with")


if __name__ == "__main__":
    main()
