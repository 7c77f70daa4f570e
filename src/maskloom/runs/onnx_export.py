"""A model folder's graph in ONNX, for runtimes other than torch."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from maskloom.checkpoints.huggingface import load_model
from maskloom.errors import ConfigError
from maskloom.files import replacing
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.heads import HEADS

ONNX_FILE = "model.onnx"
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def write_onnx(folder: str | Path) -> list[str]:
    """Write `model.onnx` into a model folder, in fp32 with any batch and length, and return the names of its outputs.

    Inputs are input_ids, attention_mask and token_type_ids, int64 (batch, length). Outputs are last_hidden_state,
    pooler_output if the folder has a pooler, and one per head: `logits` for the head of a task, `mlm` and `nsp` after
    pre-training. The logits of a tagger with a conditional random field are its emissions; its transitions stay in
    model.safetensors. Raises ConfigError for a BiLSTM head, which has no such graph, and where the extra "onnx" is not
    installed.
    """
    folder = Path(folder)
    if any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise ConfigError("--onnx needs onnx and onnxscript: pip install 'maskloom[onnx]'")
    model, report = load_model(folder)
    if "bilstm_tagger" in model.heads:
        raise ConfigError(f"{folder}: a BiLSTM head cannot be exported to ONNX")
    graph = _Graph(model.eval(), has_pooler=not any("pooler" in name for name in report.new_parameters))
    # two rows of unlike lengths, so that no size of the example is taken for a constant
    ids, mask = torch.zeros(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    longest = model.config.max_position_embeddings
    sizes = {0: torch.export.Dim("batch", min=1, max=2**20), 1: torch.export.Dim("length", min=1, max=longest)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, of torch
        program = torch.onnx.export(
            graph,
            (ids, mask, torch.zeros_like(ids)),
            dynamo=True,
            dynamic_shapes=(dict(sizes), dict(sizes), dict(sizes)),
            input_names=list(_INPUTS),
            output_names=graph.names,
            verbose=False,
        )
    assert program is not None
    with replacing(folder / ONNX_FILE) as file:
        file.write(program.model_proto.SerializeToString())
    return graph.names


class _Graph(nn.Module):
    """A model as a function of padded ids, with a fixed order of outputs."""

    def __init__(self, model: EncoderWithHeads, *, has_pooler: bool) -> None:
        super().__init__()
        self.model, self.has_pooler = model, has_pooler
        pretraining = {"mlm", "nsp"}
        self.heads = [name for name in model.heads if HEADS[name].reads in ("pooled", "tokens")]
        self.names = ["last_hidden_state", *(["pooler_output"] if has_pooler else [])]
        self.names += [name if name in pretraining else "logits" for name in self.heads]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Return the encoder's outputs and each head's."""
        output = self.model.encoder(input_ids, token_type_ids, attention_mask)
        read = {"pooled": output.pooled, "tokens": output.last_hidden_state}
        outputs = (self.model.heads[name](read[HEADS[name].reads]) for name in self.heads)
        return output.last_hidden_state, *([output.pooled] if self.has_pooler else []), *outputs
