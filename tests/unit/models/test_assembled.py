import copy

import pytest
import torch
import torch.nn.functional as F

from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig

CONFIG = BertConfig(vocab_size=99, hidden_size=26, num_hidden_layers=2, num_attention_heads=13, intermediate_size=37)


def test_weights_do_not_depend_on_the_choice_or_order_of_heads():
    one = build_model(CONFIG, heads=("mlm", "nsp"), seed=5).state_dict()
    other = build_model(CONFIG, heads=("classifier", "nsp", "mlm"), num_labels=3, seed=5).state_dict()
    bare = build_model(CONFIG, heads=(), seed=5).state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert all(torch.equal(value, one[name]) for name, value in bare.items())
    changed = build_model(CONFIG, seed=6).state_dict()
    assert not torch.equal(changed["encoder.pooler.dense.weight"], one["encoder.pooler.dense.weight"])


def test_building_leaves_the_global_generator_alone_when_seeded():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    build_model(CONFIG, seed=5)
    assert torch.equal(torch.rand(2), expected)


def test_decoder_is_the_embedding_through_steps_copies_and_moves():
    model = build_model(CONFIG, seed=1)
    for current in (model, copy.deepcopy(model), model.to(torch.float64)):
        assert current.heads["mlm"].decoder is current.encoder.embeddings.word.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    output = model.encoder(torch.randint(0, 99, (2, 5)))
    model.heads["mlm"](output.last_hidden_state).logsumexp(-1).sum().backward()
    optimizer.step()
    assert model.heads["mlm"].decoder is model.encoder.embeddings.word.weight
    assert sum(name.endswith("decoder") for name, _ in model.named_parameters()) == 0


def test_gradient_reaches_the_embedding_from_both_ends():
    model = build_model(CONFIG, heads=("mlm",), seed=1).eval()
    ids = torch.tensor([[3, 4]])
    word = model.encoder.word_embeddings

    def gradient(detach_decoder, detach_input):
        hidden = model.encoder(ids).last_hidden_state
        head = model.heads["mlm"]
        transformed = head.transform(hidden.detach() if detach_input else hidden)
        logits = F.linear(transformed, word.detach() if detach_decoder else word, head.bias)
        return torch.autograd.grad(F.cross_entropy(logits[0], ids[0]), word, allow_unused=True)[0]

    both = torch.autograd.grad(
        F.cross_entropy(model.heads["mlm"](model.encoder(ids).last_hidden_state)[0], ids[0]), word
    )
    parts = gradient(True, False) + gradient(False, True)
    torch.testing.assert_close(both[0], parts)
    assert gradient(True, False)[[3, 4]].any()
    assert not gradient(True, False)[5:].any()


def test_initial_loss_is_that_of_a_uniform_guess():
    model = build_model(BertConfig.of_size("tiny"), seed=1).eval()
    ids = torch.randint(0, 30_522, (8, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = model.encoder(ids)
        logits = model.heads["mlm"](output.last_hidden_state.flatten(0, 1))
        loss = F.cross_entropy(logits, torch.randint(0, 30_522, (128,), generator=torch.Generator().manual_seed(1)))
        pair_loss = F.cross_entropy(model.heads["nsp"](output.pooled), torch.tensor([0, 1] * 4))
    assert 10.3 < loss < 10.6
    assert 0.64 < pair_loss < 0.74


@pytest.mark.parametrize("size", [150, 60, 99])
def test_a_resized_vocabulary_keeps_its_rows_and_its_tie(size):
    model = build_model(CONFIG, seed=1)
    model.heads["mlm"].bias.data.normal_()
    before = model.encoder.word_embeddings.detach().clone()
    bias = model.heads["mlm"].bias.detach().clone()
    model.encoder.word_embeddings.requires_grad_(size == 99)
    model.resize_vocabulary(size, seed=2)
    assert model.encoder.word_embeddings.requires_grad == (size == 99)
    kept = min(size, 99)
    assert model.config.vocab_size == size
    assert torch.equal(model.encoder.word_embeddings[:kept], before[:kept])
    assert torch.equal(model.heads["mlm"].bias[:kept], bias[:kept])
    assert model.heads["mlm"].decoder is model.encoder.word_embeddings
    assert model.heads["mlm"](torch.randn(3, 26)).shape == (3, size)
    if size > 99:
        assert 0 < model.encoder.word_embeddings[99:].abs().max() <= 0.04


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": ("classifier",)}, "num_labels of at least 1; given: None"),
        ({"heads": ("classifier",), "num_labels": 0}, "num_labels of at least 1; given: 0"),
    ],
)
def test_wrong_heads_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        build_model(CONFIG, **arguments)


def test_a_vocabulary_without_room_for_padding_is_refused():
    with pytest.raises(ConfigError, match="vocab_size"):
        build_model(CONFIG, seed=1).resize_vocabulary(0, seed=1)


def test_classifier_has_dropout_in_training_only():
    model = build_model(CONFIG, heads=("classifier",), num_labels=2, seed=1)
    head, pooled = model.heads["classifier"], torch.randn(4, 26)
    assert head.dropout.p == CONFIG.hidden_dropout_prob
    head.eval()
    torch.testing.assert_close(head(pooled), head.dense(pooled))


def test_pretraining_heads_have_no_dropout():
    model = build_model(CONFIG, seed=1).train()
    hidden = torch.randn(4, 26)
    for name in ("mlm", "nsp"):
        assert torch.equal(model.heads[name](hidden), model.heads[name](hidden))


def test_memory_is_asked_for_before_a_model_is_built(monkeypatch):
    needed = 4 * sum(parameter.numel() for parameter in build_model(CONFIG, seed=1).parameters())
    monkeypatch.setattr("maskloom.system.resources.available_memory", lambda: needed)
    build_model(CONFIG, seed=1)
    monkeypatch.setattr("maskloom.system.resources.available_memory", lambda: needed - 1)
    with pytest.raises(
        ConfigError, match=f"the model takes {needed:,} bytes of memory, but only {needed - 1:,} are available"
    ):
        build_model(CONFIG, seed=1)
    with torch.device("meta"):
        build_model(CONFIG)
