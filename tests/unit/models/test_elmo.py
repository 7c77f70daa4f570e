import numpy as np
import pytest
import torch

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError
from maskloom.layers.characters import Highway
from maskloom.layers.layer_mix import ScalarMix
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import build_model
from maskloom.models.elmo_config import ElmoConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.text.spelled_tokenizer import CONTINUES, SpelledTokenizer

SMALL = {
    "vocab_size": 20,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "intermediate_size": 9,
    "filters": [[1, 4], [2, 5]],
    "initializer_range": 0.5,
}


def encoder_of(**options):
    return build_model(ElmoConfig(**{**SMALL, **options}), (), seed=1).encoder.eval()


def encoded(encoder, text):
    """Return the encoder's output for a text, and which tokens begin a word, counting the marks as words."""
    ids = torch.tensor(SpelledTokenizer.of().encode(text).ids)
    layout = SequenceLayout.from_lengths([len(ids)])
    with torch.no_grad():
        output = encoder.encode_packed(ids, ids * 0, layout, keep_hidden_states=True)
    return output, (ids < CONTINUES) | (ids >= 2 * CONTINUES)


def words_of(encoder, text):
    output, starts = encoded(encoder, text)
    return [state[starts] for state in output.hidden_states]


def test_one_way_is_blind_to_the_right_and_the_other_to_the_left():
    encoder = encoder_of()
    before, after = words_of(encoder, "one two three four"), words_of(encoder, "one two trees four")
    changed, size = 3, 6  # the third word, after the begin mark
    for layer, (old, new) in enumerate(zip(before[1:], after[1:], strict=True), start=1):
        assert torch.equal(old[:changed, :size], new[:changed, :size]), layer
        assert torch.equal(old[changed + 1 :, size:], new[changed + 1 :, size:]), layer
        assert (old[changed:, :size] - new[changed:, :size]).abs().amax(1).min() > 0, layer
        assert (old[: changed + 1, size:] - new[: changed + 1, size:]).abs().amax(1).min() > 0, layer
    assert torch.equal(before[0][:, :size], before[0][:, size:])
    assert torch.equal(before[0][[0, 1, 2, 4]], after[0][[0, 1, 2, 4]])


def test_a_token_is_not_a_type():
    encoder = encoder_of()
    money, river = words_of(encoder, "bank of money"), words_of(encoder, "bank of a river")
    torch.testing.assert_close(money[0][1], river[0][1])
    assert not torch.allclose(money[1][1], river[1][1])


def test_gates_start_where_words_pass_and_memory_is_kept():
    encoder = encoder_of()
    highways = [part for part in encoder.modules() if isinstance(part, Highway)]
    assert len(highways) == 2
    for part in highways:
        assert part.bias.tolist() == [0.0] * part.in_features + [-2.0] * part.in_features
    for layer in encoder.layers:
        size = layer.cell_size
        for name, bias in layer.named_parameters():
            if "bias" in name:
                assert (bias[..., size : 2 * size] == 1).all(), name
                assert not bias[..., :size].any(), name
                assert not bias[..., 2 * size :].any(), name


def test_tasks_learn_different_weights_from_one_pass():
    """Two tasks read the same states of one pass: the one finds what it needs in the embeddings, the other on top."""
    output, _ = encoded(encoder_of(), "some words of the one sentence that both of the tasks read")
    states = torch.stack(output.hidden_states, 1)
    learned = {}
    for wanted in (0, 2):
        mix = ScalarMix(3)
        optimizer = torch.optim.Adam(mix.parameters(), lr=1.0)
        for _ in range(300):
            optimizer.zero_grad()
            (mix(states) - states[:, wanted]).square().mean().backward()
            optimizer.step()
        learned[wanted] = torch.softmax(mix.weights.detach(), 0)
    assert all(weights[wanted] > 0.9 for wanted, weights in learned.items()), learned


def test_vectors_are_the_weighted_layers_and_a_sequence_is_the_largest_of_its_words():
    encoder = encoder_of()
    encoder.mix.weights.data.copy_(torch.tensor([0.3, -0.8, 1.1]))
    encoder.mix.scale.data.fill_(2.5)
    output, starts = encoded(encoder, "several words")
    weights = torch.softmax(encoder.mix.weights, 0)
    mixed = 2.5 * sum(weight * state for weight, state in zip(weights, output.hidden_states, strict=True))
    torch.testing.assert_close(output.last_hidden_state, mixed)
    torch.testing.assert_close(output.pooled[0], mixed[starts][1:-1].amax(0))  # without the sentence's marks


def test_all_bytes_of_a_word_have_its_vector():
    output, starts = encoded(encoder_of(), "a word")
    place = starts.nonzero()[2, 0]
    assert output.last_hidden_state[place : place + 4].unique(dim=0).shape[0] == 1


def test_of_a_long_word_what_fits_counts_and_edges_are_marked():
    encoder = encoder_of(max_characters=8)
    ids = np.array([*range(97, 98), *(CONTINUES + byte for byte in range(98, 108)), 65, 512, CONTINUES + 66])
    characters, places, counts = encoder.spelled(ids, np.array([11, 2, 0, 1, 0]))
    assert characters.tolist() == [
        [258, 97, 98, 99, 100, 101, 102, 259],
        [258, 65, 259, *[260] * 5],
        [258, 256, 259, *[260] * 5],
        [258, 66, 259, *[260] * 5],  # a text that begins inside a word
    ]
    assert places.tolist() == [*[0] * 11, 1, 2, 3]
    assert counts.tolist() == [1, 2, 0, 1, 0]


def test_the_published_sizes_have_the_published_numbers_of_parameters():
    row = ARCHITECTURES["elmo"]
    for name, millions in (("small", 13.6), ("medium", 28.0), ("large", 93.6)):
        with torch.device("meta"):
            model = build_model(row.config_type.of_size(name, row.sizes), ())
        parts = (model.encoder.embeddings.characters, model.encoder.layers)
        number = sum(weights.numel() for part in parts for weights in part.parameters())
        assert round(number / 1e6, 1) == millions, name
        assert name != "large" or number == 93_600_848


def test_a_frozen_encoder_drops_nothing_and_only_mix_and_top_learn():
    model = build_model(ElmoConfig(**SMALL, bilstm=True, hidden_dropout_prob=0.5), ("tagger",), num_labels=2, seed=1)
    model.encoder.freeze()
    model.train()
    assert not any(layer.training for layer in model.encoder.layers)
    assert model.encoder.top.training
    learning = {name for name, weights in model.named_parameters() if weights.requires_grad}
    assert all(name.startswith(("heads.", "encoder.mix.", "encoder.top.")) for name in learning)
    assert {"encoder.mix.weights", "encoder.mix.scale"} < learning


def test_a_folder_takes_a_bilstm_and_a_normalised_mix_and_others_do_not(tmp_path):
    save_model(build_model(ElmoConfig(**SMALL), ("bilm",), seed=1), tmp_path / "elmo")
    added = {"bilstm": True, "mix_layer_norm": True, "mix_dropout": 0.5}
    model, report = load_model(tmp_path / "elmo", heads=("tagger",), num_labels=2, added=added)
    assert model.encoder.mix.layer_norm
    assert model.encoder.mix_dropout.p == 0.5
    assert {name.split(".")[1] for name in report.new_parameters} == {"top", "tagger"}
    save_model(model, tmp_path / "tagger")
    again, report = load_model(tmp_path / "tagger")
    assert again.config == model.config
    assert not report.new_parameters
    sizes = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    save_model(build_model(GptConfig(**sizes), (), seed=1), tmp_path / "gpt")
    with pytest.raises(ConfigError, match=r"mix_dropout: .*gpt has the layout of GPT, which has no such part"):
        load_model(tmp_path / "gpt", added={"mix_dropout": 0.5})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden_size": 11}, "must be even"),
        ({"filters": [[51, 4]]}, "one is 51 characters wide, but words have 50"),
        ({"filters": []}, "filters"),
        ({"hidden_act": "gelu"}, "'relu' or 'tanh'"),
        ({"cell_clip": -1.0}, "cell_clip"),
    ],
)
def test_wrong_sizes_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        ElmoConfig.of_size("tiny", ARCHITECTURES["elmo"].sizes, **wrong)
