"""Losses whose gradient is made before it is asked for: against autograd over whole logits."""

import pytest
import torch
from torch.nn import functional

from dflash_pipeline.model import slot_losses as slot_losses_module
from dflash_pipeline.model.slot_losses import slot_losses
from tests.tiny_models import VOCAB, tiny_target


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def inputs(number: int = 13):
    generator = torch.Generator().manual_seed(number)
    hidden = torch.randn(number, 64, generator=generator)
    teachers = torch.randn(number, 64, generator=generator)
    labels = torch.randint(0, VOCAB, (number,), generator=generator)
    weights = torch.rand(number, generator=generator)
    return hidden, labels, teachers, weights


def plain(target, hidden, labels, teachers, kl):
    logits = target.logits(hidden)
    entropy = functional.cross_entropy(logits, labels, reduction="none")
    chances = target.logits(teachers).softmax(-1)
    divergence = (chances * (chances.log() - logits.log_softmax(-1))).sum(-1)
    return (1 - kl) * entropy + kl * divergence, entropy, logits.argmax(-1) == labels


@pytest.mark.parametrize("kl", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("slots_at_once", [1, 5, 100])
def test_losses_and_gradients_are_those_of_autograd(target, monkeypatch, kl, slots_at_once):
    monkeypatch.setitem(slot_losses_module.LOGITS_PER_CHUNK, "cpu", slots_at_once * VOCAB)
    hidden, labels, teachers, weights = inputs()
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    labels[3] = int(target.logits(hidden[3]).argmax())
    found = slot_losses(ours, labels, teachers if kl else None, target, kl)
    losses, entropy, correct = plain(target, theirs, labels, teachers, kl)
    (found.losses * weights).sum().backward()
    (losses * weights).sum().backward()
    torch.testing.assert_close(found.losses, losses)
    torch.testing.assert_close(found.cross_entropy, entropy)
    assert torch.equal(found.correct, correct)
    assert found.correct.any()
    assert not found.correct.all()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert not found.cross_entropy.requires_grad


def test_no_slot_is_no_loss_and_no_gradient(target):
    hidden = torch.zeros(0, 64, requires_grad=True)
    found = slot_losses(hidden, torch.zeros(0, dtype=torch.long), None, target, 0.0)
    found.losses.sum().backward()
    assert (found.losses.shape, hidden.grad.shape) == ((0,), (0, 64))


def test_logits_of_all_slots_never_exist(target, monkeypatch):
    monkeypatch.setitem(slot_losses_module.LOGITS_PER_CHUNK, "cpu", 4 * VOCAB)
    shapes = []
    handle = target._model.lm_head.register_forward_hook(lambda _m, _i, output: shapes.append(tuple(output.shape)))
    hidden, labels, _, _ = inputs(13)
    slot_losses(hidden.requires_grad_(), labels, None, target, 0.0).losses.sum().backward()
    handle.remove()
    assert shapes == [(4, VOCAB)] * 3 + [(1, VOCAB)]


def test_extreme_logits_stay_finite(target):
    hidden, labels, _, _ = inputs(4)
    hidden = (hidden * 1e4).requires_grad_()
    found = slot_losses(hidden, labels, None, target, 0.0)
    found.losses.sum().backward()
    assert found.losses.isfinite().all()
    assert hidden.grad.isfinite().all()
