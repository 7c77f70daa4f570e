"""Training by several processes that torchrun started: sums over ranks, and models with gradients summed over them."""

from __future__ import annotations

import copy
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from maskloom.errors import ConfigError
from maskloom.layers.dropout import drawing
from maskloom.models.assembled import EncoderWithHeads, blocks_of
from maskloom.objectives.carrying import Carry
from maskloom.objectives.objective import Objective
from maskloom.system.fault_points import fault_point
from maskloom.training.faults.interruption import undisturbed
from maskloom.training.ranks.rank_watch import RankWatch, Work, store_is_gone, torchrun_keeps_store
from maskloom.training.ranks.ranks import RankLostError, Ranks, losses_of

# The watch detects late ranks, since it knows which ones are evaluating or saving.
_NEVER = timedelta(days=2)
# Multiple of the limit for all ranks to join, as they load torch from one file system; and the interval of checks.
_TIMES_TO_JOIN, _SECONDS_BETWEEN_LOOKS = 10, 0.2
# torchrun gives a rank that it asks to stop 30 seconds.
_SECONDS_TO_EXPLAIN_A_STOP = 8.0


class LossesOf(nn.Module):
    """The model as a module whose call returns the losses of a batch, since torch's wrappers act on module calls."""

    def __init__(self, model: EncoderWithHeads) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, objective: Objective, batch: Any, counts: dict[str, float]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return `losses_of` a batch."""
        return losses_of(self.model, objective, batch, counts)


class DistributedRanks(Ranks):
    """This process among those of torchrun.

    With `parallel` "ddp" each rank holds the model, with "fsdp" a shard of it; with "hsdp" the ranks of each machine
    share one (Zhao et al. 2023, PyTorch FSDP, 3.2.2). Numbers are summed by gloo in fp64, gradients by nccl on CUDA and
    by gloo elsewhere. Gradients are not averaged, since losses are already divided by the counts of the whole batch.
    """

    def __init__(
        self,
        parallel: str,
        watch: RankWatch,
        control: dist.ProcessGroup,
        device: torch.device,
        saving: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(device, rank=watch.rank, world_size=watch.world_size)
        self.control, self._saving = control, saving or control
        self.is_sharded = parallel != "ddp"
        self._shards_by_node = parallel == "hsdp"
        self._watch = watch
        self.has_begun = False
        self._losses: LossesOf | None = None
        self._wrapped: nn.Module | None = None
        self._whole: EncoderWithHeads | None = None

    def sum_(self, values: dict[str, float]) -> dict[str, float]:
        """Return the sums over all ranks of values by name; the names must be the same on all ranks."""
        self._watch.call()
        total = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return dict(zip(values, total.tolist(), strict=True))

    def rows_of_all(self, carry: Carry) -> Carry:
        """Return the carry of the rows of all ranks, in order, on the CPU, given each rank's own."""
        self._watch.call()
        whole = []
        for tensor in super().rows_of_all(carry):
            parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
            dist.all_gather(parts, tensor.contiguous(), group=self.control)
            whole.append(torch.cat(parts))
        return tuple(whole)

    def for_saving(self) -> DistributedRanks:
        """Return the same ranks for a thread that saves, whose sums do not mix with those of training."""
        ranks = copy.copy(self)
        ranks.control = self._saving
        return ranks

    def at(self, work: Work) -> AbstractContextManager[None]:
        """Declare what this rank does within, which decides how long the others wait for it."""
        return self._watch.at(work)

    def spread(self, model: EncoderWithHeads) -> None:
        """Move a model to this rank's device and, except with "ddp", shard it; before its optimiser is created."""
        model.to(self.device)
        self._losses, self._wrapped = LossesOf(model), None
        for block in blocks_of(model):  # forward passes report that this rank is working, also of copies
            block.register_forward_pre_hook(lambda *_: self._watch.beat())
        self._whole = copy.deepcopy(model) if self.is_sharded and self.is_first else None
        if self.is_sharded:
            fault_point("ranks.share")
            mesh = self._mesh()
            for module in (*blocks_of(model), self._losses):  # each shards what the ones before it left out
                sharded = fully_shard(module, mesh=mesh)
                sharded.set_gradient_divide_factor(1.0)
                sharded.set_force_sum_reduction_for_comms(True)
            self._wrapped = self._losses

    def _mesh(self) -> DeviceMesh:
        """Return the mesh of ranks that share weights: all of them, or those of each machine."""
        local = _number("LOCAL_WORLD_SIZE") if self._shards_by_node else self.world_size
        if not local or self.world_size % local:
            raise ConfigError(
                f'training.parallel = "hsdp": {self.world_size} processes are not a multiple of the {local} on '
                "this machine; every machine must run the same number"
            )
        sizes = {"machines": self.world_size // local, "processes": local}
        if sizes["machines"] == 1:
            del sizes["machines"]
        return init_device_mesh(self.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    def whole(self, model: EncoderWithHeads) -> EncoderWithHeads:
        """Return the model with all its weights, for the first rank to evaluate and export; all ranks must call it."""
        if not self.is_sharded:
            return model
        self._watch.call()
        own = {} if self._whole is None else dict(self._whole.named_parameters())
        for name, parameter in model.named_parameters():
            values = parameter.detach()
            values = values.full_tensor() if isinstance(values, DTensor) else values
            if name in own:
                own[name].data.copy_(values)
            self._watch.beat()
        return model if self._whole is None else self._whole

    def add_gradients(
        self, model: EncoderWithHeads, objective: Objective, batch: Any, counts: dict[str, float], *, is_last: bool
    ) -> dict[str, Tensor]:
        """Add the gradients of a micro-batch to the parameters; after the last one they are sums over all ranks."""
        if self._wrapped is None or self._losses is None or self._losses.model is not model:
            self._wrapped = self._replicated(model, objective, batch, counts)
        wrapped, self.has_begun = self._wrapped, True
        waits = isinstance(wrapped, nn.parallel.DistributedDataParallel) and not is_last
        self._watch.call()
        if isinstance(wrapped, FSDPModule):
            wrapped.set_requires_gradient_sync(is_last)
        with wrapped.no_sync() if waits else nullcontext():  # pyright: ignore[reportCallIssue]
            total, means = wrapped(objective, batch, counts)
            self._watch.call()
            if total is not None:
                total.backward()
            elif isinstance(self._losses, FSDPModule):
                self._losses.reshard()  # frees the weights gathered by a forward pass without a backward pass
        return means

    def _replicated(
        self, model: EncoderWithHeads, objective: Objective, batch: Any, counts: dict[str, float]
    ) -> nn.Module:
        """Return the model in DistributedDataParallel, after testing whether losses leave parameters unused."""
        if self.is_sharded or self._losses is None or self._losses.model is not model:
            raise ValueError("the model was not spread over the ranks before training")
        devices = [self.device.index] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), drawing(None):
            total, _means = self._losses(objective, batch, counts)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found = [] if total is None else torch.autograd.grad(total, parameters, allow_unused=True)
        has_unused = self.any_(any(gradient is None for gradient in found))
        wrapped = nn.parallel.DistributedDataParallel(
            self._losses, find_unused_parameters=has_unused, gradient_as_bucket_view=True
        )
        wrapped.register_comm_hook(None, _summed)
        return wrapped


@contextmanager
def distributed_ranks(parallel: str, *, limit: float, device: torch.device) -> Iterator[DistributedRanks]:
    """Within, join the processes of torchrun; raises RankLostError if one fails, or hangs for `limit` seconds."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    to_join = _TIMES_TO_JOIN * limit
    store, watch = _started_together(to_join, limit)
    rank, world_size, ranks = watch.rank, watch.world_size, None
    try:
        fault_point("ranks.groups")
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        own = device if device.type == "cuda" else None
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_NEVER, device_id=own)
        groups: list[Any] = [dist.new_group(backend="gloo", timeout=_NEVER) for _ in range(2)]
        ranks = DistributedRanks(parallel, watch, groups[0], device, saving=groups[1])
        yield ranks
        watch.call()  # a rank that has not come here yet keeps the others waiting
        dist.barrier(group=ranks.control)
        watch.stop()
        dist.barrier(group=ranks.control)  # this process may host the store, which all must have stopped reading
        dist.destroy_process_group()
        ranks._wrapped = ranks._losses = None  # its threads hold Python objects, which they cannot release at exit
    except RankLostError:
        watch.leave(None)
        raise
    except Exception as error:
        with undisturbed():  # torchrun tells the others to stop when one is lost
            _blame(error, watch)
        raise
    except BaseException:
        watch.leave(None)
        if ranks is None or not ranks.has_begun:  # later, all agree to stop; torchrun does not report a lost rank
            with undisturbed():
                reason = watch.loss(_SECONDS_TO_EXPLAIN_A_STOP)
            if reason is not None:
                raise RankLostError(f"rank {watch.rank} ends: {reason}") from None
        raise
    finally:
        watch.stop()


def _blame(error: Exception, watch: RankWatch) -> None:
    """Raise RankLostError if another rank caused a failed call, else tell the others that this one failed."""
    reason = watch.explanation() if isinstance(error, RuntimeError) else None
    if reason is not None:
        watch.leave(reason)
        raise RankLostError(f"rank {watch.rank} ends: {reason}") from error
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    watch.leave(f"rank {watch.rank} failed: {type(error).__name__}: {line}")


def _summed(_state, bucket):  # no annotations: torch expects types, and these would be strings
    """Sum a bucket of gradients over ranks, where torch's default would average."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def _started_together(seconds: float, limit: float) -> tuple[Any, RankWatch]:
    """Join the other ranks within `seconds`, and return their store and the watch; raises RankLostError otherwise."""
    rank, world_size, port = (_number(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    host, is_master = _variable("MASTER_ADDR"), rank == 0 and not torchrun_keeps_store()
    settings: dict[str, Any] = {"is_master": is_master, "timeout": timedelta(seconds=seconds), "multi_tenant": True}
    settings["wait_for_workers"] = False  # it would not say which ranks are missing
    try:
        stores = [dist.TCPStore(host, port, world_size, **settings) for _ in range(2)]  # pyright: ignore[reportPrivateImportUsage]
    except RuntimeError as error:
        line = str(error).splitlines()[0]
        keeper = "torchrun" if torchrun_keeps_store() else "rank 0"
        raise RankLostError(
            f"cannot open the store of {keeper} at {host}:{port} (MASTER_ADDR, MASTER_PORT): {line}"
        ) from None
    fault_point("ranks.come")
    try:
        start = _name_of_this_start(stores[0], rank, world_size, seconds)
        store, watched = (dist.PrefixStore(start, each) for each in stores)  # pyright: ignore[reportPrivateImportUsage]
        watch = RankWatch(watched, rank, world_size, limit)
        watch.start()
    except dist.DistError as error:
        raise RankLostError(f"rank {rank} ends: {store_is_gone(error)}") from None
    return store, watch


def _name_of_this_start(store: Any, rank: int, world_size: int, seconds: float) -> str:
    """Return a prefix for the keys of this start, the same on all ranks; raises RankLostError naming missing ranks.

    torchrun's store outlives restarts, which every node counts for itself. So rank 0 chooses the name, and confirms it
    with the marks of all processes that have come: an earlier start's name is never confirmed to a new process.
    """
    mark, until = secrets.token_hex(8), time.monotonic() + seconds
    if rank == 0:
        store.set("maskloom", mark)
    while True:  # a single blocking call would delay signals until its end
        name = store.get("maskloom").decode() if store.check(["maskloom"]) else "none"
        keys, confirmed = [f"{name}/{number}" for number in range(world_size)], f"{name}/all"
        store.set(keys[rank], mark)
        if rank == 0 and store.check(keys):
            store.set(confirmed, " ".join(store.get(key).decode() for key in keys))
        if store.check([confirmed]) and mark in store.get(confirmed).decode().split():
            return name
        if time.monotonic() > until:
            missing = ", ".join(str(number) for number, key in enumerate(keys) if not store.check([key])) or "0"
            raise RankLostError(f"rank {missing} has not joined within {seconds:.0f} s (10 * training.rank_timeout)")
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _variable(name: str) -> str:
    if not (text := os.environ.get(name)):
        raise ConfigError(f"WORLD_SIZE is set, but {name} is not set; torchrun sets it")
    return text


def _number(name: str) -> int:
    text = _variable(name)
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise ConfigError(f"{name}={text!r} is not a number from 0 to 65535; torchrun sets it")
    return int(text)
