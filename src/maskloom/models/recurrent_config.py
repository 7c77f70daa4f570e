"""The configurations of recurrent networks, in keys of our own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from maskloom.models.model_config import Deviation, Fraction, ModelConfig, Width

GateBias = Annotated[float, Field(ge=-100.0, le=100.0)]
_SIZES = (("tiny", 1, 128), ("mini", 2, 256), ("small", 2, 512), ("medium", 2, 650), ("large", 2, 1500))
RECURRENT_SIZES = {name: {"num_hidden_layers": layers, "hidden_size": hidden} for name, layers, hidden in _SIZES}
"""Medium and large are the sizes of Zaremba et al. 2014."""


class RecurrentConfig(ModelConfig):
    """Sizes and constants of a recurrent network, frozen.

    It is bidirectional, with half of the hidden size for each direction, or with `causal` reads from left to right. By
    `pooling`, a sequence's vector is the last state ("last"; of each direction, if there are two), the maximum, mean or
    sum of its tokens, or their context under attention: with one of four energies, and the last h, the last c or a
    learned vector as query. A decoder attends with the energy `decoder_attention`; with "none" it sees only the
    encoder's last state. Without layers it is a feed-forward network: its head reads word vectors, pooled or singly.
    """

    hidden_size: Width = 256
    num_hidden_layers: Annotated[int, Field(ge=0, le=1_000)] = 1
    num_attention_heads: Width = 1
    attention_probs_dropout_prob: Fraction = 0.0
    initializer_range: Deviation = 0.1
    causal: bool = False
    pooling: Literal["last", "max", "mean", "sum", "attention"] = "last"
    attention_energy: Literal["dot", "scaled_dot", "mlp", "bilinear"] = "mlp"
    attention_query: Literal["h", "c", "learned"] = "learned"
    decoder_attention: Literal["none", "dot", "scaled_dot", "mlp", "bilinear"] = "dot"

    @model_validator(mode="after")
    def _is_recurrent(self) -> Self:
        if self.num_hidden_layers == 0 and (self.causal or self.attention_query == "c"):
            raise ValueError("num_hidden_layers 0: causal and attention_query 'c' need the state of a layer")
        if self.hidden_size % 2 and not self.causal:
            raise ValueError(f"hidden_size {self.hidden_size} must be even: two directions share it")
        if self.attention_query == "c" and self.cell != "lstm":
            raise ValueError("attention_query 'c': only an LSTM has this state")
        usual = type(self).model_fields
        unread = ["hidden_act", "layer_norm_eps", "num_attention_heads", "attention_probs_dropout_prob"]
        unread += ["attention_energy", "attention_query"] if self.pooling != "attention" else []
        given = [name for name in unread if getattr(self, name) != usual[name].default]
        if self.intermediate_size not in (usual["intermediate_size"].default, 4 * self.hidden_size):
            given.append("intermediate_size")
        if given:
            raise ValueError(f"{', '.join(given)}: a recurrent network with pooling {self.pooling!r} does not read it")
        return self

    @property
    def cell(self) -> str:
        """The name of the cell in `layers.recurrent.CELLS`."""
        raise NotImplementedError

    @property
    def weights_of_layer(self) -> int:
        """The number of weights in a layer that each token is multiplied by."""
        num_gates, num_ways = {"lstm": 4, "gru": 3, "gru_before": 3}.get(self.cell, 1), 1 if self.causal else 2
        width = self.hidden_size // num_ways
        return num_ways * num_gates * width * (self.hidden_size + width)


class RnnConfig(RecurrentConfig):
    """Elman's network, with the `nonlinearity` of its cells."""

    nonlinearity: Literal["tanh", "sigmoid"] = "tanh"

    model_types: ClassVar = ("maskloom_rnn", "maskloom_rnn_crf")

    @property
    def cell(self) -> str:
        """Elman's cell."""
        return f"elman_{self.nonlinearity}"


class LstmConfig(RecurrentConfig):
    """An LSTM. Its forget-gate biases start at `forget_bias`, so that memory is kept at first."""

    forget_bias: GateBias = 1.0

    model_types: ClassVar = ("maskloom_lstm", "maskloom_lstm_crf")

    @property
    def cell(self) -> str:
        """The LSTM's."""
        return "lstm"


class GruConfig(RecurrentConfig):
    """A GRU. Its reset gate acts "after" the product with the state, as in torch, or "before" it, as in Cho et al.

    The biases of its update gates, which keep memory like an LSTM's forget gates, start at `forget_bias`.
    """

    reset: Literal["after", "before"] = "after"
    forget_bias: GateBias = 0.0

    model_types: ClassVar = ("maskloom_gru", "maskloom_gru_crf")

    @property
    def cell(self) -> str:
        """The GRU's."""
        return "gru" if self.reset == "after" else "gru_before"
