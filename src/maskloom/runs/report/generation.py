"""One HTML page about how a model reads or generates: attention, search steps, masks, positions, blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from maskloom.checkpoints.huggingface import format_of
from maskloom.errors import ConfigError, DataError, amount
from maskloom.generation.search import DecodingStep
from maskloom.inference.inspection import (
    CROSS,
    DECODER,
    ENCODER,
    SELF,
    AttentionMap,
    Inspection,
    inspect,
    position_biases,
    position_vectors,
    self_attention,
)
from maskloom.inference.predictor import Predictor
from maskloom.inference.results import GeneratedText
from maskloom.models.decoder import TiedDecoder
from maskloom.runs.charts import Chart, Line, heat_map, line_chart, visible, write_html
from maskloom.runs.reading_defaults import FileReading, reading_of_prompts, reading_of_texts
from maskloom.runs.task_summaries import generation_line
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.tokenizer import Tokenizer

# Most that is shown: texts of a file; tokens, steps and positions; tokens of masks; dimensions; distances each way.
_TEXTS, _MOST, _MASKED, _DIMENSIONS, _DISTANCE = 5, 48, 24, 256, 16
_TOLD = 100_000  # cells of all heads with values as titles, which take 10 MB
_SIGNS = "Blue: positive; orange: negative."
_TITLES = {
    CROSS: "Cross-attention: from the decoder to the source",
    ENCODER: "Self-attention of the encoder",
    DECODER: "Self-attention of the decoder",
    SELF: "Self-attention",
}
_AXES = {
    CROSS: "Rows: generated tokens; columns: tokens of the source.",
    ENCODER: "Rows: a token of the source; columns: the tokens that it attends to.",
    DECODER: "Rows: a token that the decoder has read; columns: the tokens that it attends to.",
    SELF: "Rows: a token; columns: the tokens that it attends to.",
}


def generation_report(
    predictor: Predictor,
    model: Path,
    texts: Sequence[str] | Path,
    page: Path,
    given: Mapping[str, Any],
    reading: ReadingOptions | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Write a page about what a model generates for texts, or the first ones of a file; return a summary and the rows.

    `model` is its name; `given` holds settings of `Generation` that override its own. Raises the errors of `generate`.
    """
    settings, num_left_out = predictor.generation().changed(given), 0
    if isinstance(texts, Path):
        rows, num_left_out = _first(reading_of_prompts(predictor, texts, reading, settings))
        texts, read = [row.text for row in rows], [row.ids for row in rows]
        cut = sum(row.num_truncated for row in rows)
    else:
        names = [f"{predictor.input_name} {number}" for number in range(1, len(texts) + 1)]
        read, cut = predictor.prompt_ids(texts, names, settings)
    predictor.count_truncated(cut)
    found = [inspect(predictor, ids, settings, number) for number, ids in enumerate(read)]
    shown = [predictor.shown(one.found, settings) for one in found]
    about = _write(
        page,
        predictor,
        found[0].maps,
        title=visible(model),
        facts=[
            *((name.replace("_", " "), str(value)) for name, value in settings.used().items()),
            *([("truncated", f"{amount(cut, 'source')} to {predictor.max_length} tokens")] if cut else []),
        ],
        num_left_out=num_left_out,
        texts=[_about(predictor, *one) for one in zip(texts, found, shown, strict=True)],
    )
    told = predictor.truncation if cut else {}
    return about, [{predictor.input_name: text, **result, **told} for text, result in zip(texts, shown, strict=True)]


def attention_report(
    predictor: Predictor, model: Path, texts: Path, page: Path, reading: ReadingOptions | None = None
) -> dict[str, Any]:
    """Write a page about an encoder's self-attention for the first texts of a file; return a summary.

    `model` is its name. Texts are read as by `encode`. Raises ConfigError for a model without self-attention, DataError
    for a wrong file.
    """
    rows, num_left_out = _first(reading_of_texts(texts, reading))
    inputs = [row.inputs() for row in rows]
    read = predictor.tokenizer.encode_batch(inputs, max_length=predictor.max_length)
    maps = [self_attention(predictor, one.ids, one.segments) for one in read]
    if not maps[0]:
        name = format_of(predictor.model.config).name
        raise ConfigError(f"{model}: the architecture {name} has no self-attention for --report to show")
    return _write(
        page,
        predictor,
        maps[0],
        title=visible(model),
        num_left_out=num_left_out,
        texts=[[visible(part) for part in pair if part is not None] for pair in inputs],
        map=_map(predictor, SELF, [found[SELF] for found in maps], _TOLD),
    )


def _first(source: FileReading) -> tuple[list[Any], int]:
    """Return the first texts of a file and the number of the others; raises DataError if there is none."""
    number = source.count()
    if not (rows := list(islice(source.examples(), _TEXTS))):
        raise DataError(f"{source.path}: no rows to show")
    return rows, number - len(rows)


def _write(page: Path, predictor: Predictor, maps: Mapping[str, AttentionMap], **more: Any) -> dict[str, Any]:
    """Write a page about a model and texts; `maps` are those of the first. Return a summary."""
    config, heads = predictor.model.config, predictor.model.heads
    decoder = [cast(TiedDecoder, heads[DECODER])] if DECODER in heads else []
    facts = [
        ("architecture", format_of(config).name),
        ("layers", str(config.num_hidden_layers)),
        *[("layers of the decoder", str(len(part.layers))) for part in decoder],
        ("heads", str(config.num_attention_heads)),
        *more.get("facts", []),
    ]
    drawn = {"masks": _masks(predictor, maps), "positions": _positions(predictor)}
    content = {"map": None, **more, "facts": facts, **drawn, "network": blocks(predictor.model)}
    write_html(page, "runs/report/generation.html", content)
    return {"page": str(page), "num_shown": len(more["texts"]), "num_left_out": more["num_left_out"]}


def _about(predictor: Predictor, text: str, one: Inspection, result: GeneratedText) -> dict[str, Any]:
    """Return what the page shows of a text."""
    ends = sorted((text for step in one.steps for text in step.ended), key=one.settings.score, reverse=True)
    return {
        "source": visible(text),
        "text": visible(result["text"]),
        "facts": f"{amount(result['num_tokens'], 'token')}, {generation_line({**result})}",
        "maps": [_map(predictor, kind, [attention]) for kind, attention in one.maps.items()],
        "steps": [_step(predictor, step) for step in one.steps[:_MOST]],
        "num_steps": len(one.steps),
        "ended": [
            (
                visible(predictor.text_of(end.token_ids)) + " (stopped at the token limit)" * (end.finish == "length"),
                f"{end.log_probability:.3f}",
                f"{one.settings.score(end):.3f}",
            )
            for end in ends
        ],
    }


def _map(predictor: Predictor, kind: str, attentions: Sequence[AttentionMap], most_told: int = 0) -> dict[str, Any]:
    """Return what is drawn of a kind of attention, for texts side by side: means over heads, and every head.

    The cells of heads show their values as titles if there are at most `most_told` cells in all.
    """
    axes = [_axes(predictor, kind, attention, _MOST) for attention in attentions]
    layers = [attention.probabilities[:, :, :_MOST, :_MOST] for attention in attentions]

    def charts(name: str, values: Sequence[Tensor], *, tells: bool = True) -> list[tuple[str, str]]:
        found = []
        for attention, one, (rows, columns) in zip(attentions, values, axes, strict=True):
            caption = f"The strongest cell is {float(one.max()) if one.numel() else 0.0:.2f}."
            if max(len(attention.queries), len(attention.keys)) > _MOST:
                sizes = f"{len(attention.queries)} rows and {len(attention.keys)} columns"
                caption += f" Only the first {_MOST} tokens of {sizes} are shown."
            found.append((caption, heat_map(one.tolist(), name=name, rows=rows, columns=columns, tells=tells)))
        return found

    tells = sum(of.numel() for of in layers) <= most_told
    drawn = [("all layers", charts(f"{_TITLES[kind]}, all layers", [of.mean((0, 1)) for of in layers]), [])]
    for number, heads in enumerate(zip(*layers, strict=True), start=1):
        mean = charts(f"{_TITLES[kind]}, layer {number}", [of.mean(0) for of in heads])
        each = enumerate(zip(*heads, strict=True), start=1)
        single = [charts(f"layer {number}, head {head}", values, tells=tells) for head, values in each]
        drawn.append((f"layer {number}", mean, single))
    note = f"{_AXES[kind]} Large maps are means over heads. Small ones are single heads; click one to enlarge it."
    return {"title": _TITLES[kind], "note": note, "layers": drawn}


def _axes(predictor: Predictor, kind: str, attention: AttentionMap, most: int) -> tuple[list[str], list[str]]:
    """Return the first tokens on both axes of a map; generated text may have a vocabulary of its own."""
    sources, targets = predictor.tokenizer, predictor.tokenizer.of_targets
    queries = _tokens(targets if kind in (CROSS, DECODER) else sources, attention.queries[:most])
    return queries, _tokens(targets if kind == DECODER else sources, attention.keys[:most])


def _tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return tokens as the vocabulary spells them; ids beyond it, which some published models embed, as #id."""
    known = tokenizer.vocabulary.tokens
    return [visible(known[token]) if token < len(known) else f"#{token}" for token in ids]


def _step(predictor: Predictor, step: DecodingStep) -> dict[str, Any]:
    """Return the texts of a step with the candidates for each, and which of them were taken or ended."""
    written = predictor.tokenizer.of_targets
    end, ended, rows = predictor.end_token, [text.token_ids for text in step.ended if text.is_ended], []
    taken = {*step.taken, *((place, end) for place, text in enumerate(step.texts) if text.token_ids in ended)}
    for place, (text, candidates) in enumerate(zip(step.texts, step.candidates, strict=True)):
        marks = [("ended" if token == end else "taken") if (place, token) in taken else "" for token, _ in candidates]
        probabilities = [math.exp(value) for _, value in candidates]
        chips = list(zip(_tokens(written, [token for token, _ in candidates]), probabilities, marks, strict=True))
        so_far = predictor.text_of(text.token_ids) or " ".join(_tokens(written, text.token_ids)) or "(nothing yet)"
        rows.append((visible(so_far), f"{text.log_probability:.3f}", chips))
    return {"rows": rows}


def _masks(predictor: Predictor, maps: Mapping[str, AttentionMap]) -> list[Chart]:
    """Return which tokens see which in the first text: those with any attention."""
    charts = []
    for kind, attention in maps.items():
        rows, columns = _axes(predictor, kind, attention, _MASKED)
        sees = attention.probabilities.amax((0, 1)) > 0.0
        title = _TITLES[kind].partition(":")[0]
        cut = f"Only {_MASKED} tokens are shown." if max(sees.shape) > _MASKED else ""
        svg = heat_map(sees[:_MASKED, :_MASKED].float().tolist(), name=title, rows=rows, columns=columns)
        charts.append(Chart(title, svg, cut))
    return charts


def _positions(predictor: Predictor) -> list[Chart]:
    model, charts = predictor.model, []
    for name, vectors in position_vectors(model, _MOST).items():
        number, size = vectors.shape
        note = f"Rows: positions 0 to {number - 1}, from the top; columns: "
        note += f"the {size} dimensions" if size <= _DIMENSIONS else f"the first {_DIMENSIONS} of {size} dimensions"
        note += f". {_SIGNS}"
        charts.append(Chart(name, heat_map(vectors[:, :_DIMENSIONS].tolist(), name=name), note))
        pairs = [torch.cosine_similarity(vectors[: number - apart], vectors[apart:]) for apart in range(number)]
        curve = [Line("mean", [(apart, float(found.mean())) for apart, found in enumerate(pairs)], "c0")]
        svg = line_chart(curve, x_name="distance", y_name="cosine")
        charts.append(Chart(f"{name}: similarity by distance", svg, "The mean cosine of two vectors at that distance."))
    for part, biases in position_biases(model, _DISTANCE).items():
        columns = [str(distance) for distance in range(-_DISTANCE, biases.shape[1] - _DISTANCE)]
        rows = [f"head {number}" for number in range(1, len(biases) + 1)]
        svg = heat_map(biases.tolist(), name=f"biases of the {part}", rows=rows, columns=columns)
        note = f"Added to the scores, by key position minus query position. {_SIGNS}"
        charts.append(Chart(f"Biases by distance, {part}", svg, note))
    return charts


class Block(NamedTuple):
    """`number` identical modules in a row: the name and class of each, its parameter count, sizes and parts."""

    number: int
    name: str
    kind: str
    num_parameters: int
    sizes: Sequence[str]
    parts: Sequence[Block]


def blocks(owner: nn.Module, name: str = "", seen: set[int] | None = None) -> list[Block]:
    """Return the blocks of a module, in order; a parameter that several modules share counts where it first appears.

    `name` is the name of a module list, which its modules take. Dropout and identity modules are left out.
    """
    seen, found = set() if seen is None else seen, list[Block]()
    for own, module in owner.named_children():
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            found += blocks(module, own if isinstance(module, nn.ModuleList) else "", seen)
        elif not isinstance(module, nn.Identity | nn.Dropout):
            new = {key: one for key, one in module.named_parameters(recurse=False) if id(one) not in seen}
            seen |= {id(one) for one in new.values()}
            sizes = [
                f"{key} {' × '.join(f'{size:,}' for size in one.shape)}{'' if key in new else ', shared'}"
                for key, one in module.named_parameters(recurse=False)
            ]
            parts = blocks(module, seen=seen)
            count = sum(one.numel() for one in new.values()) + sum(one.number * one.num_parameters for one in parts)
            block = Block(1, name or own, type(module).__name__, count, sizes, parts)
            if found and found[-1]._replace(number=1) == block:
                block = found.pop()
                block = block._replace(number=block.number + 1)
            found.append(block)
    return found
