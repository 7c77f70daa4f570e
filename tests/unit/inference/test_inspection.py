"""The inspection of a generating model shows what the model computes."""

import pytest
import torch
from tests.unit.inference.generators import READERS, WRITERS, generator_folder
from torch.overrides import TorchFunctionMode

from maskloom.generation.search import Choice, Continuation, Generation
from maskloom.generation.sources import with_forced
from maskloom.inference.inspection import inspect, position_biases, position_vectors
from maskloom.inference.predictor import Predictor
from maskloom.layers.attention import CrossAttention, PackedMemory
from maskloom.layers.positions import sinusoids
from maskloom.layers.sequence_layout import SequenceLayout

SEARCH = Generation(max_tokens=6, beam=3, length_penalty=0.6)
TEXT = "one two three four five six"


@pytest.fixture(scope="module", params=[*WRITERS, *READERS])
def predictor(request, tmp_path_factory):
    return Predictor.load(generator_folder(tmp_path_factory.mktemp("model"), request.param))


def looked_at(predictor, settings=SEARCH):
    return inspect(predictor, predictor.prompt_ids([TEXT], ["text"])[0][0], settings, 0)


def contexts_of(attention, hidden, other):
    """Return the values that an attention module weights and sums, (heads, keys, head size)."""
    if isinstance(attention, CrossAttention):
        values = attention.key_value(other.hidden).chunk(2, 1)[1]
    else:
        values = attention.qkv(hidden).chunk(3, 1)[2]
    return values.unflatten(1, (attention.num_heads, -1)).transpose(0, 1)


@torch.inference_mode()
def test_outputs_are_sums_of_values_by_the_probabilities_that_are_shown(predictor):
    owners = [predictor.model.encoder, *predictor.model.heads.values()]
    seen, hooks = {}, []

    def keep(module, given, output):
        if given[-1] is not None and not isinstance(given[-1], SequenceLayout | PackedMemory):
            return  # a decoding step
        probabilities = module.probabilities(*given)
        context = (probabilities @ contexts_of(module, *given[:2])).transpose(0, 1).flatten(1)
        seen.setdefault(module, []).append((probabilities, module.output(context), output))

    for owner in owners:
        for module in owner.modules():
            if hasattr(module, "probabilities"):
                hooks.append(module.register_forward_hook(keep))
    found = looked_at(predictor)
    for hook in hooks:
        hook.remove()
    shown = [layer for attention in found.maps.values() for layer in attention.probabilities]
    last = [calls[-1] for calls in seen.values()]
    assert len(shown) == len(last) > 1
    for probabilities, expected, output in last:
        assert any(torch.equal(probabilities, layer) for layer in shown)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    for attention in found.maps.values():
        sizes = (len(attention.queries), len(attention.keys))
        assert attention.probabilities.shape[2:] == sizes
        torch.testing.assert_close(
            attention.probabilities.sum(-1), torch.ones(1).expand(*attention.probabilities.shape[:3])
        )
    for name in {"decoder", "self"} & found.maps.keys():
        assert not found.maps[name].probabilities.triu(1).any()


@pytest.mark.parity
@pytest.mark.parametrize("name", ["bart", "t5"])
@torch.no_grad()
def test_attention_is_that_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = generator_folder(tmp_path, name)
    peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    found = looked_at(Predictor.load(folder))
    read = torch.tensor([found.maps["decoder"].keys])
    theirs = peer(torch.tensor([found.ids]), decoder_input_ids=read, output_attentions=True)
    for kind, layers in (
        ("cross", theirs.cross_attentions),
        ("encoder", theirs.encoder_attentions),
        ("decoder", theirs.decoder_attentions),
    ):
        assert (found.maps[kind].probabilities - torch.cat(layers)).abs().max() < 1e-5


@torch.no_grad()
def log_probabilities(predictor, ids, tokens):
    """Return the log-probabilities of the token after the generated `tokens`, by one pass over the whole text."""
    model, marks = predictor.model, [] if predictor.writer is None else [*predictor.target_marks[:-1]]
    source, read = [*ids, *([] if marks else tokens)], [*marks, *tokens]
    layouts = [SequenceLayout.from_lengths([len(part)]) for part in (source, read)]
    source = torch.tensor(source)
    hidden = model.encoder.encode_packed(source, torch.zeros_like(source), layouts[0]).last_hidden_state
    if marks:
        head = model.heads["decoder"]
        logits = head.logits(head(torch.tensor(read), layouts[1], hidden, layouts[0]))
    else:
        logits = model.vocabulary_head(hidden)
        logits[:, sorted(predictor.tokenizer.vocabulary.special_ids - {predictor.end_token})] = -torch.inf
    return logits[-1].log_softmax(-1)


@pytest.mark.parametrize(
    "settings", [SEARCH, Generation(max_tokens=6, temperature=0.0), Generation(6, temperature=0.9, seed=2)]
)
def test_steps_lead_to_the_text_that_was_found(predictor, settings):
    found, end = looked_at(predictor, settings), predictor.end_token
    following, forces_end = [*found.steps[1:], None], hasattr(predictor.model.config, "forced_eos_token_id")
    for step, later in zip(found.steps, following, strict=True):
        for text, candidates in zip(step.texts, step.candidates, strict=True):
            if forces_end and len(text.token_ids) == settings.max_tokens - 1:
                assert candidates == [(end, 0.0)]
                continue
            expected = log_probabilities(predictor, found.ids, text.token_ids)
            for token, value in candidates:
                assert value == pytest.approx(float(expected[token]), abs=1e-4)
            assert candidates[0][1] == pytest.approx(float(expected.max()), abs=1e-4)
        grown = [[*step.texts[place].token_ids, token] for place, token in step.taken if token != end]
        assert later is None or grown == [text.token_ids for text in later.texts]
        assert {token for place, token in step.taken} <= {token for row in step.candidates for token, _ in row}
    if found.settings.beam:
        ended = [text for step in found.steps for text in step.ended]
        assert max(ended, key=settings.score) == found.found
    else:
        (*_, last) = found.steps
        grown = [*last.texts[0].token_ids, last.taken[0][1]]
        assert grown == [*found.found.token_ids, *([end] if found.found.is_ended else [])]
    plain = predictor.generate([TEXT], settings)
    assert plain == [predictor.shown(found.found, settings)]


class Reads(TorchFunctionMode):
    """Counts the reads that wait for the device."""

    number = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.number += function in (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.numpy, torch.Tensor.cpu)
        return function(*args, **(kwargs or {}))


def test_a_step_is_noted_by_one_read_with_what_was_taken_beyond_the_likeliest():
    values = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    order = values.argsort(1, descending=True).tolist()
    steps = []
    choice = Choice(None, (), SEARCH, [0], steps)
    with Reads() as reads:
        choice.note([Continuation()] * 3, values, [(0, order[0][0]), (0, order[0][49]), (2, order[2][8])], [])
    assert reads.number == 1
    (step,) = steps
    tokens = [[*row[:6], *more] for row, more in zip(order, ([order[0][49]], [], [order[2][8]]), strict=True)]
    assert [[token for token, _ in row] for row in step.candidates] == tokens
    for row, found in zip(values, step.candidates, strict=True):
        assert all(value == float(row[token]) for token, value in found)


def test_rows_of_cross_attention_are_the_tokens_that_are_written(tmp_path):
    predictor = Predictor.load(generator_folder(tmp_path, "bart"))
    found = looked_at(predictor, Generation(max_tokens=3, min_tokens=3, beam=2))
    *begin, end = predictor.target_marks
    assert found.maps["cross"].queries == [*begin[1:], *found.found.token_ids, *([end] * found.found.is_ended)]
    assert found.maps["decoder"].keys == [begin[0], *found.maps["cross"].queries[:-1]]


def test_a_forced_first_token_is_read_by_the_decoder_that_is_shown(tmp_path):
    """Regression: the maps were those of the token that a configuration replaces in generated texts."""
    forced = 7  # a word: the marks of the vocabulary come first
    predictor = Predictor.load(generator_folder(tmp_path, "bart", forced_bos_token_id=forced))
    found = looked_at(predictor, Generation(max_tokens=4, min_tokens=4, temperature=0.0))
    assert found.maps["decoder"].keys == [predictor.target_marks[0], forced, *found.found.token_ids[:-1]]
    assert with_forced([3], predictor.model.config) == [3, forced]  # as in a Marian model
    (step, *_) = found.steps
    read = torch.tensor([predictor.target_marks[0], forced])
    layouts = [SequenceLayout.from_lengths([len(part)]) for part in (found.ids, read)]
    source, head = torch.tensor(found.ids), predictor.model.heads["decoder"]
    with torch.no_grad():
        hidden = predictor.model.encoder.encode_packed(source, torch.zeros_like(source), layouts[0]).last_hidden_state
        logits = head.logits(head(read, layouts[1], hidden, layouts[0]))[-1].log_softmax(-1)
    assert step.candidates[0][0][1] == pytest.approx(float(logits.max()), abs=1e-4)


def test_positions_are_those_of_the_model(tmp_path):
    models = {
        name: Predictor.load(generator_folder(tmp_path / name, name)).model
        for name in ("transformer", "bart", "t5", "gpt", "bert")
    }
    (name, vectors), *others = position_vectors(models["transformer"], 20).items()
    assert (name, others) == ("Sinusoids, encoder and decoder", [])
    assert torch.equal(vectors, sinusoids(torch.arange(20), 16))
    tables = position_vectors(models["bart"], 500)
    assert [*tables] == ["Learned vectors, encoder", "Learned vectors, decoder"]
    assert torch.equal(tables["Learned vectors, decoder"], models["bart"].heads["decoder"].positions.table.weight[2:])
    assert position_vectors(models["t5"], 20) == position_vectors(models["bert"], 20) == {}
    (table,) = position_vectors(models["gpt"], 7).values()
    assert torch.equal(table, models["gpt"].encoder.embeddings.position.weight[:7])
    biases, weights = position_biases(models["t5"], 3), models["t5"].encoder.relative_bias.weight
    assert {name: tuple(values.shape) for name, values in biases.items()} == {"encoder": (4, 7), "decoder": (4, 4)}
    assert torch.equal(biases["encoder"], weights[[3, 2, 1, 0, 17, 18, 19]].T)
    assert torch.equal(biases["decoder"], models["t5"].heads["decoder"].relative_bias.weight[[3, 2, 1, 0]].T)
    assert position_biases(models["gpt"], 3) == {}
