"""Continuations of token sequences: sampled, greedy, or found by beam search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from maskloom.data.counter_random import uniform
from maskloom.errors import ConfigError, DataError
from maskloom.layers.attention import PastTokens
from maskloom.layers.copies import in_double, to_device
from maskloom.layers.decoding import Step, next_token_step, width_of_runs
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import TransformerLayer
from maskloom.models.assembled import EncoderWithHeads

_SMALLEST = {"max_tokens": 1, "top_k": 1, "beam": 1, "num_best": 1, "seed": 0, "min_tokens": 0, "no_repeat_ngram": 0}
MOST_BEAMS = 1000
_BLOCK = 64  # values per block whose maximum is computed first
_NOTED = 6  # candidates recorded per text in each step
_LARGEST = {"temperature": 1e6, "top_p": 1.0, "length_penalty": 100.0}
_OF_DRAWS = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "seed": 0}  # settings of sampling, by default plain
_OPTIONAL = ("top_k", "beam", "length_penalty")  # which may be None


@dataclass(frozen=True)
class Generation:
    """How to continue a text.

    At most `max_tokens` tokens are added. Each is sampled from the distribution at `temperature`, restricted to the
    `top_k` most likely tokens, and among these to the smallest set with total probability `top_p` (Holtzman et al.
    2020, 3.1); at temperature 0 the most likely token is chosen. The draws of a text depend only on `seed` and the
    text's number. `beam` selects beam search of that width instead, for the highest log-probability per token or, with
    `length_penalty` a, the highest log-probability over ((5 + length) / 6)^a (Wu et al. 2016, 7). A beam of 1 is
    greedy. A text has at least `min_tokens` tokens, and repeats no sequence of `no_repeat_ngram` tokens, even one in
    its prompt. Raises ConfigError for a value out of range, and for settings of sampling or of a search where there is
    none.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    beam: int | None = None
    seed: int = 0
    length_penalty: float | None = None
    num_best: int = 1
    min_tokens: int = 0
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None or name not in _OPTIONAL}
        for name, smallest in _SMALLEST.items():
            most, rule = 2**63 - 1, f"of at least {smallest}, below 2^63"
            if name == "beam":
                most, rule = MOST_BEAMS, f"from {smallest} to {MOST_BEAMS:,}"
            if name in given and (type(value := given[name]) is not int or not smallest <= value <= most):
                raise ConfigError(f"{name} {value!r:.80}: expected a whole number {rule}")
        for name, largest in _LARGEST.items():
            value = given.get(name, 1.0)
            is_fit = isinstance(value, int | float) and type(value) is not bool and 0.0 <= value <= largest
            if not is_fit or (name == "top_p" and value == 0.0):
                rule = "above 0 and at most 1" if name == "top_p" else f"from 0 to {largest:g}"
                raise ConfigError(f"{name} {value!r:.80}: expected a number {rule}")
        if self.min_tokens > self.max_tokens:
            raise ConfigError(f"min_tokens {self.min_tokens}: it may not exceed max_tokens, {self.max_tokens}")
        if self.num_best > (width := self.beam or 1):
            raise ConfigError(f"num_best {self.num_best} exceeds the beam, {width}; give a wider beam")
        if self.length_penalty is not None and self.beam is None:
            raise ConfigError(f"length_penalty {self.length_penalty:g}: it is only for beam search; give a beam")
        self._refuse_draws(name for name, plain in _OF_DRAWS.items() if getattr(self, name) != plain)

    def used(self) -> dict[str, Any]:
        """Return the settings that have an effect: those of sampling, or of a search."""
        unused = ("num_best",) if self.beam is None else tuple(_OF_DRAWS)
        return {name: value for name, value in vars(self).items() if value is not None and name not in unused}

    def _refuse_draws(self, names: Iterable[str]) -> None:
        drawn = [name for name in names if name in _OF_DRAWS]
        if self.beam is not None and drawn:
            rule = "beam search does not sample; to sample, give a temperature above 0 and no beam"
            raise ConfigError(f"beam = {self.beam} with {', '.join(drawn)}: {rule}")
        if self.temperature == 0.0 and (drawn := [name for name in drawn if name != "temperature"]):
            rule = "the most likely token is always taken; to sample, give a temperature above 0"
            raise ConfigError(f"temperature = 0 with {', '.join(drawn)}: {rule}")

    def changed(self, given: Mapping[str, Any]) -> Generation:
        """Return a copy with the `given` settings; a sampling setting turns beam search off.

        Raises ConfigError for a given setting that would change nothing, even if it has its default value.
        """
        ended = {"beam": None, "length_penalty": None} if {"temperature", "top_k", "top_p"} & given.keys() else {}
        changed = replace(self, **{**ended, **given})
        changed._refuse_draws(name for name, value in given.items() if value is not None)
        return changed

    def score(self, text: Continuation) -> float:
        """Return the score by which a search ranks texts; the end counts as a token."""
        return text.log_probability / self.norm(len(text.token_ids) + text.is_ended)

    def norm(self, length: int) -> float:
        """Return the divisor of the log-probability of `length` tokens."""
        return max(1, length) if self.length_penalty is None else ((5 + length) / 6) ** self.length_penalty


@dataclass
class Continuation:
    """Tokens that follow a prompt, their total log-probability in nats, and whether the text has ended.

    `is_forced` says that the length limit forced the end. `others` are the runners-up if a search was asked for several
    texts. `prompt` has the tokens before the text that it may not repeat.
    """

    token_ids: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    is_ended: bool = False
    others: list[Continuation] = field(default_factory=list)
    is_forced: bool = False
    prompt: Sequence[int] = ()

    @property
    def finish(self) -> Literal["end", "length"]:
        """What ended the text: the model, or the length limit."""
        return "end" if self.is_ended and not self.is_forced else "length"


@dataclass(frozen=True)
class DecodingStep:
    """One decoding step, for display: the active `texts`, and the tokens that may follow each.

    `candidates` are the most likely next tokens of each text with their log-probabilities in nats, before temperature
    is applied. `taken` pairs the indices of texts with their next tokens, including sampled end tokens; `ended` are the
    texts that ended in a search.
    """

    texts: list[Continuation]
    candidates: list[list[tuple[int, float]]]
    taken: list[tuple[int, int]]
    ended: list[Continuation]


@torch.inference_mode()
def continue_texts(
    model: EncoderWithHeads,
    prompts: Sequence[Sequence[int]],
    settings: Generation,
    *,
    end: int | None = None,
    never: Sequence[int] = (),
    numbers: Sequence[int] | None = None,
    steps: list[DecodingStep] | None = None,
) -> list[Continuation]:
    """Return a continuation of each prompt, token ids without padding.

    The token `end` ends a text and is not among its ids; tokens in `never` are not generated. A text that reaches the
    model's length limit ends there. `numbers` are the texts' numbers, by default 0, 1, 2 ... If given, `steps` records
    the steps of a single prompt. Raises ConfigError for a model that cannot continue texts, DataError for an empty
    prompt, a prompt that leaves no room for another token, and outputs that are not finite.
    """
    limit = model.config.max_position_embeddings
    for number, prompt in enumerate(prompts, start=1):
        if not 0 < len(prompt) < limit:
            raise DataError(f"prompt {number}: {len(prompt)} tokens; expected 1 to {limit - 1}, the model's limit")
    room = min(limit, max(map(len, prompts)) + settings.max_tokens)
    num_steps = [min(settings.max_tokens, room - len(prompt)) for prompt in prompts]
    numbers = list(range(len(prompts))) if numbers is None else list(numbers)
    choose = Choice(end, tuple(never), settings, numbers, steps, prompts=prompts)
    return decode(Decoder(model, room, settings.beam or 1), prompts, choose, num_steps)


def batched_by_length(
    prompts: Sequence[Sequence[int]],
    first: int,
    size: int,
    make: Callable[[list[Sequence[int]], list[int]], list[Continuation]],
) -> list[Continuation]:
    """Apply `make` to groups of `size` prompts of similar length and their numbers; return results in prompt order."""
    order, found = sorted(range(len(prompts)), key=lambda place: -len(prompts[place])), dict[int, Continuation]()
    for start in range(0, len(order), size):
        places = order[start : start + size]
        made = make([prompts[place] for place in places], [first + place for place in places])
        found |= zip(places, made, strict=True)
    return [found[place] for place in range(len(prompts))]


@dataclass(frozen=True)
class Choice:
    """Chooses the next tokens; `numbers` are the texts' numbers, and `steps` records the steps of a single text.

    With `forces_end`, a text's last step allows only the end, unless the text would be too short. A forced end has
    log-probability 0. `prompts`, if given, count in the search for repetitions.
    """

    end: int | None
    never: tuple[int, ...]
    settings: Generation
    numbers: list[int]
    steps: list[DecodingStep] | None = None
    forces_end: bool = False
    prompts: Sequence[Sequence[int]] = ()

    def start(self, number: int) -> list[Continuation]:
        """Return the empty texts after `number` prompts."""
        return [Continuation(prompt=prompt) for prompt in self.prompts or [()] * number]

    def must_end(self, text: Continuation, num_steps: int) -> bool:
        """Return whether a text of at most `num_steps` tokens must end here."""
        return self.forces_end and self.settings.min_tokens <= len(text.token_ids) == num_steps - 1

    def note(
        self,
        texts: Sequence[Continuation],
        log_probabilities: Tensor,
        taken: list[tuple[int, int]],
        ended: list[Continuation],
    ) -> None:
        """Record a step with `log_probabilities` (texts, vocabulary) if requested, with a single device read."""
        if self.steps is None:
            return
        best = log_probabilities.topk(min(_NOTED, log_probabilities.shape[1]))
        rows, columns = to_device(np.array(taken, np.int64).reshape(-1, 2), log_probabilities.device).unbind(1)
        parts = (best.indices, best.values, log_probabilities[rows, columns])
        read, size = torch.cat([in_double(part).flatten() for part in parts]).tolist(), best.indices.numel()
        pairs, width = [*zip(map(int, read[:size]), read[size : 2 * size], strict=True)], best.indices.shape[1]
        rows_of = (pairs[start : start + width] for start in range(0, size, width))
        candidates = [[pair for pair in row if pair[1] > -math.inf] for row in rows_of]
        for (place, token), value in zip(taken, read[2 * size :], strict=True):
            if all(token != other for other, _ in candidates[place]):
                candidates[place].append((token, value))
        kept = [replace(text, token_ids=[*text.token_ids]) for text in texts]
        self.steps.append(DecodingStep(kept, candidates, taken, ended))

    def log_probabilities(self, logits: Tensor, texts: Sequence[Continuation], limits: Sequence[int]) -> Tensor:
        """Return the log-probabilities of next tokens, (texts, vocabulary); `limits` are the texts' step limits.

        Forbidden tokens have -inf; the others are not renormalised.
        """
        logits = torch.log_softmax(self._without_never(logits), -1)
        limited = enumerate(zip(texts, limits, strict=True)) if self.forces_end else ()
        if last := [row for row, (text, limit) in limited if self.must_end(text, limit)]:
            logits.index_fill_(0, to_device(np.array(last), logits.device), -math.inf)
        elif not (self.settings.min_tokens or self.settings.no_repeat_ngram):
            return logits
        if banned := [(row, token) for row, text in enumerate(texts) for token in self._banned(text)]:
            logits[to_device(np.array(banned), logits.device).unbind(1)] = -math.inf
        most = max(Counter(row for row, _ in banned).values(), default=0) + len(self.never)
        if self.end is not None and (last or most >= logits.shape[1]):  # a text ends if no other token may follow
            logits[:, self.end].masked_fill_((logits == -math.inf).all(1), 0.0)
        return logits

    def _without_never(self, logits: Tensor) -> Tensor:
        if self.never:
            logits.index_fill_(1, to_device(np.array(self.never), logits.device), -math.inf)
        return logits

    def _banned(self, text: Continuation) -> list[int]:
        size, banned, token_ids = self.settings.no_repeat_ngram, list[int](), [*text.prompt, *text.token_ids]
        if size and len(token_ids) >= size:  # tokens that would repeat an n-gram
            places, start = range(len(token_ids) - size + 1), token_ids[len(token_ids) - size + 1 :]
            banned = [token_ids[at + size - 1] for at in places if token_ids[at : at + size - 1] == start]
        return banned if self.end is None or len(text.token_ids) >= self.settings.min_tokens else [*banned, self.end]

    def read(self, largest: Tensor, *columns: Tensor) -> list[list[float]]:
        """Return the columns of all rows after one device synchronisation; raises DataError for logits not finite."""
        parts = map(in_double, (largest, *columns))
        rows = torch.cat([part.view(len(part), -1) for part in parts], 1).tolist()
        if not all(row[0] < math.inf for row in rows):
            raise DataError("the model's outputs are not finite numbers; its weights are corrupt")
        return [row[1:] for row in rows]

    def taken(
        self, logits: Tensor, rows: list[int], step: int, texts: Sequence[Continuation], limits: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the largest logit of each row, the chosen token, and its log-probability."""
        if self.settings.temperature == 0.0:
            is_limited = self.forces_end or self.settings.min_tokens or self.settings.no_repeat_ngram
            seen = self.log_probabilities(logits, texts, limits) if is_limited else self._without_never(logits)
            # NumPy's argmax is several times as fast
            tokens = torch.from_numpy(seen.numpy().argmax(1)) if seen.device.type == "cpu" else seen.argmax(1)
            largest = seen.gather(1, tokens.unsqueeze(1))
            return largest, tokens, largest if is_limited else -(seen - largest).exp_().sum(1).log_()
        largest, log_probabilities = logits.amax(1), self.log_probabilities(logits, texts, limits)
        tokens = self._drawn(log_probabilities, rows, step)
        return largest, tokens, log_probabilities.gather(1, tokens.unsqueeze(1))

    def _drawn(self, log_probabilities: Tensor, rows: list[int], step: int) -> Tensor:
        settings = self.settings
        scaled = in_double(log_probabilities) / max(settings.temperature, 1e-200)  # fp32 over less might overflow
        values, tokens = scaled.topk(min(settings.top_k or scaled.shape[1], scaled.shape[1]), sorted=True)
        probabilities = values.softmax(-1)
        probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= settings.top_p, 0.0)
        summed = probabilities.cumsum(-1)
        draws = uniform(settings.seed, np.array([self.numbers[row] for row in rows]), step)
        points = to_device(draws, summed.device).unsqueeze(1) * summed[:, -1:]
        chosen = torch.searchsorted(summed, points, right=True).clamp_(max=summed.shape[1] - 1)
        return tokens.gather(1, chosen).squeeze(1).to(log_probabilities.device)


class Decoder:
    """A causal model that reads several sequences in parallel, one token at a time, and caches keys and values.

    `room` is the maximum number of tokens of a sequence, `width` that of a beam search. Raises ConfigError for a model
    that is not causal or has no head over the vocabulary.
    """

    _single: SequenceLayout | None = None  # with one token per sequence
    _steps: Sequence[Step] = ()  # one per layer, for that many sequences

    def __init__(self, model: EncoderWithHeads, room: int, width: int = 1) -> None:
        if not model.config.is_causal:
            raise ConfigError("only a left-to-right model can continue a text")
        if (head := model.vocabulary_head) is None:
            how = "use the one that it was fine-tuned from, or fine-tune with auxiliary_lm above 0"
            raise ConfigError(f"this model has no language-model head and cannot continue a text; {how}")
        self._encoder, self._vocabulary_head = model.encoder, head
        self._use_layers(model.encoder.layers, model.encoder.word_embeddings, room, width)

    def _use_layers(self, layers: Any, table: Tensor, room: int, width: int) -> None:
        """Set the layers that read each next token, and the table of its embedding."""
        self._layers, self._table, self._device, self._room = layers, table, table.device, room
        self._width = width_of_runs(layers, width)

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read prompts of at least one token and return the logits of their next tokens: (sequences, vocabulary)."""
        layout, config = SequenceLayout.from_lengths([*map(len, prompts)], self._device), self._encoder.config
        self._past = PastTokens(
            config.num_hidden_layers, config.num_attention_heads, self._room, layout, width=self._width
        )
        ids = to_device(np.array([*chain.from_iterable(prompts)]), self._device)
        output = self._encoder.encode_packed(ids, torch.zeros_like(ids), layout, past=self._past.layers)
        return self._vocabulary_head(output.last_hidden_state.index_select(0, layout.last_positions)).float()

    def step(self, token_ids: Tensor) -> Tensor:
        """Add a token to every sequence, (sequences,), and return the logits of the next ones."""
        encoder = self._encoder
        layout = encoder.layer_layout(self._next_layout(token_ids))
        hidden = encoder.embedded(token_ids, torch.zeros_like(token_ids), layout)
        for step, layer in zip(self._steps, self._past.layers, strict=True):
            hidden = step(hidden, layout, layer, None)
        return self._vocabulary_head(encoder.final_norm(hidden)).float()

    def _next_layout(self, token_ids: Tensor) -> SequenceLayout:
        """Make room for a token in every sequence, and return the layout of these tokens."""
        past = self._past
        if self._single is None or self._single.num_sequences != len(token_ids):
            self._single = SequenceLayout.from_lengths([1] * len(token_ids), self._device)
            rows = self._table.index_select(0, token_ids)
            self._steps = [next_token_step(cast(TransformerLayer, layer), rows) for layer in self._layers]
        layout = replace(self._single, position_ids=past.lengths, max_position=past.longest)
        past.add_token()
        return layout

    def take(self, rows: np.ndarray) -> None:
        """Keep the sequences `rows`, in that order; rows may repeat."""
        self._past.take(rows)


def decode(
    decoder: Decoder, prompts: Sequence[Sequence[int]], choose: Choice, num_steps: Sequence[int]
) -> list[Continuation]:
    """Return a decoder's continuation of each prompt, at most its entry in `num_steps` tokens long."""
    if choose.settings.beam is not None:
        return _beam_search(decoder, prompts, choose, num_steps)
    found, rows = choose.start(len(prompts)), list(range(len(prompts)))
    logits = decoder.start(prompts)
    for step in range(max(num_steps)):
        texts, limits = [found[row] for row in rows], [num_steps[row] for row in rows]
        seen = logits if choose.steps is None else choose.log_probabilities(logits, texts, limits)
        largest, tokens, values = choose.taken(logits, rows, step, texts, limits)
        read, going = choose.read(largest, tokens, values), list[int]()
        taken = [(place, int(token)) for place, (token, value) in enumerate(read) if value > -math.inf]
        choose.note(texts, seen, taken, [])
        for place, token in taken:  # a text whose every next token is forbidden stops here
            row, value = rows[place], read[place][1]
            text = found[row]
            text.log_probability += value
            text.is_ended, text.is_forced = token == choose.end, choose.must_end(text, num_steps[row])
            if not text.is_ended:
                text.token_ids.append(token)
                if len(text.token_ids) < num_steps[row]:
                    going.append(place)
        if not going:
            break
        if len(going) < len(rows):
            kept = np.array(going)
            decoder.take(kept)
            rows, tokens = [rows[place] for place in going], tokens[to_device(kept, tokens.device)]
        logits = decoder.step(tokens)
    return found


def _beam_search(
    decoder: Decoder, prompts: Sequence[Sequence[int]], choose: Choice, num_steps: Sequence[int]
) -> list[Continuation]:
    """Search for all prompts in parallel; the rows of each search are contiguous."""
    searches = [_Search(choose, *one) for one in zip(choose.start(len(prompts)), num_steps, strict=True)]
    width = choose.settings.beam or 1
    going, logits = list(searches), decoder.start(prompts)
    while going:
        texts = [text for search in going for text in search.active]
        limits = [search.num_steps for search in going for _ in search.active]
        log_probabilities = choose.log_probabilities(logits, texts, limits)
        number = min(2 * width, log_probabilities.shape[1])  # up to `width` may be the end, and `width` others remain
        best, places = largest_of(log_probabilities, number)
        scores = in_double(best)
        so_far = to_device(np.array([text.log_probability for text in texts]), scores.device)
        read = choose.read(best[:, 0], scores + so_far.unsqueeze(1), places)
        values, tokens = [row[:number] for row in read], [[*map(int, row[number:])] for row in read]
        first, rows, taken = 0, list[int](), list[int]()
        for search in going:
            last, num_ended = first + len(search.active), len(search.ended)
            ways = search.advance(values[first:last], tokens[first:last])
            choose.note(texts[first:last], log_probabilities[first:last], ways, search.ended[num_ended:])
            for source, token in ways:
                rows.append(first + source)
                taken.append(token)
            first = last
        going = [search for search in going if search.active]
        if going:
            decoder.take(np.array(rows))
            logits = decoder.step(to_device(np.array(taken), logits.device))
    return [search.best for search in searches]


class _Search:
    """The search for one prompt: the active texts (none once it is over) and the texts that have ended."""

    def __init__(self, choose: Choice, start: Continuation, num_steps: int) -> None:
        self._choose, self.num_steps = choose, num_steps
        self.active, self.ended = [start], list[Continuation]()

    def advance(self, scores: list[list[float]], tokens: list[list[int]]) -> list[tuple[int, int]]:
        """Choose the best continuations of all texts, and return pairs of text index and next token."""
        width, end = self._choose.settings.beam or 1, self._choose.end
        candidates = [
            (-score, source, token)
            for source, (row_scores, row_tokens) in enumerate(zip(scores, tokens, strict=True))
            for score, token in zip(row_scores, row_tokens, strict=True)
        ]
        candidates.sort()
        kept, ways = list[Continuation](), list[tuple[int, int]]()
        for place, (negative, source, token) in enumerate(candidates[: 2 * width]):
            score, text = -negative, self.active[source]
            if token == end:
                if place < width and score > -math.inf:
                    is_forced = self._choose.must_end(text, self.num_steps)
                    self.ended.append(Continuation(text.token_ids, score, is_ended=True, is_forced=is_forced))
                if width == 1 and place == 0:
                    break  # like greedy decoding
            elif len(kept) < width and score > -math.inf:
                kept.append(Continuation([*text.token_ids, token], score, prompt=text.prompt))
                ways.append((source, token))
        before, self.active = self.active, kept
        if kept and len(kept[0].token_ids) < self.num_steps and not self._is_decided():
            return ways
        # if every next token is forbidden, the active texts end
        self.ended += kept or ([] if self.ended else before)
        self.active = []
        return []

    @property
    def best(self) -> Continuation:
        """The best text that has ended, with the runners-up in `others`."""
        settings = self._choose.settings
        best, *others = sorted(self.ended, key=settings.score, reverse=True)[: settings.num_best]
        best.others = others
        return best

    def _is_decided(self) -> bool:
        """Return whether no active text of any length can score better than the `num_best` that have ended."""
        settings = self._choose.settings
        if len(self.ended) < settings.num_best:
            return False
        likeliest = max(text.log_probability for text in self.active)
        worst = sorted(map(settings.score, self.ended))[-settings.num_best]
        return likeliest / settings.norm(self.num_steps) <= worst


def largest_of(values: Tensor, number: int) -> Sequence[Tensor]:
    """Return the largest values of each row, sorted, and their indices: (rows, width) to (rows, number) twice.

    On a CPU only the blocks with the largest maxima are searched: a maximum is far cheaper than a sort.
    """
    num_whole = values.shape[1] - values.shape[1] % _BLOCK
    if values.device.type != "cpu" or num_whole < 4 * number * _BLOCK:
        return torch.topk(values, number)
    maxima = values[:, :num_whole].unflatten(1, (-1, _BLOCK)).amax(2)
    blocks = maxima.topk(number).indices.unsqueeze(2) * _BLOCK + torch.arange(_BLOCK)
    rest = torch.arange(num_whole, values.shape[1]).expand(len(values), -1)
    places = torch.cat([blocks.flatten(1), rest], 1)
    best = values.gather(1, places).topk(number)
    return best.values, places.gather(1, best.indices)
