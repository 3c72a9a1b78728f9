"""Memory, predicted and measured: `python tools/memory.py [peaks|sweep|defaults] [name ...]`.

`peaks`: the predicted and the measured peak of a training step, at orders 1 and 2.  `sweep`: ten
memory budgets from the least that is possible to what saving everything takes, each with its
predicted and measured peak and time, and the largest error of its gradients against eager in
float64.  `defaults`: the peak and the time of steps under autocast without a budget, on eager,
Inductor and adjoint; of models of the zoo where their packages are installed.

On a GPU networks are larger, and memory is that of torch's allocator, above what was allocated
before the first compiled step.
"""

from __future__ import annotations

import copy
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import adjoint
from adjoint.bench import workloads, zoo
from adjoint.bench.measure import relative_error
from adjoint.bench.problems import Problem, step_of
from adjoint.bench.zoo.convolutional import ResNet
from adjoint.bench.zoo.scales import choose
from adjoint.errors import DifferentiationError
from tests.memory.test_networks import Case, Classifier, ViT, plainly, with_penalty
from tests.memory.test_report import measured

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

BUDGETS = 10

# Steps while memory is measured: the first ones compile, and capture CUDA graphs, which keep
# memory that torch's allocator counts only then.
STEPS = 8

TIMED_STEPS = 10

MIB = 1 << 20


def resnet(order: int) -> Case:
    depths, width, count, size = choose(
        DEVICE,
        False,
        full=((2, 2, 2, 2), 64, 32, 128),
        cpu=((1, 1, 1, 1), 16, 16, 64),
        tiny=((1, 1, 1, 1), 16, 16, 64),
    )
    images = torch.randn(count, 3, size, size)
    return Case(Classifier(ResNet(depths, width)), (images,), loss_of(order), order)


def vit(order: int) -> Case:
    width, layers, size, patch, count = choose(
        DEVICE, False, full=(384, 6, 64, 8, 128), cpu=(64, 4, 32, 4, 16), tiny=(64, 4, 32, 4, 16)
    )
    net = Classifier(ViT(width, layers, size, patch))
    return Case(net, (torch.randn(count, 3, size, size),), loss_of(order), order)


def gpt(order: int) -> Case:
    tokens, width, layers, length, count = choose(
        DEVICE, False, full=(4096, 256, 8, 256, 16), cpu=(256, 64, 8, 128, 16), tiny=(0,) * 5
    )
    text = torch.randint(0, tokens, (2, count, length))
    return Case(workloads.Transformer(tokens, width, 4, layers, length), tuple(text), plainly)


def bench(name: str, order: int) -> Case:
    problem = workloads.WORKLOADS[name](DEVICE, False)
    loss = problem.outside if order == 2 or name == "gpt" else squared
    return Case(problem.net, problem.batch, loss, order, problem.mixed)


def pinn(order: int) -> Case:
    case = bench("pinn", order)
    return replace(case, loss=slope_of_sum) if order == 2 else case


def loss_of(order: int) -> Callable[..., Tensor]:
    return plainly if order == 1 else with_penalty


def squared(net: Any, *args: Tensor) -> Tensor:
    result: Tensor = net(*args[:4])
    return result.square().mean()


def slope_of_sum(net: Any, *args: Tensor) -> Tensor:
    """The squared slope of a function of points."""
    return with_penalty(lambda points: net(points).sum(), *args)


CASES: dict[str, tuple[Callable[[int], Case], tuple[int, ...]]] = {
    "resnet": (resnet, (1, 2)),
    "vit": (vit, (1, 2)),
    "gpt": (gpt, (1,)),
    "pinn": (pinn, (1, 2)),
    "forces": (lambda order: bench("forces", order), (1, 2)),
    "gp": (lambda order: bench("gp", order), (1, 2)),
    "bench gpt": (lambda order: bench("gpt", order), (1,)),
}

TRAINED = ("bert", "t5", "vit", "bart", "resnet")


def made(name: str, order: int) -> Case:
    torch.manual_seed(0)
    forget()
    case = CASES[name][0](order)
    args = tuple(x.to(DEVICE) for x in case.args)
    return replace(case, net=case.net.to(DEVICE), args=args)


def forget() -> None:
    torch._dynamo.reset()
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def peak_of(step: Callable[[], Any]) -> int:
    """The most bytes of some steps above those before the first."""
    if DEVICE == "cpu":
        return measured(step)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        step()
    return torch.cuda.max_memory_allocated() - before


def seconds_of(step: Callable[[], Any]) -> float:
    taken = []
    for _ in range(TIMED_STEPS):
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def gradients(case: Case, function: Any) -> dict[str, Tensor]:
    case.step(function)()
    named = case.net.named_parameters()
    return {name: p.grad.detach().cpu() for name, p in named if p.grad is not None}


def in_eager(case: Case) -> AbstractContextManager[object]:
    """Eager has no second derivative of other attentions."""
    return sdpa_kernel(SDPBackend.MATH) if case.order > 1 else nullcontext()


def autocast(case: Case) -> torch.autocast:
    return torch.autocast("cuda", torch.bfloat16, enabled=case.mixed)


def expected(case: Case) -> dict[str, Tensor]:
    """The gradients by eager in float64; its libraries allocate their workspaces."""
    with in_eager(case):
        case.step(case.net)()
    case.net.zero_grad(set_to_none=True)
    double = replace(case, net=copy.deepcopy(case.net)).double()
    with in_eager(case):
        found = gradients(double, double.net)
    del double
    gc.collect()
    return found


def show_peaks(names: Iterable[str]) -> None:
    print(f"{'case':12}{'order':>6}{'predicted':>11}{'measured':>10}{'ratio':>7}{'eager':>9}  MiB")
    for name in names:
        for order in CASES[name][1]:
            case = made(name, order)
            with in_eager(case):
                case.step(case.net)()
                case.net.zero_grad(set_to_none=True)
                eager = peak_of(case.step(case.net))
            with autocast(case):
                report = adjoint.saved_values(case.net, *case.network_args, order=order)
            case.net.zero_grad(set_to_none=True)
            forget()
            compiled = torch.compile(case.net, backend="adjoint", fullgraph=True)
            peak = peak_of(case.step(compiled))
            predicted = report.peak or 0
            print(
                f"{name:12}{order:6}{predicted / MIB:11.1f}{peak / MIB:10.1f}"
                f"{predicted / peak:7.3f}{eager / MIB:9.1f}",
                flush=True,
            )


def show_sweep(names: Iterable[str]) -> None:
    for name in names:
        order = 1 if name in ("resnet", "vit", "gpt", "bench gpt") else 2
        case = made(name, order)
        right = expected(case)
        smallest, everything = least(case), within(1.0, case)[0].peak or 0
        print(f"{name}: saving everything takes {everything / MIB:.1f} MiB")
        print(
            f"{'budget':>9}{'predicted':>11}{'measured':>10}{'relative':>10}{'ms':>9}{'error':>10}"
        )
        for k in range(BUDGETS):
            budget = smallest + (everything - smallest) * k // (BUDGETS - 1)
            report, compiled = within(budget, case)
            step = case.step(compiled)
            peak = peak_of(step)
            error = relative_error(gradients(case, compiled), right)
            print(
                f"{budget / MIB:9.1f}{(report.peak or 0) / MIB:11.1f}{peak / MIB:10.1f}"
                f"{1e3 * report.seconds:10.3f}{1e3 * seconds_of(step):9.3f}{error:10.1e}",
                flush=True,
            )
            case.net.zero_grad(set_to_none=True)


def within(budget: int | float, case: Case) -> tuple[adjoint.MemoryReport, Any]:
    """What is predicted for a budget, and the network compiled with it."""
    forget()
    options: dict[str, Any] = {"memory_budget": budget}
    with autocast(case):
        report = adjoint.saved_values(case.net, *case.network_args, options=options)
    return report, torch.compile(case.net, backend="adjoint", fullgraph=True, options=options)


def least(case: Case) -> int:
    """The smallest budget that is possible."""
    try:
        within(1, case)
    except DifferentiationError as error:
        return int(error.remedy.split("=")[1].split(",")[0])
    raise AssertionError("one byte was enough")


def show_defaults(names: Iterable[str]) -> None:
    makers: dict[str, Callable[[str, bool], Problem]] = {"bench gpt": workloads.gpt}
    for name in TRAINED:
        if (why := zoo.missing(name)) is None:
            makers[name] = zoo.MODELS[name].problem
        elif name in names:
            print(f"{name}: {why}")
    print(f"{'model':12}{'system':>10}{'peak':>10} MiB{'ms':>10}")
    for name, make in makers.items():
        for system in ("eager", "inductor", "adjoint") if name in names else ():
            forget()
            problem = make(DEVICE, False)
            step = step_of(problem, system)
            eager = step_of(problem, "eager")
            eager.run()
            problem.net.zero_grad(set_to_none=True)
            peak = peak_of(step.run)
            print(
                f"{name:12}{system:>10}{peak / MIB:10.1f}    {1e3 * seconds_of(step.run):10.3f}",
                flush=True,
            )
            del problem, step, eager


def main(asked: str, *names: str) -> None:
    torch.backends.cudnn.allow_tf32 = False
    match asked:
        case "peaks":
            show_peaks(names or CASES)
        case "sweep":
            show_sweep(names or CASES)
        case "defaults":
            show_defaults(names or ("bench gpt", *TRAINED))
        case _:
            sys.exit(f"{__doc__}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["peaks"]))
