"""What recurrent networks forget: gradients over time (Bengio et al. 1994), and sentences crammed into one vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.generation.search import Generation
from maskloom.generation.sources import decode_sources
from maskloom.layers.recurrent import RecurrentLayer
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads, build_model
from maskloom.models.recurrent import RecurrentDecoder
from maskloom.models.recurrent_config import GruConfig, LstmConfig, RecurrentConfig, RnnConfig
from maskloom.reproduce.results import write_page
from maskloom.runs.charts import Chart, Line, colour, heat_map, line_chart
from maskloom.runs.display import SILENT, Progress

_UNITS, _STEPS_BACK, _RATE, _BATCH, _EXPLODING = 32, 50, 3e-3, 32, 1.2
_BEGIN, _END, _DIGITS = 10, 11, 10
_MOST_TRAINED = 20  # longest training text, in digits; longer test texts also have unseen lengths
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
# Networks that must remember the first token of a text to its end.
_MEMORIES: dict[str, Callable[..., RecurrentConfig]] = {
    "Elman, sigmoid": partial(RnnConfig, nonlinearity="sigmoid"),
    "Elman, tanh": RnnConfig,
    "LSTM, forget bias 1": LstmConfig,
    "LSTM, forget bias 5": partial(LstmConfig, forget_bias=5.0),
    "GRU": GruConfig,
    "GRU, forget bias 5": partial(GruConfig, forget_bias=5.0),
}

Reader = Literal["none", "dot", "scaled_dot", "mlp", "bilinear"]
_READERS: dict[str, Reader] = {
    "without attention": "none",
    "dot": "dot",
    "scaled dot": "scaled_dot",
    "MLP": "mlp",
    "bilinear": "bilinear",
}


def gradient_norms(activation: Callable[[Tensor], Tensor], radius: float, *, num_steps: int) -> list[float]:
    """Return the spectral norm of the derivative of the last h with respect to h k steps earlier, k = 0 to `num_steps`.

    The recurrent matrix is `radius` times an orthogonal one; inputs are normal with standard deviation 0.1.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(_UNITS, _UNITS, dtype=torch.float64, generator=generator)
    weight = radius * torch.linalg.qr(drawn).Q
    h, jacobians = torch.zeros(1, _UNITS, dtype=torch.float64), list[Tensor]()
    for _ in range(num_steps):
        inputs = 0.1 * torch.randn(1, _UNITS, dtype=torch.float64, generator=generator)

        def next_h(before: Tensor, inputs: Tensor = inputs) -> Tensor:
            return activation(inputs + F.linear(before, weight))

        jacobians.append(cast(Tensor, torch.autograd.functional.jacobian(next_h, h)).view(_UNITS, _UNITS))
        h = next_h(h)
    product, norms = torch.eye(_UNITS, dtype=torch.float64), [1.0]
    for jacobian in reversed(jacobians):
        product = product @ jacobian
        norms.append(float(torch.linalg.matrix_norm(product, 2)))
    return norms


def exploding_losses(limit: float | None, *, num_steps: int) -> list[float]:
    """Return the losses of a linear network with exploding gradients, with their norm clipped to `limit` if given.

    Its recurrent matrix is 1.2 times an orthogonal one. Trained by plain gradient descent, it must recall the first
    number of the first of 50 inputs. The list ends before the first non-finite loss (Pascanu et al. 2013, algorithm 1).
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(_UNITS, _UNITS + 1, dtype=torch.float64, generator=generator)
    weight = (_EXPLODING * torch.linalg.qr(drawn[:, 1:]).Q).requires_grad_()
    readout = (0.1 * drawn[:, 0]).requires_grad_()
    losses = []
    for _ in range(num_steps):
        inputs = torch.randn(_STEPS_BACK, _BATCH, _UNITS, dtype=torch.float64, generator=generator)
        h = torch.zeros(_BATCH, _UNITS, dtype=torch.float64)
        for each in inputs:
            h = F.linear(h, weight) + each
        loss = F.mse_loss(h @ readout, inputs[0, :, 0])
        if not math.isfinite(float(loss.detach())):
            break
        losses.append(float(loss.detach()))
        gradients = torch.autograd.grad(loss, (weight, readout))
        norm = float(torch.cat([each.flatten() for each in gradients]).norm())
        factor = 1.0 if limit is None else min(1.0, limit / norm)
        with torch.no_grad():
            for parameter, gradient in zip((weight, readout), gradients, strict=True):
                parameter -= 0.01 * factor * gradient
    return losses


def _trained(
    model: EncoderWithHeads,
    losses: Iterator[Tensor],
    num_steps: int,
    is_done: Callable[[], bool] = lambda: False,
    *,
    last_rate: float = 1.0,
    progress: Progress = SILENT,
) -> None:
    """Train until `is_done`, with a learning rate that decays linearly to `last_rate` times its initial value."""
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, last_rate, max(1, num_steps))
    for step in range(1, num_steps + 1):
        optimizer.zero_grad()
        next(losses).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress.advance(step)
        if is_done():
            return


def first_token_network(config: RecurrentConfig, length: int, *, num_steps: int) -> tuple[EncoderWithHeads, float]:
    """Train a network to recall the first of `length` tokens; return it and its accuracy on 512 new texts."""
    model, generator = build_model(config, ("classifier",), 2, seed=0), torch.Generator().manual_seed(0)
    recent = [0.0] * 20

    def answers(number: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(2, config.vocab_size, (number, length), generator=generator)
        ids[:, 0] = torch.randint(0, 2, (number,), generator=generator)
        return model.heads["classifier"](model.encoder(ids).pooled), ids[:, 0]

    def losses() -> Iterator[Tensor]:
        while True:
            logits, labels = answers(_BATCH)
            recent[:] = [*recent[1:], float((logits.argmax(1) == labels).float().mean())]
            yield F.cross_entropy(logits, labels)

    _trained(model, losses(), num_steps, lambda: min(recent) > 0.99)
    model.eval()
    with torch.no_grad():
        logits, labels = answers(512)
    return model, float((logits.argmax(1) == labels).float().mean())


@torch.no_grad()
def gate_shares(model: EncoderWithHeads, length: int) -> dict[str, dict[float, float]]:
    """Return the fraction of an LSTM's gate values on random texts in each tenth of [0, 1], by its midpoint."""
    ids = torch.randint(2, model.config.vocab_size, (64, length), generator=torch.Generator().manual_seed(1))
    read, h = cast("tuple[Tensor, Tensor]", model.encoder(ids, keep_hidden_states=True).hidden_states)
    weight, recurrent, bias, more = cast(RecurrentLayer, model.encoder.layers[0]).forwards.all_weights[0]
    before = F.pad(h, (0, 0, 1, 0))[:, :-1]
    i, f, _, o = (F.linear(read, weight, bias) + F.linear(before, recurrent, more)).sigmoid().chunk(4, 2)
    found = {"input": i, "forget": f, "output": o}
    counts = {name: torch.histc(values, 10, 0.0, 1.0) / values.numel() for name, values in found.items()}
    return {name: {(2 * at + 1) / 20: share for at, share in enumerate(row.tolist())} for name, row in counts.items()}


def rnn_gradients(
    out: Path, progress: Progress = SILENT, *, lengths: Sequence[int] = (5, 10, 20, 50, 100, 200), num_steps: int = 400
) -> dict[str, Any]:
    """Measure how gradients vanish or explode over time and which networks remember a first token; write a page."""
    norms = {
        f"{name}, {radius:g}": gradient_norms(activation, radius, num_steps=_STEPS_BACK)
        for name, activation in _ACTIVATIONS.items()
        for radius in (0.5, 1.0, 1.5)
    }
    slopes = {name: _exponent(values[-1]) / _STEPS_BACK for name, values in norms.items()}
    sizes = {"vocab_size": 10, "hidden_size": _UNITS, "initializer_range": 0.5}
    sizes |= {"causal": True, "hidden_dropout_prob": 0.0}
    accuracies, gates = dict[str, dict[int, float]](), dict[str, dict[str, dict[float, float]]]()
    for name, make in _MEMORIES.items():
        accuracies[name] = {}
        for length in progress.each(f"{name}: first tokens of {len(lengths)} lengths", lengths):
            network, accuracies[name][length] = first_token_network(make(**sizes), length, num_steps=num_steps)
            if name.startswith("LSTM") and length == lengths[-1]:
                gates[name] = gate_shares(network, length)
    limits = {"clipped at 1": 1.0, "not clipped": None}
    clipped = {name: exploding_losses(limit, num_steps=num_steps) for name, limit in limits.items()}
    what = "norm of the gradient by steps back in time, for several spectral radii of the recurrent matrix"
    norms_of = {kind: {name: norms[name] for name in norms if name.startswith(kind)} for kind in _ACTIVATIONS}
    charts = [
        *(Chart(f"{kind}: {what}", _logs(rows, "steps back", "the norm")) for kind, rows in norms_of.items()),
        Chart("which networks recall the first token", _shares(accuracies, "tokens", "accuracy")),
        *(
            Chart(f"{name}: distribution of gate values", _shares(row, "value of a gate", "fraction"))
            for name, row in gates.items()
        ),
        Chart(
            f"a linear network of radius {_EXPLODING:g}, trained by gradient descent",
            _logs(clipped, "steps", "the loss"),
        ),
    ]
    lines = [
        *(f"{name}: the norm changes by a factor of 10^{slope:.3f} per step" for name, slope in slopes.items()),
        *(f"linear, {_EXPLODING:g}, gradients {name}: {_course(row, num_steps)}" for name, row in clipped.items()),
        *(f"{name}: {_told(row)}" for name, row in accuracies.items()),
    ]
    about = f"Cells have {_UNITS} units. Networks are trained for at most {num_steps} steps of {_BATCH} texts."
    content = {"norms": norms, "slopes": slopes, "accuracies": accuracies, "gates": gates, "clipped": clipped}
    title = "What recurrent networks forget"
    return write_page(out, "rnn-gradients", content, lines, title=title, about=about, charts=charts)


def _course(losses: Sequence[float], num_steps: int) -> str:
    first, last = (f"10^{_exponent(loss):.1f}" for loss in (losses[0], losses[-1]))
    if len(losses) < num_steps:
        return f"a loss of {first}, then {last}, and no finite loss from step {len(losses) + 1} on"
    return f"a loss of {first} at first and {last} after {num_steps} steps"


def reversal_accuracy(
    attention: Reader, lengths: Sequence[int], *, num_steps: int, progress: Progress = SILENT
) -> tuple[dict[int, float], list[list[float]] | None]:
    """Train an LSTM to reverse digits; return exact-match accuracy by length, and one example's attention weights."""
    config = LstmConfig(
        vocab_size=12, hidden_size=64, initializer_range=0.5, hidden_dropout_prob=0.0, decoder_attention=attention
    )
    model, generator = build_model(config, ("decoder",), seed=0), torch.Generator().manual_seed(0)
    head, longest = cast(RecurrentDecoder, model.heads["decoder"]), min(max(lengths), _MOST_TRAINED)

    def sources(length: int, number: int) -> tuple[Tensor, Tensor, SequenceLayout]:
        digits, layout = torch.randint(0, _DIGITS, (number, length), generator=generator), [length] * number
        source = SequenceLayout.from_lengths(layout)
        ids = digits.flatten()
        return digits, model.encoder.encode_packed(ids, torch.zeros_like(ids), source).last_hidden_state, source

    def written(digits: Tensor) -> tuple[Tensor, Tensor, SequenceLayout]:
        mark = torch.full((len(digits), 1), _BEGIN)
        read = torch.cat([mark, digits.flip(1)], 1)
        labels = torch.cat([digits.flip(1), torch.full_like(mark, _END)], 1).flatten()
        return read.flatten(), labels, SequenceLayout.from_lengths([read.shape[1]] * len(digits))

    def losses() -> Iterator[Tensor]:
        while True:
            length = int(torch.randint(1, longest + 1, (1,), generator=generator))
            digits, hidden, source = sources(length, 2 * _BATCH)
            read, labels, target = written(digits)
            yield head.loss_sum(head(read, target, hidden, source), labels) / len(labels)

    progress.begin(f"digits backwards, attention: {attention}", num_steps)
    _trained(model, losses(), num_steps, last_rate=0.05, progress=progress)
    progress.end()
    with torch.no_grad():
        accuracies = {}
        for length in lengths:
            digits, hidden, source = sources(length, 100)
            settings = Generation(max_tokens=length + 1, temperature=0.0)
            texts = decode_sources(model, hidden, source, settings, begin=[_BEGIN], end=_END)
            right = [text.token_ids == row for text, row in zip(texts, digits.flip(1).tolist(), strict=True)]
            accuracies[length] = sum(right) / len(right)
        if (reader := head.attention) is None:
            return accuracies, None
        digits, hidden, source = sources(longest, 1)
        read, _, target = written(digits)
        seen = list[Tensor]()
        handle = reader.register_forward_pre_hook(lambda _, given: seen.append(reader.probabilities(*given)))
        head(read, target, hidden, source)
        handle.remove()
    return accuracies, seen[0][0].tolist()


def on_antidiagonal(weights: Sequence[Sequence[float]]) -> float:
    """Return the fraction of the attention (targets + end, sources) within one position of the digit being written."""
    rows = [row[max(0, len(row) - 2 - at) : len(row) + 1 - at] for at, row in enumerate(weights[:-1])]
    return sum(map(sum, rows)) / len(rows)


def rnn_attention(
    out: Path,
    progress: Progress = SILENT,
    *,
    lengths: Sequence[int] = (2, 5, 10, 15, 20, 30, 40),
    num_steps: int = 3000,
) -> dict[str, Any]:
    """Compare an LSTM that crams digits into one vector with LSTMs that attend to them; write a page."""
    how = {"num_steps": num_steps, "progress": progress}
    found = {name: reversal_accuracy(reader, lengths, **how) for name, reader in _READERS.items()}
    accuracies = {name: row for name, (row, _) in found.items()}
    maps = {name: weights for name, (_, weights) in found.items() if weights is not None}
    shares = {name: on_antidiagonal(weights) for name, weights in maps.items()}
    charts = [
        Chart("digits reversed without an error", _shares(accuracies, "digits", "exact")),
        *(
            Chart(
                f"{name}: attention of each target token to the source",
                heat_map(weights, name="attention"),
                f"Rows: targets, from the top; columns: source. The strongest cell is {max(map(max, weights)):.2f}.",
            )
            for name, weights in maps.items()
        ),
    ]
    near = "of the attention is within one position of the correct digit"
    lines = [f"{name}: {_told(row)}" for name, row in accuracies.items()]
    lines += [f"{name}: {share:.2f} {near}" for name, share in shares.items()]
    most = min(max(lengths), _MOST_TRAINED)
    about = f"LSTMs of 64 units, trained for {num_steps} steps on 1 to {most} digits; 100 new texts of each length."
    content = {"accuracies": accuracies, "attention": maps, "on_antidiagonal": shares}
    title = "A sentence crammed into one vector"
    return write_page(out, "rnn-attention", content, lines, title=title, about=about, charts=charts)


def _told(row: Mapping[int, float]) -> str:
    return ", ".join(f"{value:.2f} at {length}" for length, value in row.items())


def _exponent(value: float) -> float:
    return math.log10(max(value, 1e-300))


def _logs(rows: Mapping[str, Sequence[float]], x_name: str, what: str) -> str:
    logs = {name: {at: _exponent(value) for at, value in enumerate(row)} for name, row in rows.items()}
    return line_chart(_lines(logs), x_name=x_name, y_name=f"log10 of {what}")


def _shares(rows: Mapping[str, Mapping[Any, float]], x_name: str, y_name: str) -> str:
    return line_chart(_lines(rows), x_name=x_name, y_name=y_name, as_percent=True)


def _lines(rows: Mapping[str, Mapping[Any, float]]) -> list[Line]:
    return [Line(name, [*row.items()], colour(at)) for at, (name, row) in enumerate(rows.items())]
