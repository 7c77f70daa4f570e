"""Model folders in the Hugging Face layout: config.json and model.safetensors, read in every published dialect."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from maskloom.checkpoints.published.bart import BART_FORMAT, MARIAN_FORMAT
from maskloom.checkpoints.published.bert import BERT_FORMAT
from maskloom.checkpoints.published.elmo import ELMO_FORMAT
from maskloom.checkpoints.published.format import PublishedFormat, TensorName
from maskloom.checkpoints.published.gpt import GPT_FORMAT
from maskloom.checkpoints.published.own import RECURRENT_FORMATS, TRANSFORMER_FORMAT
from maskloom.checkpoints.published.t5 import T5_FORMAT
from maskloom.checkpoints.tensor_files import WEIGHTS, StoredTensor, open_weights, safetensors_pieces
from maskloom.errors import ConfigError, DataError, amount
from maskloom.models.architectures import architecture_of, published_config
from maskloom.models.assembled import EncoderWithHeads, HeadOptions, build_model, fill_model
from maskloom.models.heads import HEADS
from maskloom.models.model_config import ModelConfig
from maskloom.recipe_files import validate_recipe
from maskloom.sections import Section
from maskloom.system.fault_points import fault_point
from maskloom.system.files import replacing, write_json
from maskloom.system.foreign_files import file_inside, read_json_object, read_object_inside
from maskloom.system.resources import require_memory

CONFIG = "config.json"
# The config.json key that holds the options of our own heads.
HEAD_OPTIONS = "maskloom_heads"
_GOOGLE_CONFIG = "bert_config.json"
_FORCED = ("forced_bos_token_id", "forced_eos_token_id")

FORMATS = {
    "bert": BERT_FORMAT,
    "gpt": GPT_FORMAT,
    "transformer": TRANSFORMER_FORMAT,
    "marian": MARIAN_FORMAT,
    "bart": BART_FORMAT,
    "t5": T5_FORMAT,
    **RECURRENT_FORMATS,
    "elmo": ELMO_FORMAT,
}
"""The published format of each architecture, by row name."""

# The number of problems that an error lists one by one.
_NUM_NAMED = 100


@dataclass(frozen=True)
class LoadReport:
    """The result of loading; `copied` pairs names in the Hugging Face layout with the file's names.

    `new_parameters`, in the Hugging Face layout, were not in the file and are freshly initialised.
    """

    new_parameters: tuple[str, ...] = ()
    copied: tuple[tuple[str, str], ...] = ()


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return a model folder's config.json (or bert_config.json); raises DataError unless it is a JSON object.

    Forced tokens in generation_config.json, where later releases of transformers write them, take precedence.
    """
    content = read_json_object(_config_path(Path(folder)))
    generation = read_object_inside(Path(folder), "generation_config.json")
    return content | {key: generation[key] for key in _FORCED if key in generation}


def read_model_config(folder: Path) -> ModelConfig:
    """Return the encoder configuration of a model folder; raises DataError for an unknown one."""
    return published_config(read_config(folder), str(folder))


def stored_heads(folder: Path) -> list[str]:
    """Return the heads that a model folder holds, without reading its weights; raises DataError for a broken one."""
    content, config = read_config(folder), read_model_config(folder)
    return _heads_of(_Contents(open_weights(folder), config, _config_path(folder)), content, config)[1]


def load_model(
    folder: str | Path,
    *,
    heads: Sequence[str] | None = None,
    num_labels: int | None = None,
    seed: int = 0,
    replace_heads: Collection[str] = (),
    head_options: HeadOptions | None = None,
    stored: dict[str, StoredTensor] | None = None,
    added: Mapping[str, Any] | None = None,
) -> tuple[EncoderWithHeads, LoadReport]:
    """Read a model folder with names of any published dialect, and report what was copied and initialised.

    `heads=None` loads the heads that the file holds. Requested heads that are absent, or named in `replace_heads`, are
    initialised from `seed`, as is a missing pooler unless a loaded classifier reads it. `num_labels` defaults to the
    file's; `head_options` overrides config.json's. `stored` holds the tensors if `open_weights` is not to open them.
    `added` overrides configuration keys, such as "bilstm", which puts a bidirectional LSTM on top, freshly initialised
    unless the file has one. Raises ConfigError for a key that the model lacks, and a single DataError for all missing,
    unknown, repeated and ill-shaped tensors.
    """
    folder = Path(folder)
    content = read_config(folder)
    config = published_config(content, str(_config_path(folder)))
    form = _form_with(heads or (), config, folder)
    for name in (added or {}).keys() - type(config).model_fields.keys():
        raise ConfigError(f"{name}: {folder} has the layout of {form.name}, which has no such part")
    config = config.with_keys(added or {}, f"{folder}: ")
    stored = open_weights(folder) if stored is None else stored
    contents = _Contents(stored, config, _config_path(folder))
    present, named = _heads_of(contents, content, config)
    wanted = named if heads is None else [*heads]
    loaded_heads = [head for head in wanted if head in present and head not in replace_heads]
    labelled = [head for head in loaded_heads if HEADS[head].is_labelled]
    labels = _num_labels(contents, form, labelled) if num_labels is None else num_labels
    if head_options is None:
        given, source = content.get(HEAD_OPTIONS, {}), f"{_config_path(folder)}, {HEAD_OPTIONS}"
        head_options = validate_recipe(_OwnHeads, given, source=source).model_dump(exclude_none=True)
    with torch.device("meta"):
        model = build_model(config, wanted, labels, head_options=head_options)
    rows = _rows_of(model, loaded_heads)
    pooler = () if {"classifier", "choice", "document"}.intersection(loaded_heads) else form.pooler
    for part in (pooler, form.top if (added or {}).get("bilstm") else (), form.optional):
        if not any(row.huggingface in contents.tensors for row in part):
            rows = [row for row in rows if row not in part]
    if problems := contents.problems + _mismatches(rows, contents, model) + contents.unknown:
        where, more = next(iter(stored.values())).path if stored else folder, len(problems) - _NUM_NAMED
        shown = [*problems[:_NUM_NAMED], *([f"and {more} more"] if more > 0 else [])]
        raise DataError(f"{where}: {amount(len(problems), 'problem')}:\n  " + "\n  ".join(shown))
    require_memory(sum(parameter.nbytes for parameter in model.parameters()), f"{folder}: the model", DataError)
    fill_model(model, seed, leave={row.ours for row in rows})
    _copy(model, rows, contents)
    copied = {row.huggingface: contents.tensors[row.huggingface].name for row in rows}
    new = [row.huggingface for row in _rows_of(model, wanted) if row.huggingface not in copied]
    return model, LoadReport(tuple(new), tuple(copied.items()))


def save_model(model: EncoderWithHeads, folder: str | Path, *, extra_config: dict[str, Any] | None = None) -> None:
    """Write config.json and model.safetensors so that transformers loads them and gives equal logits.

    A model with a conditional random field gets a model_type that transformers rejects, as it would predict other tags
    without the field. `extra_config` adds keys such as id2label, label2id and problem_type. Each file is written
    atomically, the configuration last. Raises ConfigError if `extra_config` contradicts the model or the format has no
    names for a head, and OSError if the disk fails.
    """
    folder = Path(folder)
    _form_with(tuple(model.heads), model.config, folder)
    content = _config_content(model, extra_config or {})
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as file:
        for piece in safetensors_pieces(_published_tensors(model), metadata={"format": "pt"}):
            fault_point("model.write")
            file.write(piece)
    write_json(folder / CONFIG, content)


def _form_with(heads: Sequence[str], config: ModelConfig, folder: Path) -> PublishedFormat:
    form = format_of(config)
    if absent := [head for head in heads if head in HEADS and head not in form.heads]:
        rule = "; to generate texts, start from a Transformer, Marian, BART or T5" if "decoder" in absent else ""
        named = ", ".join(absent)
        raise ConfigError(f"{folder} has the layout of {form.name}, which cannot have the head {named}{rule}")
    return form


class _BiLSTMOptions(Section):
    layers: str | int | list[int] | None = None
    lstm_size: Annotated[int, Field(ge=2, le=65_536, multiple_of=2)] | None = None
    lstm_layers: Annotated[int, Field(ge=1, le=4)] | None = None
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    mix_layer_norm: bool | None = None
    word_size: Annotated[int, Field(ge=0, le=65_536)] | None = None


class _OwnHeads(Section):
    bilstm_tagger: _BiLSTMOptions | None = None


class _Contents:
    """The tensors of a file, classified, under canonical names and in our orientation.

    Raises DataError, with the `place` of the configuration, if this has more layers than there are tensors.
    """

    def __init__(self, stored: dict[str, StoredTensor], config: ModelConfig, place: Path) -> None:
        if config.num_hidden_layers > len(stored):  # planning takes milliseconds per layer
            raise DataError(
                f"{place}: num_hidden_layers = {config.num_hidden_layers}, but there are only "
                f"{amount(len(stored), 'weight tensor')}; these files do not belong together"
            )
        form, self.tensors, self.copies = format_of(config), dict[str, StoredTensor](), dict[str, StoredTensor]()
        self.tied, self.problems = form.tied_copies(config), list[str]()
        by_name = {row.huggingface: row for row in form.rows(config, tuple(form.heads))}
        for name, tensor in stored.items():
            published, is_transposed = form.canonical(name, by_name)
            if form.is_ignored(name):
                continue
            if published in self.tied:
                self.copies[published] = tensor
            elif published in self.tensors:
                self.problems.append(f"{name!r} and {self.tensors[published].name!r} are the same parameter")
            else:
                self.tensors[published] = _transposed(tensor) if is_transposed else tensor
        for copy, original in self.tied.items():
            # Some writers store only the second name of the decoder's bias.
            if copy in self.copies and original not in self.tensors:
                self.tensors[original] = self.copies.pop(copy)
        for name in form.defaults.keys() & by_name.keys():
            if form.defaults[name] in self.tensors:
                self.tensors.setdefault(name, self.tensors[form.defaults[name]])
        what = f"{form.name} with {amount(config.num_hidden_layers, 'layer')}"
        unknown = (tensor for name, tensor in self.tensors.items() if name not in by_name)
        self.unknown = [f"{tensor.name}: no place for it in {what}" for tensor in unknown]


def _transposed(tensor: StoredTensor) -> StoredTensor:
    return replace(tensor, shape=tensor.shape[::-1], read=lambda: tensor.read().T)


def format_of(config: ModelConfig) -> PublishedFormat:
    """Return the published format of a configuration's architecture."""
    return FORMATS[architecture_of(config).name]


def _heads_of(contents: _Contents, content: dict[str, Any], config: ModelConfig) -> tuple[list[str], list[str]]:
    """Return the heads that a file holds and, among these, those that the model was saved with.

    Among heads that share a published name, the first class in config.json decides which one a file holds. An unseen
    head was saved only if a class named there has it. If none is left, all were, unless config.json names a known class
    and is not from transformers, whose bare classes name no head.
    """
    form, listed = format_of(config), content.get("architectures")
    classes = [str(name) for name in listed] if isinstance(listed, list) else []
    by_class = {name: heads[0] for heads, name in form.class_names(config) if heads}
    sharing = by_class.get(classes[0]) if classes else None
    chosen = sharing if sharing in form.same_name else next(iter(form.same_name), None)
    present = [
        head
        for head, rows in form.heads.items()
        if (head == chosen or head not in form.same_name)
        and (not rows or any(row.huggingface in contents.tensors for row in rows))  # a head without rows is all tied
    ]
    named = [heads for heads, name in form.class_names(config) if name in classes]
    saved = [head for head in present if head not in form.unseen or any(head in heads for heads in named)]
    return present, saved if saved or (named and "transformers_version" not in content) else present


def _num_labels(contents: _Contents, form: PublishedFormat, heads: Sequence[str]) -> int | None:
    """Return the number of labels of the first labelled head whose dense layer is in the file, or None."""
    ours = {f"heads.{head}.dense.weight" for head in heads}
    names = (row.huggingface for head in heads for row in form.heads[head] if row.ours in ours)
    weight = next((contents.tensors[name] for name in names if name in contents.tensors), None)
    return weight.shape[0] if weight is not None and weight.shape else None


def _rows_of(model: EncoderWithHeads, heads: Sequence[str]) -> list[TensorName]:
    """Return the rows of the parameters that a model has."""
    parameters = dict(model.named_parameters())
    return [row for row in format_of(model.config).rows(model.config, heads) if row.ours in parameters]


def _part(model: EncoderWithHeads, row: TensorName) -> Tensor:
    parameter = model.get_parameter(row.ours)
    return parameter if row.part is None else parameter.chunk(row.num_parts)[row.part]


def _mismatches(rows: list[TensorName], contents: _Contents, planned: EncoderWithHeads) -> list[str]:
    found = []
    for row in rows:
        expected = tuple(_part(planned, row).shape)
        tensor = contents.tensors.get(row.huggingface)
        if tensor is None:
            found.append(f"{row.huggingface}: missing, shape {expected} expected")
        elif tensor.shape != expected:
            found.append(f"{tensor.name}: shape {tensor.shape}, the configuration needs {expected}")
        elif not tensor.is_float:
            found.append(f"{tensor.name}: holds integers or an unknown type; expected floating point")
    return found


@torch.no_grad()
def _copy(model: EncoderWithHeads, rows: list[TensorName], contents: _Contents) -> None:
    problems = []
    for row in rows:
        part = _part(model, row)
        part.copy_(contents.tensors[row.huggingface].read())
        if not bool(torch.isfinite(part).all()):  # in our type: fp64 has larger values
            problems.append(f"{row.huggingface}: holds values that are not finite")
    for copy, tensor in contents.copies.items():
        original = contents.tied[copy]
        if not torch.equal(tensor.read(), contents.tensors[original].read()):
            problems.append(f"{copy} differs from {original}, to which {format_of(model.config).name} ties it")
    if problems:
        raise DataError(f"{next(iter(contents.tensors.values())).path}: " + "; ".join(problems))


def _published_tensors(model: EncoderWithHeads) -> dict[str, Tensor]:
    """Return the tensors to write; parts of a joint projection are copied, because the file stores them separately."""
    heads, form, tensors = tuple(model.heads), format_of(model.config), dict[str, Tensor]()
    has_pooler = not heads or not form.token_heads.issuperset(heads)
    other = form.other_type(model.config, heads)
    prefix, renamed = (f"{other.name}.", other.renamed) if other else (form.prefix, {})
    for row in _rows_of(model, heads):
        if row in form.pooler and not has_pooler:
            continue
        stem, _, end = row.huggingface.rpartition(".")
        inner = row.huggingface.removeprefix(form.prefix)
        name = prefix + inner if heads and inner != row.huggingface else inner
        name = f"{renamed[stem]}.{end}" if stem in renamed else name
        values = _part(model, row).detach().cpu()
        values = values.T if row.huggingface.endswith(form.transposed) else values
        tensors[name] = values.clone() if row.part is not None else values.contiguous()
    return tensors


def _config_content(model: EncoderWithHeads, extra: dict[str, Any]) -> dict[str, Any]:
    own, form, heads = model.config.as_published(), format_of(model.config), tuple(model.heads)
    if clashes := sorted(key for key in extra if key in own and extra[key] != own[key]):
        raise ConfigError(f"extra_config may not change the model's own keys {clashes}")
    first, *others = (row for row in form.class_names(model.config) if set(row[0]) <= set(heads))
    unseen = form.unseen.difference(first[0])
    classes = [first[1], *(name for of_heads, name in others if unseen.intersection(of_heads))]
    dtype = str(model.encoder.word_embeddings.dtype).removeprefix("torch.")
    content = {"architectures": classes, **own, "dtype": dtype}
    if other := form.other_type(model.config, heads):
        content |= {"model_type": other.name, **other.keys}
    if "crf" in heads:  # no other program opens it
        content["model_type"] = f"maskloom_{own['model_type'].removeprefix('maskloom_')}_crf"
    labelled = next((name for name in heads if HEADS[name].is_labelled), None)
    if labelled is not None:
        num_labels: int = model.heads[labelled].num_labels  # pyright: ignore[reportAssignmentType]
        names = {str(index): f"LABEL_{index}" for index in range(num_labels)}
        content["id2label"] = names
        content["label2id"] = {name: int(index) for index, name in names.items()}
        for key in ("id2label", "label2id"):
            if key in extra and len(extra[key]) != num_labels:
                raise ConfigError(
                    f"{key} names {amount(len(extra[key]), 'label')}, but the classifier has {num_labels}"
                )
    return {**content, **extra}


def _config_path(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder; a model is a folder with {CONFIG} and {WEIGHTS}")
    for name in (CONFIG, _GOOGLE_CONFIG):
        if (path := file_inside(folder, name)) is not None:
            return path
    raise DataError(f"{folder}: no {CONFIG} (nor {_GOOGLE_CONFIG}); a model folder has one next to its weights")
