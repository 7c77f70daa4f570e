"""Detection, on the CPU, of operations that would wait for a GPU."""

import torch
from torch.overrides import TorchFunctionMode

_READS = ("tolist", "item", "__float__", "__int__", "__bool__", "__index__", "cpu", "numpy", "nonzero", "equal")


class Reads(TorchFunctionMode):
    """Records reads of tensors by the host, and operations whose result size only the device knows."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, more = getattr(function, "__name__", ""), kwargs or {}
        if name in _READS or (name in ("__getitem__", "__setitem__") and _has_mask(args[1])):
            self.found.append(name)
        if name == "repeat_interleave" and "output_size" not in more:
            self.found.append(name)
        return function(*args, **more)


def _has_mask(index) -> bool:
    parts = index if isinstance(index, list | tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in parts)
