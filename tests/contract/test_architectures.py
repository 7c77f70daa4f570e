"""The contract of every architecture in the table."""

import copy

import pytest
import torch
from tests.unused_tensors import unused_tensors

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError
from maskloom.generation.search import Decoder
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import blocks_of, build_model
from maskloom.models.heads import HEADS

NUM_LABELS = 3

SMALL = {
    "bert": {
        "vocab_size": 99,
        "hidden_size": 39,
        "num_hidden_layers": 3,
        "num_attention_heads": 13,
        "intermediate_size": 37,
        "max_position_embeddings": 41,
    },
    "gpt": {
        "vocab_size": 99,
        "hidden_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 160,
        "max_position_embeddings": 41,
    },
    "transformer": {
        "vocab_size": 99,
        "hidden_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 37,
        "max_position_embeddings": 41,
    },
    "marian": {
        "vocab_size": 99,
        "hidden_size": 40,
        "num_hidden_layers": 3,
        "num_decoder_layers": 2,
        "num_attention_heads": 5,
        "intermediate_size": 37,
        "max_position_embeddings": 41,
    },
    "bart": {
        "vocab_size": 99,
        "hidden_size": 39,
        "num_hidden_layers": 3,
        "num_decoder_layers": 2,
        "num_attention_heads": 13,
        "intermediate_size": 37,
        "max_position_embeddings": 41,
    },
    "t5": {
        "vocab_size": 99,
        "hidden_size": 39,
        "head_size": 7,
        "initializer_factor": 0.5,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 37,
        "max_position_embeddings": 41,
    },
    **{
        name: {"vocab_size": 99, "hidden_size": 38, "num_hidden_layers": 3, "max_position_embeddings": 41}
        for name in ("rnn", "lstm", "gru")
    },
    "elmo": {
        "vocab_size": 99,
        "hidden_size": 38,
        "num_hidden_layers": 3,
        "intermediate_size": 23,
        "max_position_embeddings": 41,
        "filters": [[1, 5], [3, 7]],
        "initializer_range": 0.5,
    },
}


PAIRED = {"hidden_size": 40, "num_attention_heads": 5}
OPTIONS = {
    "bert pre_norm": {"pre_norm": True},
    "bert gated": {"gated": True},
    "bert rotary": {"rotary": True, **PAIRED},
    "bert narrow embeddings": {"embedding_size": 12},
    "bert causal with all": {"causal": True, "pre_norm": True, "gated": True, "rotary": True, **PAIRED},
    "bert rotary narrow": {"rotary": True, "embedding_size": 50, **PAIRED},
    "gpt pre_norm": {"pre_norm": True},
    "bart scaled": {"scale_embedding": True, "activation_dropout": 0.1, "decoder_start_token_id": 0},
    "transformer narrow keys": {"key_size": 3, "num_hidden_layers": 2},
    "transformer restricted": {"attention_neighborhood": 3},
    "transformer pre_norm": {"pre_norm": True, "learned_positions": True},
    "rnn sigmoid": {"nonlinearity": "sigmoid", "pooling": "max"},
    "rnn causal": {"causal": True, "pooling": "mean"},
    "lstm causal": {"causal": True, "pooling": "attention", "attention_energy": "bilinear", "attention_query": "c"},
    "lstm c": {"pooling": "attention", "attention_energy": "dot", "attention_query": "c"},
    "lstm h": {"pooling": "attention", "attention_energy": "scaled_dot", "attention_query": "h"},
    "gru causal": {"causal": True, "reset": "before", "pooling": "sum"},
    "gru learned": {"pooling": "attention", "attention_energy": "mlp", "attention_query": "learned"},
    "elmo tanh": {"hidden_act": "tanh", "adds_input": False, "num_highways": 0, "max_characters": 12},
    "elmo bilstm": {"bilstm": True, "mix_dropout": 0.5, "cell_clip": 0.1, "projection_clip": 0.0},
    "t5 gated": {"gated": True, "hidden_act": "gelu_new", "tie_word_embeddings": False},
}


@pytest.fixture(params=[*ARCHITECTURES, *OPTIONS])
def row(request):
    return request.param


@pytest.fixture
def architecture(row):
    return ARCHITECTURES[row.partition(" ")[0]]


@pytest.fixture
def config(architecture, row):
    return architecture.config_type(**{**SMALL[architecture.name], **OPTIONS.get(row, {})})


@pytest.fixture
def heads(architecture, config):
    pairs = ("nsp",) if config.num_segments > 1 else ()
    return (architecture.vocabulary_head, *pairs, "classifier")


@pytest.fixture
def own_model(config, heads):
    """Return a model whose weights and gradients a test may change."""
    return build_model(config, heads, num_labels=NUM_LABELS, seed=1)


@pytest.fixture(scope="module")
def built():
    """Return the models of all rows, which tests only read."""
    return {}


@pytest.fixture
def model(row, config, heads, built):
    if row not in built:
        built[row] = build_model(config, heads, num_labels=NUM_LABELS, seed=1)
    return built[row].train()


def batch(lengths=(41, 1, 17, 16, 2)):
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    ids = torch.randint(0, 99, mask.shape, generator=generator)
    return ids, torch.randint(0, 2, mask.shape, generator=generator), mask


def logits(model, output):
    read = {"tokens": output.last_hidden_state, "pooled": output.pooled}
    return {name: head(read[HEADS[name].reads]) for name, head in model.heads.items()}


def test_fits_its_key(architecture):
    assert ARCHITECTURES[architecture.name] is architecture


def test_shapes(model, config, heads):
    ids, segments, mask = batch()
    output = model.encoder(ids, segments, mask, keep_hidden_states=True)
    width = config.hidden_size
    assert output.last_hidden_state.shape == (5, 41, width)
    assert output.pooled.shape == (5, width)
    assert [tuple(state.shape) for state in output.hidden_states] == [(5, 41, width)] * (config.num_hidden_layers + 1)
    shapes = {name: tuple(values.shape) for name, values in logits(model, output).items()}
    expected = {heads[0]: (5, 41, 99), "nsp": (5, 2), "classifier": (5, NUM_LABELS)}
    assert shapes == {name: expected[name] for name in heads}


def test_blocks_are_the_repeated_parts(model, config):
    decoder = [*getattr(model.encoder.top, "layers", [])]
    assert blocks_of(model) == [*model.encoder.layers, *decoder]
    assert len(model.encoder.layers) == config.num_hidden_layers
    assert len({type(block) for block in blocks_of(model)}) == 1


@torch.no_grad()
def test_a_causal_encoder_and_only_that_hides_what_follows(model, config):
    model.eval()
    ids, segments, _ = batch((17, 17))
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % 99
    before, after = (model.encoder(part, segments).last_hidden_state for part in (ids, changed))
    assert torch.equal(before[:, :-1], after[:, :-1]) == config.is_causal
    assert not torch.equal(before[:, -1], after[:, -1])


@torch.no_grad()
def test_segments_count_where_a_configuration_has_some_and_only_there(model, config):
    ids, segments, mask = batch()
    one, other = (model.eval().encoder(ids, part, mask).pooled for part in (segments, 1 - segments))
    assert torch.equal(one, other) == (config.num_segments < 2)


@torch.no_grad()
def test_a_causal_encoder_and_only_that_generates(model, config):
    if not config.is_causal:
        with pytest.raises(ConfigError, match="only a left-to-right model"):
            Decoder(model.eval(), 8)
        return
    texts = [[5, 7, 1, 98], [3, 4, 9, 17, 60]]
    decoder = Decoder(model.eval(), 8)
    found = [decoder.start([text[:2] for text in texts])]
    found += [decoder.step(torch.tensor([text[place] for text in texts])) for place in (2, 3)]
    for row, text in enumerate(texts):
        whole = model.vocabulary_head(model.encoder(torch.tensor([text[:4]])).last_hidden_state[0])
        torch.testing.assert_close(torch.stack(found)[:, row], whole[1:], rtol=0, atol=1e-5)


@torch.no_grad()
def test_padding_and_neighbours_change_nothing(model):
    model.eval()
    ids, segments, mask = batch()
    together = model.encoder(ids, segments, mask)
    refilled = [torch.where(mask, part, fill) for part, fill in ((ids, 7), (segments, 1))]
    assert torch.equal(together.last_hidden_state, model.encoder(*refilled, mask).last_hidden_state)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model.encoder(ids[row : row + 1, :length], segments[row : row + 1, :length])
        assert (together.last_hidden_state[row, :length] - alone.last_hidden_state[0]).abs().max() < 1e-6
        assert (together.pooled[row] - alone.pooled[0]).abs().max() < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("shape", [(2, 5), (2, 0), (0, 5)], ids=str)
def test_batches_without_tokens_have_all_shapes(model, config, shape):
    output = model.eval().encoder(torch.ones(shape).long(), None, torch.zeros(shape), keep_hidden_states=True)
    assert [state.shape for state in output.hidden_states] == [(*shape, config.hidden_size)] * (
        config.num_hidden_layers + 1
    )
    assert output.pooled.shape == (shape[0], config.hidden_size)
    assert not output.pooled.any()


@torch.no_grad()
def test_order_of_sequences_changes_nothing(model):
    model.eval()
    ids, segments, mask = batch()
    order = torch.tensor([3, 0, 4, 2, 1])
    output, shuffled = model.encoder(ids, segments, mask), model.encoder(ids[order], segments[order], mask[order])
    assert (output.pooled[order] - shuffled.pooled).abs().max() < 1e-6


def test_same_seed_same_draws(own_model):
    ids, segments, mask = batch((17, 1, 9))
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        own_model.zero_grad()
        output = own_model.train().encoder(ids, segments, mask)
        sum(values.logsumexp(-1).sum() for values in logits(own_model, output).values()).backward()
        results.append([parameter.grad.clone() for parameter in own_model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_dropout_differs_between_calls_in_training_only(model):
    ids, segments, mask = batch((17, 1, 9))
    model.train()
    assert not torch.equal(model.encoder(ids, segments, mask).pooled, model.encoder(ids, segments, mask).pooled)
    model.eval()
    assert torch.equal(model.encoder(ids, segments, mask).pooled, model.encoder(ids, segments, mask).pooled)


def test_gradient_reaches_every_parameter(own_model):
    ids, segments, mask = batch()
    output = own_model.encoder(ids, segments, mask)
    sum((values**2).sum() for values in logits(own_model, output).values()).backward()
    for name, parameter in own_model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_save_and_load_keep_every_bit(own_model, tmp_path):
    for parameter in own_model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    save_model(own_model, tmp_path)
    back, report = load_model(tmp_path)
    assert not report.new_parameters
    assert not unused_tensors(tmp_path, report)
    assert list(back.heads) == list(own_model.heads)
    assert back.config == own_model.config
    for name, value in own_model.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    ids, segments, mask = batch()
    assert torch.equal(
        own_model.eval().encoder(ids, segments, mask).pooled, back.eval().encoder(ids, segments, mask).pooled
    )


def test_gathered_head_equals_head_on_all_positions(model):
    model.eval()
    ids, segments, mask = batch()
    layout = SequenceLayout.from_lengths(mask.sum(1))
    output = model.encoder.encode_packed(ids[mask], segments[mask], layout)
    positions, labels = torch.tensor([0, 3, 40, 41, 60]), torch.tensor([5, 1, 98, 0, 7])
    head = model.vocabulary_head
    gathered = head(output.last_hidden_state[positions])
    every = torch.full((layout.num_tokens,), -100)
    every[positions] = labels
    loss = torch.nn.functional.cross_entropy(gathered, labels)
    full = torch.nn.functional.cross_entropy(head(output.last_hidden_state), every)
    torch.testing.assert_close(loss, full, rtol=1e-6, atol=0)


def test_a_copy_is_independent_and_tied(model):
    other = copy.deepcopy(model)
    other.encoder.word_embeddings.data.zero_()
    assert model.encoder.word_embeddings.any()
    assert other.vocabulary_head.decoder is other.encoder.word_embeddings


def test_meta_device_costs_nothing(config, heads):
    with torch.device("meta"):
        model = build_model(config, heads, num_labels=NUM_LABELS)
    assert all(parameter.is_meta for parameter in model.parameters())
