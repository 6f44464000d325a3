"""Whether memory and devices are large enough, and the ranks can reach each other.

Needs are lower bounds: what is refused could not have ended well. What activations take depends on lengths and
kernels, and is not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator

from dflash_pipeline.stages.preflight.fault import Fault
from dflash_pipeline.stages.preflight.machine import LOOPBACK, SHARED_MEMORY, gib
from dflash_pipeline.stages.preflight.subject import Subject

_SHARED = {"cpu": 16 * 2**20, "cuda": 64 * 2**20}
"""Semaphores of worker processes; with NCCL buffers between ranks, for each of them."""


def check_memory(subject: Subject) -> Iterator[Fault]:
    """Main memory holds the target once a process: on the CPU to work with, else on its way to the device."""
    free = subject.machine.free_memory
    for setting, processes, each, holds in _residents(subject, on_device=False):
        if processes * each > free:
            yield Fault(
                where=setting,
                what=f"{processes} processes need at least {gib(processes * each)} of memory ({holds}), "
                f"and {gib(free)} are available",
                fix="use fewer, a smaller target or drafter, or a machine with more memory",
            )


def check_devices(subject: Subject) -> Iterator[Fault]:
    """A CUDA device for each rank, each with room for target, drafter and what training adds to it."""
    if subject.recipe.training.device != "cuda":
        return
    devices = subject.machine.device_memory
    if not devices:
        fix = "set training.device: cpu, or use a GPU node"
        yield Fault(where="training.device", what="no CUDA device is visible", fix=fix)
        return
    if subject.num_ranks > len(devices):
        yield Fault(
            where="training.num_ranks",
            what=f"{subject.num_ranks} ranks for {len(devices)} CUDA devices",
            fix=f"use at most {len(devices)} ranks: each has a device of its own",
        )
    (_, ranks, rank_needs, _), (_, processes, process_needs, _) = _residents(subject, on_device=True)
    for setting, needed, room in (
        ("training.num_ranks", rank_needs, min(devices[:ranks])),
        # Evaluation puts all of its processes on the first one.
        ("evaluation.num_processes", processes * process_needs, devices[0]),
    ):
        if needed > room:
            yield Fault(
                where=setting,
                what=f"target and drafter need at least {gib(needed)} of a device that has {gib(room)}",
                fix="use devices with more memory, a smaller target or drafter, training.target_sharding fsdp, or "
                "fewer processes of evaluation",
            )


def _residents(subject: Subject, *, on_device: bool) -> tuple[tuple[str, int, int, str], ...]:
    """For training and for evaluation: setting, number of processes, bytes that each needs at least, and of what."""
    target, drafter = subject.target_bytes, subject.drafter_bytes
    evaluation = subject.recipe.evaluation
    processes = min(evaluation.num_processes, evaluation.num_prompts)
    if subject.recipe.training.device == "cuda" and not on_device:
        return (
            ("training.num_ranks", subject.num_ranks, _target_in_training(subject)[0], "the target in bfloat16"),
            ("evaluation.num_processes", processes, target, "the target in float32"),
        )
    training = _training_needs(subject)
    # In main memory the target is whole before it is in parts.
    needs = training if on_device else max(target, training)
    return (
        ("training.num_ranks", subject.num_ranks, needs, "target, drafter, gradients and two moments in float32"),
        ("evaluation.num_processes", processes, target + drafter, "target and drafter in float32"),
    )


def _training_needs(subject: Subject) -> int:
    """Of one rank, which may hold parts of the target's layers and, once it is made, of the drafter and what is its."""
    training, ranks = subject.recipe.training, subject.num_ranks
    (target, layers), drafter = _target_in_training(subject), subject.drafter_bytes
    if training.target_sharding == "fsdp":
        target += layers // ranks - layers
    return target + (4 * drafter if training.drafter_sharding == "ddp" else max(drafter, 4 * drafter // ranks))


def _target_in_training(subject: Subject) -> tuple[int, int]:
    """Bytes of the target and of its layers, which ranks on CUDA load in bfloat16."""
    share = 2 if subject.recipe.training.device == "cuda" else 1
    return subject.target_bytes // share, subject.target_layer_bytes // share


def check_shared_memory(subject: Subject) -> Iterator[Fault]:
    """/dev/shm has room for what worker processes and the ranks' communication keep there."""
    device = subject.recipe.training.device
    needed = _SHARED[device] * (subject.num_ranks if device == "cuda" else 1)
    free = subject.machine.free_shared_memory
    if free is None or free < needed:
        have = "it is not there" if free is None else f"{gib(free)} are free"
        yield Fault(
            where=str(SHARED_MEMORY),
            what=f"{have}, and {gib(needed)} are needed by worker processes and by the ranks among themselves",
            fix="make it larger; of a container, for example with --shm-size=1g",
        )


def check_port(subject: Subject) -> Iterator[Fault]:
    """The ranks find each other at a port of this machine's own address."""
    if (error := subject.machine.port_error) is not None:
        yield Fault(
            where=LOOPBACK,
            what=f"no port can be had, at which the ranks would meet: {error}",
            fix="end programs that hold ports, or allow this one to open them",
        )
