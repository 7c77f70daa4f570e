"""Continuations of token sequences: drawn, greedy, or found by beam search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import cast

import numpy as np
import torch
from torch import Tensor

from maskloom.data.counter_random import uniform
from maskloom.errors import ConfigError, DataError
from maskloom.layers.attention import PastTokens
from maskloom.layers.decoding import Step, next_token_step
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import TransformerLayer
from maskloom.models.assembled import EncoderWithHeads


@dataclass(frozen=True)
class Generation:
    """How a text is continued.

    At most `max_tokens` tokens are added. A token is drawn from the distribution at `temperature`, of which the `top_k`
    most likely are kept, and of these the fewest that have the probability `top_p` together (Holtzman et al. 2020,
    3.1); at temperature 0 it is the most likely. The draws of a text depend on `seed` and its number alone. With `beam`
    it is a search instead, for the continuation that is most likely per token among that many kept at each step. Raises
    ConfigError for a value out of range and for a beam beside settings of a draw.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    beam: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value."""
        for name, smallest in (("max_tokens", 1), ("top_k", 1), ("beam", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is None and name in ("top_k", "beam"):
                continue
            if type(value) is not int or not smallest <= value < 2**63:
                raise ConfigError(f"{name} {value!r:.80}: a whole number of at least {smallest} is expected")
        for name, largest, rule in (("temperature", 1e6, "from 0 to 1e+06"), ("top_p", 1.0, "above 0, at most 1,")):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0.0 <= value <= largest or (name == "top_p" and value == 0.0):
                raise ConfigError(f"{name} {value!r:.80}: a number {rule} is expected")
        plain = {"temperature": 1.0, "top_k": None, "top_p": 1.0}
        if self.beam is not None and (changed := [name for name in plain if getattr(self, name) != plain[name]]):
            raise ConfigError(
                f"beam = {self.beam} beside {', '.join(changed)}: a search draws nothing; give one of them"
            )


@dataclass
class Continuation:
    """Tokens that follow a prompt, their log-probability together, in nats, and whether the model ended the text."""

    token_ids: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    is_ended: bool = False


@torch.inference_mode()
def continue_texts(
    model: EncoderWithHeads,
    prompts: Sequence[Sequence[int]],
    settings: Generation,
    *,
    end: int | None = None,
    never: Sequence[int] = (),
    numbers: Sequence[int] | None = None,
) -> list[Continuation]:
    """Return a continuation of each prompt, token ids without padding.

    The token `end` ends a text and is not among its ids; those in `never` are not taken. A text that comes to the
    model's limit ends there. `numbers` are those of the texts, 0 and so on unless given. Raises ConfigError for a model
    that cannot, DataError for a prompt without a token, or one that leaves no room for another, and for outputs that
    are not finite.
    """
    limit = model.config.max_position_embeddings
    for number, prompt in enumerate(prompts):
        if not 0 < len(prompt) < limit:
            raise DataError(
                f"prompt {number}: {len(prompt)} tokens; 1 to {limit - 1} are expected, as the model reads {limit}"
            )
    room = min(limit, max(map(len, prompts)) + settings.max_tokens)
    choose = _Choice(end, tuple(never), settings, list(range(len(prompts))) if numbers is None else list(numbers))
    decoder = Decoder(model, room)
    if settings.beam is None:
        return _draw(decoder, prompts, choose, room)
    return [_searched(decoder, prompt, choose, room) for prompt in prompts]


@dataclass(frozen=True)
class _Choice:
    """What a step may take, and how."""

    end: int | None
    never: tuple[int, ...]
    settings: Generation
    numbers: list[int]

    def log_probabilities(self, logits: Tensor) -> Tensor:
        self._check(logits.amax(1))
        return torch.log_softmax(self._allowed(logits), -1)

    def _allowed(self, logits: Tensor) -> Tensor:
        if self.never:
            logits[:, list(self.never)] = -math.inf
        return logits

    def _check(self, largest: Tensor) -> None:
        if not all(value < math.inf for value in largest.flatten().tolist()):
            raise DataError("the model's outputs are not finite numbers; its weights are broken")

    def taken(self, logits: Tensor, rows: list[int], step: int) -> tuple[Tensor, Tensor]:
        """Return a token for each row, and its log-probability."""
        if self.settings.temperature == 0.0:
            logits = self._allowed(logits)
            # NumPy looks through them several times as fast
            tokens = torch.from_numpy(logits.numpy().argmax(1)) if logits.device.type == "cpu" else logits.argmax(1)
            largest = logits.gather(1, tokens.unsqueeze(1))
            self._check(largest)
            return tokens, -(logits - largest).exp_().sum(1).log_()
        log_probabilities = self.log_probabilities(logits)
        tokens = self._drawn(log_probabilities, rows, step)
        return tokens, log_probabilities.gather(1, tokens.unsqueeze(1)).squeeze(1)

    def _drawn(self, log_probabilities: Tensor, rows: list[int], step: int) -> Tensor:
        settings = self.settings
        scaled = log_probabilities.double() / settings.temperature
        values, tokens = scaled.topk(min(settings.top_k or scaled.shape[1], scaled.shape[1]), sorted=True)
        probabilities = values.softmax(-1)
        probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= settings.top_p, 0.0)
        summed = probabilities.cumsum(-1)
        draws = uniform(settings.seed, np.array([self.numbers[row] for row in rows]), step)
        points = torch.from_numpy(draws).to(summed.device).unsqueeze(1) * summed[:, -1:]
        chosen = torch.searchsorted(summed, points, right=True).clamp_(max=summed.shape[1] - 1)
        return tokens.gather(1, chosen).squeeze(1)


class Decoder:
    """A causal model that reads one more token of several sequences at a time and keeps the keys and values before.

    `room` is the most tokens that one may come to. Raises ConfigError for a model that is not causal or has no head
    over the vocabulary.
    """

    def __init__(self, model: EncoderWithHeads, room: int) -> None:
        if (head := model.vocabulary_head) is None or not model.config.is_causal:
            raise ConfigError("only a left-to-right model with a language-model head continues a text")
        self._encoder, self._head, self._room = model.encoder, head, room
        self._device = model.encoder.word_embeddings.device
        self._single: SequenceLayout | None = None  # of one token a sequence
        self._steps: list[Step] = []  # of the layers, for as many sequences

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read prompts, each of at least one token, and return the logits of what follows: (sequences, vocabulary)."""
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        config = self._encoder.config
        self._past = PastTokens(config.num_hidden_layers, config.num_attention_heads, self._room, lengths)
        ids = torch.tensor(list(chain.from_iterable(prompts)), device=self._device)
        layout = SequenceLayout.from_lengths(lengths, self._device)
        output = self._encoder.encode_packed(ids, torch.zeros_like(ids), layout, past=self._past.layers)
        return self._head(output.last_hidden_state.index_select(0, layout.last_positions)).float()

    def step(self, token_ids: Tensor) -> Tensor:
        """Add a token to every sequence, (sequences,), and return the logits of what follows."""
        past, encoder = self._past, self._encoder
        if self._single is None or self._single.num_sequences != len(token_ids):
            self._single = SequenceLayout.from_lengths([1] * len(token_ids), self._device)
            rows = encoder.word_embeddings.index_select(0, token_ids)
            self._steps = [next_token_step(cast(TransformerLayer, layer), rows) for layer in encoder.layers]
        layout = encoder.placed(replace(self._single, position_ids=past.lengths, max_position=past.longest))
        past.add_token()
        hidden = encoder.embedded(token_ids, torch.zeros_like(token_ids), layout)
        for step, layer in zip(self._steps, past.layers, strict=True):
            hidden = step(hidden, layout, layer)
        return self._head(encoder.final_norm(hidden)).float()

    def take(self, rows: Tensor) -> None:
        """Keep these sequences, in this order; one may come several times."""
        self._past.take(rows)


def _draw(decoder: Decoder, prompts: Sequence[Sequence[int]], choose: _Choice, room: int) -> list[Continuation]:
    found, rows = [Continuation() for _ in prompts], list(range(len(prompts)))
    logits = decoder.start(prompts)
    for step in range(choose.settings.max_tokens):
        tokens, values = choose.taken(logits, rows, step)
        going = []
        for place, (row, token, value) in enumerate(zip(rows, tokens.tolist(), values.tolist(), strict=True)):
            text = found[row]
            text.log_probability += value
            text.is_ended = token == choose.end
            if not text.is_ended:
                text.token_ids.append(token)
                if len(prompts[row]) + len(text.token_ids) < room:
                    going.append(place)
        if not going or step + 1 == choose.settings.max_tokens:
            break
        if len(going) < len(rows):
            kept = torch.tensor(going, device=tokens.device)
            decoder.take(kept)
            rows, tokens = [rows[place] for place in going], tokens[kept]
        logits = decoder.step(tokens)
    return found


def _searched(decoder: Decoder, prompt: Sequence[int], choose: _Choice, room: int) -> Continuation:
    """Search for one prompt, its candidates together."""
    width = choose.settings.beam or 1
    logits = decoder.start([prompt])
    going, ended = [Continuation()], []
    num_steps = min(choose.settings.max_tokens, room - len(prompt))
    for step in range(num_steps):
        log_probabilities = choose.log_probabilities(logits)
        so_far = torch.tensor([text.log_probability for text in going], device=logits.device, dtype=torch.float64)
        scores = (log_probabilities.double() + so_far.unsqueeze(1)).flatten()
        best = scores.topk(min(2 * width, len(scores)))  # as many may end the text as stay
        kept, sources, tokens = [], [], []
        for place, (score, index) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            source, token = divmod(index, logits.shape[1])
            if token == choose.end:
                if place < width:
                    ended.append(Continuation(going[source].token_ids, score, is_ended=True))
            elif len(kept) < width and score > -math.inf:
                kept.append(Continuation([*going[source].token_ids, token], score))
                sources.append(source)
                tokens.append(token)
        going = kept
        if not going or step + 1 == num_steps or _is_decided(going, ended, num_steps):
            break
        decoder.take(torch.tensor(sources, device=logits.device))
        logits = decoder.step(torch.tensor(tokens, device=logits.device))
    return max([*ended, *going], key=_score)


def _score(text: Continuation) -> float:
    """Return the log-probability per token, the end counted."""
    return text.log_probability / max(1, len(text.token_ids) + text.is_ended)


def _is_decided(going: list[Continuation], ended: list[Continuation], num_steps: int) -> bool:
    """Tell whether no text that goes on can come to a better score than the best that ended, however long it gets."""
    return bool(ended) and max(text.log_probability for text in going) / num_steps <= max(map(_score, ended))
