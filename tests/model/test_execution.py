"""How a drafter is run changes memory and time: never what it computes."""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dflash_pipeline.model.config import Execution
from dflash_pipeline.model.drafter import Drafter
from tests.tiny_models import drafter_inputs, random_batch, strong_drafter, tiny_config, tiny_target


def gradients(drafter, target, batch):
    drafter.zero_grad()
    hidden = drafter(*drafter_inputs(target, batch, drafter.config), batch.blocks)
    hidden.square().sum().backward()
    return hidden.detach(), [parameter.grad for parameter in drafter.parameters()]


def executed(config, execution: Execution) -> Drafter:
    drafter = Drafter(config, execution)
    drafter.load_state_dict(strong_drafter(config).state_dict())
    return drafter


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.mark.parametrize("window", [None, 6])
def test_recomputed_layers_give_the_same_bits(target, window):
    config = tiny_config(window=window)
    batch = random_batch(lengths=(40, 31), num_anchors=(7, 5))
    kept, recomputed = executed(config, Execution()), executed(config, Execution(recompute=True))
    hidden, expected = gradients(kept, target, batch)
    again, found = gradients(recomputed, target, batch)
    assert torch.equal(again, hidden)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class Products(TorchDispatchMode):
    """Counts matrix products: of a layer that runs again there are more."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def test_recomputed_layers_do_run_again(target):
    batch = random_batch(lengths=(40,), num_anchors=(7,))
    counts = []
    for execution in (Execution(), Execution(recompute=True)):
        drafter = executed(tiny_config(), execution)
        inputs = drafter_inputs(target, batch, drafter.config)
        hidden = drafter(*inputs, batch.blocks)
        with Products() as products:
            hidden.square().sum().backward()
        counts.append(products.count)
    assert counts[1] >= counts[0] + 2 * 7 - 2


def test_compiled_layers_serve_every_size_with_a_bounded_number_of_graphs(target, monkeypatch):
    graphs = []

    def counting(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counting))
    torch._dynamo.reset()
    config = tiny_config(num_layers=3)
    compiled, plain = executed(config, Execution(compiled=True)), executed(config, Execution())
    seen = []
    for number, lengths in enumerate([(40, 31), (22,), (60, 50, 40), (33, 12), (80, 9, 9, 9), (17, 18)]):
        batch = random_batch(lengths=lengths, num_anchors=tuple(length // 4 for length in lengths), seed=number)
        hidden, expected = gradients(plain, target, batch)
        found, of_compiled = gradients(compiled, target, batch)
        torch.testing.assert_close(found, hidden)
        for a, b in zip(of_compiled, expected, strict=True):
            torch.testing.assert_close(a, b)
        seen.append(len(graphs))
    assert seen[0] > 0
    assert seen[-1] == seen[1] <= 4
