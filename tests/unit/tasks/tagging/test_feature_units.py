import numpy as np
import pytest

from maskloom.data.batch import FeatureBatch
from maskloom.data.feature_files import FeatureFile, FeaturePlan, FeatureWriter
from maskloom.tasks.encoding import encode_examples
from maskloom.tasks.examples import Example, ReadExamples, ReadingReport
from maskloom.tasks.kinds import make_task
from maskloom.tasks.tagging.encoding import Context, encode_sentences
from maskloom.tasks.tagging.features import FeatureSentences, all_tokens, chain_words, row_counts, sentence_words
from maskloom.tasks.tagging.reading import TaggedSentence
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.word_vectors import write_vectors
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = [f"w{number}" for number in range(30)]
TOKENIZER = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##x"]), max_length=40)
OPTIONS = {"layers": "last", "lstm_size": 8, "lstm_layers": 1, "dropout": 0.0, "precision": "float32"}


def sentences(*lengths, document=0):
    """Return sentences of consecutive words; every third word has a second piece."""
    found, place = [], 0
    for number, length in enumerate(lengths):
        words = tuple(f"w{place + n}" + ("x" if n % 3 == 0 else "") for n in range(length))
        found.append(TaggedSentence(words, tuple("O" for _ in words), number + 1, document))
        place += length
    return found


def encoded(*lengths: int, max_length: int = 40, context: Context = "sentence"):
    return encode_sentences(
        sentences(*lengths), TOKENIZER, max_length=max_length, labels=("O", "B-X", "I-X"), context=context
    )


def test_words_have_their_vectors_as_they_are_then_in_lower_case_else_zeros(tmp_path):
    vectors = np.arange(1.0, 7.0, dtype=np.float32).reshape(3, 2)
    write_vectors(tmp_path / "v", ["w0", "W1", "w2"], vectors, "text")
    task = make_task(
        "tagging", ("O", "B-X", "I-X"), settings={"features": {**OPTIONS, "word_vectors": str(tmp_path / "v")}}
    )
    assert task.head_options["bilstm_tagger"]["word_size"] == 2
    assert "word_vectors" not in task.head_options["bilstm_tagger"]
    given = [TaggedSentence(words, None, 1) for words in (("w0", "W2", "w1"), ("W1", "w2x"))]
    data = ReadExamples(given, ReadingReport(tmp_path / "x"))
    found = task.encode(data, TOKENIZER, 40)
    assert found.notes(tmp_path / "x") == [f"{tmp_path / 'x'}: 2 of 5 words have no word vector and get zeros"]
    batch = found.batch(np.array([1, 0]))
    assert batch.word_vectors.tolist()[:4] == [[0, 0], [3, 4], [0, 0], [0, 0]]  # [CLS], W1, w2x of two pieces
    assert batch.word_vectors[batch.lengths[0] :].tolist() == [[0, 0], [1, 2], [5, 6], [0, 0], [0, 0]]


def first_pieces(length, start=0):
    return [TOKENIZER.vocabulary.ids[f"w{start + number}"] for number in range(length)]


def test_whole_sentences_give_their_first_pieces():
    data = encoded(3, 1, 4)
    for units in (chain_words(data), sentence_words(data)):
        batch, positions, counts = units.positions(np.array([2, 0]))
        assert batch.token_ids[positions].tolist() == first_pieces(4, start=4) + first_pieces(3)
        assert counts.tolist() == [4, 3]
        assert units.lengths.tolist() == data.lengths.tolist()


def test_every_word_of_a_split_sentence_is_taken_once_and_in_order():
    data = encoded(2, 20, 3, max_length=9)
    assert len(data) > 5
    units = sentence_words(data)
    assert len(units.lengths) == 3
    assert int(units.lengths.sum()) == int(data.lengths.sum())
    batch, positions, counts = units.positions(np.array([1, 2, 0]))
    expected = first_pieces(20, start=2) + first_pieces(3, start=22) + first_pieces(2)
    assert batch.token_ids[positions].tolist() == expected
    assert counts.tolist() == [20, 3, 2]


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_the_words_of_chains_are_those_of_the_batch(context):
    data = encoded(2, 20, 3, max_length=12, context=context)
    units = chain_words(data)
    indices = np.arange(len(data))[::-1]
    batch, positions, counts = units.positions(indices)
    chains = data.batch(indices).chains
    assert positions.tolist() == np.flatnonzero(chains >= 0).tolist()
    for number, index in enumerate(indices.tolist()):
        alone = data.batch(np.array([index])).chains
        assert alone is not None
        assert counts[number] == (alone >= 0).sum()
    assert batch.lengths.tolist() == data.lengths[indices].tolist()


def test_texts_give_all_tokens():
    texts = [Example("w1 w2", "w3", None, 1), Example("", None, None, 2)]
    units = all_tokens(encode_examples(texts, TOKENIZER, max_length=20))
    _, positions, counts = units.positions(np.array([1, 0]))
    assert counts.tolist() == [2, 6]
    assert positions.tolist() == list(range(8))


def test_the_sum_follows_the_text_and_the_windows():
    sums = {
        row_counts(units)[1]
        for units in (
            chain_words(encoded(3, 4)),
            chain_words(encoded(4, 3)),
            chain_words(encoded(3, 20, max_length=9)),
            chain_words(encoded(3, 20, max_length=10)),
            sentence_words(encoded(3, 20, max_length=10)),
        )
    }
    assert len(sums) == 5
    counts, one = row_counts(chain_words(encoded(3, 4)))
    assert counts.tolist() == [3, 4]
    assert one == row_counts(chain_words(encoded(3, 4)))[1]


def test_batches_bring_the_vectors_of_their_words(tmp_path):
    data = encoded(2, 20, 3, max_length=12)
    units = chain_words(data)
    counts, _ = row_counts(units)
    writer = FeatureWriter(tmp_path / "features", FeaturePlan("m", "s", ("4",), 1, counts))
    for index in range(len(data)):
        batch, positions, _ = units.positions(np.array([index]))
        writer.write(np.array([index]), batch.token_ids[positions].astype(np.float32)[:, None, None])
    writer.finish()
    joined = FeatureSentences(**vars(data), features=FeatureFile.open(tmp_path / "features"))
    indices = np.array([3, 0, 1])
    batch = joined.batch(indices)
    assert isinstance(batch, FeatureBatch)
    assert batch.features[:, 0, 0].tolist() == batch.token_ids[batch.chains >= 0].tolist()
    for part in batch.split(2):
        assert isinstance(part, FeatureBatch)
        assert part.features[:, 0, 0].tolist() == part.token_ids[part.chains >= 0].tolist()
    assert joined.account() == data.account()


def test_a_task_on_features_names_its_head_and_what_it_takes():
    labels = ("O", "B-X", "I-X")
    task = make_task("tagging", labels, settings={"features": OPTIONS})
    assert (task.heads, task.freezes_encoder) == (("bilstm_tagger",), True)
    assert task.head_options["bilstm_tagger"] == {key: OPTIONS[key] for key in OPTIONS if key != "precision"}
    assert task.published_config["maskloom_heads"] == task.head_options
    assert task.settings.features.model_dump() == {**OPTIONS, "word_vectors": None}
    with_crf = make_task("tagging", labels, settings={"features": OPTIONS, "crf": True})
    assert with_crf.heads == ("bilstm_tagger", "crf")
    assert vars(with_crf.objective) == vars(make_task("tagging", labels, settings={"crf": True}).objective)
    assert not make_task("tagging", labels).freezes_encoder
