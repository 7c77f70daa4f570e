"""Which tensors of a model folder a load left out."""

from maskloom.checkpoints.huggingface import _Contents, read_model_config
from maskloom.checkpoints.tensor_files import open_weights


def unused_tensors(folder, report):
    """Return the names of the tensors that a load did not copy, without copies, buffers and optimiser state."""
    contents = _Contents(open_weights(folder), read_model_config(folder), folder)
    copied = {name for _, name in report.copied}
    return tuple(sorted(tensor.name for tensor in contents.tensors.values() if tensor.name not in copied))
