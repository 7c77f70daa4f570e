"""Training by several processes that torchrun started: sums over ranks, and models whose gradients are such sums."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.objective import Objective
from maskloom.training.interruption import undisturbed
from maskloom.training.rank_watch import RankWatch, Work
from maskloom.training.ranks import RankLostError, mean_losses

# Who is late is found out by the watch, which knows who evaluates or saves meanwhile.
_NEVER = timedelta(days=2)
_TO_JOIN = timedelta(minutes=5)


class LossesOf(nn.Module):
    """The model as a module whose call gives the losses of a batch: torch's wrappers act on calls of modules.

    A rank that adds its losses to those of all others has the mean over the whole batch.
    """

    def __init__(self, model: EncoderWithHeads) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, objective: Objective, batch: Any, counts: dict[str, float]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return the sum of the losses, None where there are no targets, and each of them by name."""
        means = mean_losses(self.model, objective, batch, counts)
        total = torch.stack(list(means.values())).sum() if means else None
        return total, {name: mean.detach() for name, mean in means.items()}


class DistributedRanks:
    """This process among those of torchrun; see `Ranks`. `parallel` is "ddp" (each has the model) or "fsdp" (a share).

    Numbers are summed by gloo in fp64 and gradients by nccl on CUDA, by gloo elsewhere. Gradients are summed, not
    averaged: losses are divided by the counts of the whole batch already.
    """

    def __init__(
        self,
        parallel: str,
        watch: RankWatch,
        control: dist.ProcessGroup,
        device: torch.device,
        saving: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.world_size = watch.rank, watch.world_size
        self.is_first = self.rank == 0
        self.control, self._saving = control, saving or control
        self.device = device
        self.is_sharded = parallel == "fsdp"
        self._watch = watch
        self._model: EncoderWithHeads | None = None
        self._losses: LossesOf | None = None
        self._wrapped: nn.Module | None = None
        self._whole: EncoderWithHeads | None = None

    def sum_(self, values: dict[str, float]) -> dict[str, float]:
        """Return the sums over all ranks of values by name; the names are the same everywhere."""
        self._watch.call()
        total = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return dict(zip(values, total.tolist(), strict=True))

    def for_saving(self) -> DistributedRanks:
        """Return the same ranks for a thread that saves, whose sums do not meet those of training."""
        ranks = copy.copy(self)
        ranks.control = self._saving
        return ranks

    def any_(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return self.sum_({"flag": float(flag)})["flag"] > 0

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.any_(False)

    def at(self, work: Work) -> AbstractContextManager[None]:
        """Say what this rank is at within, as that decides for how long the others wait for it."""
        return self._watch.at(work)

    def spread(self, model: EncoderWithHeads) -> None:
        """Bring a model to this rank's device and, with "fsdp", keep a share of it; before its optimiser is made."""
        model.to(self.device)
        self._model, self._losses, self._wrapped = model, LossesOf(model), None
        blocks = next(a for a in ARCHITECTURES.values() if isinstance(model.config, a.config_type)).blocks
        for block in blocks(model.encoder):
            block.register_forward_pre_hook(_Beat(self._watch))
        self._whole = copy.deepcopy(model) if self.is_sharded and self.is_first else None
        if self.is_sharded:
            _shard([*blocks(model.encoder), self._losses], self.device, self.world_size)
            self._wrapped = self._losses

    def whole(self, model: EncoderWithHeads) -> EncoderWithHeads:
        """Return the model with all of its weights, for the first rank to evaluate and export; all ranks must ask."""
        if not self.is_sharded:
            return model
        self._watch.call()
        shared = dict(model.named_parameters())
        own = {} if self._whole is None else dict(self._whole.named_parameters())
        for name, parameter in shared.items():
            full = full_tensor(parameter.detach())
            if name in own:
                own[name].data.copy_(full)
            self._watch.beat()
        return model if self._whole is None else self._whole

    @torch.no_grad()
    def loss_sums(self, model: EncoderWithHeads, objective: Objective, batch: Any) -> dict[str, Tensor]:
        """Return the objective's sums for a batch without gradients; with shared weights all ranks must ask."""
        if not self.is_sharded or self._losses is None:
            return objective.loss_sums(model, batch)
        _total, sums = self._losses(objective, batch, dict.fromkeys(objective.target_counts(batch), 1.0))
        self._reshard()
        return sums

    def add_gradients(
        self, model: EncoderWithHeads, objective: Objective, batch: Any, counts: dict[str, float], *, is_last: bool
    ) -> dict[str, float]:
        """Add the gradients of a micro-batch to the parameters; after the last one they are sums over all ranks."""
        if self._wrapped is None or self._model is not model:
            self._wrapped = self._replicated(model, objective, batch, counts)
        wrapped = self._wrapped
        waits = isinstance(wrapped, nn.parallel.DistributedDataParallel) and not is_last
        self._watch.call()
        with wrapped.no_sync() if waits else nullcontext():  # pyright: ignore[reportCallIssue]
            total, means = wrapped(objective, batch, counts)
            self._watch.call()
            if total is not None:
                total.backward()
            elif self.is_sharded:
                self._reshard()
        return {name: float(mean) for name, mean in means.items()}

    def _reshard(self) -> None:
        """Give up what a forward pass without a backward pass has gathered of the weights."""
        if isinstance(self._losses, FSDPModule):
            self._losses.reshard()

    def _replicated(
        self, model: EncoderWithHeads, objective: Objective, batch: Any, counts: dict[str, float]
    ) -> nn.Module:
        """Return the model under DistributedDataParallel; parameters of which no loss depends are found beforehand."""
        if self.is_sharded or self._losses is None or self._model is not model:
            raise ValueError("the model was not spread over the ranks before training")
        devices = [self.device.index] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            total, _means = self._losses(objective, batch, counts)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found = [] if total is None else torch.autograd.grad(total, parameters, allow_unused=True)
        has_unused = self.any_(any(gradient is None for gradient in found))
        wrapped = nn.parallel.DistributedDataParallel(
            self._losses, find_unused_parameters=has_unused, gradient_as_bucket_view=True
        )
        wrapped.register_comm_hook(None, _summed)
        return wrapped


class _Beat:
    """Says with every block of a forward pass that this rank is at work."""

    def __init__(self, watch: RankWatch) -> None:
        self._watch = watch

    def __call__(self, *_: object) -> None:
        self._watch.beat()

    def __deepcopy__(self, _memory: object) -> _Beat:
        return self


@contextmanager
def distributed_ranks(parallel: str, *, limit: float) -> Iterator[DistributedRanks]:
    """Join the processes that torchrun started, within; `limit` is the seconds after which a rank counts as hung.

    Raises RankLostError that names the rank for whose sake a call failed.
    """
    device = _own_device()
    (store, rank, world_size), (watched, _, _) = _store_of_this_start(), _store_of_this_start()
    watch = RankWatch(watched, rank, world_size, limit)
    watch.start()
    try:
        _await_all(store, world_size)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        own = device if device.type == "cuda" else None
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_NEVER, device_id=own)
        control, saving = (dist.new_group(backend="gloo", timeout=_NEVER) for _ in range(2))
        assert isinstance(control, dist.ProcessGroup)
        assert isinstance(saving, dist.ProcessGroup)
        yield DistributedRanks(parallel, watch, control, device, saving)
        watch.call()  # whoever has not come here yet lets the others wait
        dist.barrier(group=control)
        watch.stop()
        dist.barrier(group=control)  # the store may be this process's: it goes when nobody looks at it any more
        dist.destroy_process_group()
    except RankLostError:
        watch.leave(None)
        raise
    except Exception as error:
        with undisturbed():  # torchrun tells the others to stop when one is lost
            _blame(error, watch)
        raise
    except BaseException as stop:
        if isinstance(stop.__context__, RuntimeError):  # a call failed, and then the signal came
            with undisturbed():
                _blame(stop.__context__, watch)
        watch.leave(None)  # asked to stop, in agreement
        raise
    finally:
        watch.stop()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor of which each rank has a share; all ranks must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _blame(error: Exception, watch: RankWatch) -> None:
    """Raise RankLostError when another rank is the cause of a failed call, else tell the others that this one fails."""
    reason = watch.explanation() if isinstance(error, RuntimeError) else None
    if reason is not None:
        watch.leave(reason)
        raise RankLostError(f"rank {watch.rank} ends: {reason}") from error
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    watch.leave(f"rank {watch.rank} failed: {type(error).__name__}: {line}")


def _shard(modules: list[nn.Module], device: torch.device, world_size: int) -> None:
    """Share the parameters of each module, those of modules before it left out, between all ranks."""
    mesh = init_device_mesh(device.type, (world_size,))
    for module in modules:
        sharded = fully_shard(module, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def _summed(_state, bucket):  # without annotations, which torch would read as types and finds as text
    """Sum a bucket of gradients over ranks, where torch's own rule would average."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def _own_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _store_of_this_start() -> tuple[Any, int, int]:
    """Return a store, the rank and the number of ranks.

    torchrun keeps its store when it starts the ranks again. So that nobody calls at the addresses of ranks that are
    gone, each start sees a part of its own.
    """
    store, rank, world_size = next(rendezvous("env://", timeout=_TO_JOIN))
    start = f"maskloom/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{world_size}"
    return dist.PrefixStore(start, store), rank, world_size  # pyright: ignore[reportPrivateImportUsage]


def _await_all(store: Any, world_size: int) -> None:
    """Return when every rank has come; raises RankLostError that names those that have not."""
    keys: Callable[[int], str] = lambda number: f"sign/{number}"  # noqa: E731
    try:
        store.wait([keys(number) for number in range(world_size)], _TO_JOIN)
    except RuntimeError:
        missing = [str(number) for number in range(world_size) if not store.check([keys(number)])]
        minutes = _TO_JOIN.total_seconds() / 60
        raise RankLostError(f"rank {', '.join(missing)} has not come within {minutes:.0f} minutes") from None
