"""Detection, on the CPU, of operations that would wait for a GPU."""

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_READS = (
    "tolist",
    "item",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "cpu",
    "numpy",
    "nonzero",
    "equal",
    "new_tensor",
)


class Reads(TorchFunctionMode):
    """Records reads of tensors by the host, and operations whose result size only the device knows.

    An index that is a list or an array is one too, as is `new_tensor`: the host waits for the GPU to copy the numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, more = getattr(function, "__name__", ""), kwargs or {}
        if name in _READS or (name in ("__getitem__", "__setitem__") and _waits(args[1])):
            self.found.append(name)
        if name == "repeat_interleave" and "output_size" not in more:
            self.found.append(name)
        return function(*args, **more)


def _waits(index) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    masks = (isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in parts)
    return any(masks) or any(isinstance(part, np.ndarray | list) for part in parts)


class WaitsInBackward(TorchDispatchMode):
    """Records operations whose result size only the device knows, also those of a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if (name := function.overloadpacket.__name__) in ("nonzero", "masked_select", "masked_scatter_backward"):
            self.found.append(name)
        return function(*args, **kwargs or {})
