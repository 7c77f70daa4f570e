import numpy as np
import pytest

from maskloom.tasks.tagging.encoding import encode_sentences
from maskloom.tasks.tagging.reading import TaggedSentence
from maskloom.tasks.tagging.splitting import UNKNOWN_TRAINING
from maskloom.tasks.tagging.task import (
    column_lines,
    decide_tags,
    decode_tags,
    tag_ids,
    tag_logits,
)
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(
    Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef", "##b"]), max_length=32
)
LABELS = ("O", "B-X", "I-X")


def sentence(text, **more):
    return TaggedSentence(tuple(text.split()), None, 1, **more)


def outputs_of(encoded, *tags, sure=4.0):
    """Return rows that give the words of all sentences the given tags, and every other token another tag."""
    wanted, rows = iter(tags), []
    for first, end, first_word, end_word in encoded.windows.tolist():
        values = np.full((end - first + 2, len(LABELS)), 0.0, dtype=np.float32)
        values[:, 2] = 9.0
        for word in range(first_word, end_word):
            values[encoded.word_starts[word] - first + 1] = np.where(
                np.arange(3) == LABELS.index(next(wanted)), sure, 0
            )
        rows.append(values)
    return rows


def test_decisions_are_read_at_first_pieces():
    encoded = encode_sentences([sentence("ab c"), sentence("d")], TOKENIZER, max_length=9)
    outputs = outputs_of(encoded, "B-X", "I-X", "O")
    assert [part.tolist() for part in decide_tags(LABELS, encoded, outputs)] == [[1, 2], [0]]
    assert encoded.labels is None


def test_entities_have_text_places_and_probability():
    text = "a  ab, c"
    given = TaggedSentence.of_text(text, UNKNOWN_TRAINING.spans(text), 1)
    encoded = encode_sentences([given], TOKENIZER, max_length=9)
    (found,) = decode_tags(LABELS, 1.0, encoded, outputs_of(encoded, "B-X", "I-X", "O", "B-X"))
    probability = np.exp(4) / (np.exp(4) + 2)
    assert found["words"] == ["a", "ab", ",", "c"]
    assert found["tags"] == ["B-X", "I-X", "O", "B-X"]
    first, second = found["entities"]
    assert first.pop("probability") == pytest.approx(probability**2)
    assert first == {"text": "a  ab", "type": "X", "start": 0, "end": 5, "words": [0, 2]}
    assert second.pop("probability") == pytest.approx(probability)
    assert second == {"text": "c", "type": "X", "start": 7, "end": 8, "words": [3, 4]}


def test_entities_do_not_reach_over_sentences_and_ill_formed_tags_are_read_as_conlleval_does():
    encoded = encode_sentences([sentence("a b"), sentence("c d")], TOKENIZER, max_length=9)
    found = decode_tags(LABELS, 1.0, encoded, outputs_of(encoded, "O", "B-X", "I-X", "O"))
    assert [[entity["words"] for entity in part["entities"]] for part in found] == [[[1, 2]], [[0, 1]]]


def test_a_temperature_takes_confidence_and_changes_no_tag():
    encoded = encode_sentences([sentence("a b")], TOKENIZER, max_length=9)
    outputs = outputs_of(encoded, "O", "B-X")
    cold, warm = (decode_tags(LABELS, value, encoded, outputs)[0] for value in (1.0, 2.0))
    assert warm["tags"] == cold["tags"]
    assert warm["entities"][0]["probability"] == pytest.approx(np.exp(2) / (np.exp(2) + 2))
    assert tag_logits(3, encoded, outputs).tolist() == [[4, 0, 0], [0, 4, 0]]


def test_words_of_a_split_sentence_come_back_in_order():
    encoded = encode_sentences([sentence("a b c d e f")], TOKENIZER, max_length=5)
    assert len(encoded) > 1
    tags = ["B-X", "I-X", "O", "B-X", "O", "B-X"]
    (found,) = decode_tags(LABELS, 1.0, encoded, outputs_of(encoded, *tags))
    assert found["tags"] == tags


def test_plain_tags_have_places_and_probabilities_word_by_word():
    text = "a  ab,"
    given = TaggedSentence.of_text(text, UNKNOWN_TRAINING.spans(text), 1)
    encoded = encode_sentences([given], TOKENIZER, max_length=9)
    outputs = outputs_of(encoded, "B-X", "O", "I-X")
    (found,) = decode_tags(("NOUN", "VERB", "X"), 1.0, encoded, outputs, names_entities=False)
    assert found.pop("tag_probabilities") == pytest.approx([np.exp(4) / (np.exp(4) + 2)] * 3)
    assert found == {"words": ["a", "ab", ","], "tags": ["VERB", "NOUN", "X"], "spans": [[0, 1], [3, 5], [5, 6]]}


def test_the_best_path_decides_where_rows_hold_one():
    marginals = np.log([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]])
    path = np.array([[-30.0, 0.0, -30.0], [0.0, -30.0, -30.0]])
    rows = np.concatenate([marginals, path], axis=1)
    assert tag_ids(rows, 3).tolist() == [1, 0]
    assert tag_ids(marginals, 3).tolist() == [0, 1]


@pytest.mark.parametrize("average", ["logits", "probabilities"])
def test_averaged_paths_are_a_vote_and_the_likelier_tag_wins_a_tie(average):
    def rows(path, marginals):
        return np.concatenate([np.log([marginals]), np.where(np.arange(3) == path, 0.0, -30.0)[None]], axis=1)

    def mean(*members):
        stacked = np.stack(members)
        if average == "logits":
            return stacked.mean(axis=0)
        shares = np.exp(stacked) / np.exp(stacked).sum(axis=2, keepdims=True)
        return np.log(shares.mean(axis=0))

    one, other = rows(0, [0.4, 0.3, 0.3]), rows(1, [0.05, 0.9, 0.05])
    assert tag_ids(mean(one, one, other), 3).tolist() == [0]
    assert tag_ids(mean(one, other), 3).tolist() == [1]
    assert tag_ids(mean(rows(0, [0.9, 0.05, 0.05]), rows(1, [0.4, 0.5, 0.1])), 3).tolist() == [0]


def test_lines_in_columns():
    plain = sentence("a b")
    assert column_lines(plain, ["O", "B-X"]) == ["a O", "b B-X", ""]
    columns = (("a", "N", "O"), ("b", "V", "I-X"))
    opening = ("-DOCSTART-", "-X-", "O")
    given = sentence("a b", columns=columns, opening=opening)
    assert column_lines(given, ["O", "B-X"]) == ["-DOCSTART- -X- O O", "", "a N O O", "b V I-X B-X", ""]
    tabbed = sentence("a", columns=(("a", "O"),), separator="\t")
    assert column_lines(tabbed, ["O"]) == ["a\tO\tO", ""]
    assert column_lines(TaggedSentence(("a b", "c"), None, 1), ["O", "O"]) == ["a b\tO", "c\tO", ""]
