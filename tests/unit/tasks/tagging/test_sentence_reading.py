import gzip
import json

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.metrics.entities import entities_of
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.settings import TaggingSettings
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.tagging.reading import find_scheme, iterate_sentences, layout_of_sentences
from maskloom.tasks.tagging.schemes import tags_of_task
from maskloom.tasks.tagging.task import tagging_task

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

Rome NNP B-NP B-LOC


"""


@pytest.fixture
def write(tmp_path):
    def write(content, name="data.conll"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def read_sentences(path, options=None, *, scheme="auto", target="iob2", needs_label=True):
    settings = TaggingSettings(scheme=scheme, trained_scheme=target)
    return KINDS["tagging"].read(path, options, settings, needs_label=needs_label)


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_columns_are_read_with_lines_and_documents(write):
    path = write(CONLL)
    data = read_sentences(path)
    assert [(s.words, s.tags, s.line, s.document) for s in data.examples] == [
        (("EU", "rejects"), ("B-ORG", "O"), 3, 0),
        (("Peter", "Blackburn"), ("B-PER", "I-PER"), 6, 0),
        (("Rome",), ("B-LOC",), 11, 1),
    ]
    assert find_scheme(path) == "iob2"
    assert data.examples[1].line_of(1) == 7
    assert data.examples[0].opening == data.examples[2].opening == ("-DOCSTART-", "-X-", "-X-", "O")
    assert data.examples[1].opening is None
    assert data.examples[0].columns == (("EU", "NNP", "B-NP", "B-ORG"), ("rejects", "VBZ", "B-VP", "O"))
    assert (data.report.num_rows, data.report.num_kept) == (3, 3)


def test_runs_of_spaces_and_tabs_part_columns_of_a_file_in_spaces(write):
    data = read_sentences(write("EU  NNP  B-ORG\n  rejects\tVBZ   O \t\n\na\u00a0b NN O\n-DOCSTART-s NN O\n"))
    assert [s.words for s in data.examples] == [("EU", "rejects"), ("a\u00a0b", "-DOCSTART-s")]
    assert data.examples[0].columns == (("EU", "NNP", "B-ORG"), ("rejects", "VBZ", "O"))


@pytest.mark.parametrize(
    "content",
    [
        CONLL.replace(" ", "\t"),
        CONLL.replace("\n", "\r\n"),
        "\ufeff" + CONLL,
        CONLL.rstrip("\n"),
        CONLL.replace(" ", "   "),
        CONLL.replace("\n\n", "\n \t\n"),
        CONLL.replace("O\n\n", "O\n"),
    ],
    ids=["tabs", "crlf", "byte-order mark", "no last line end", "wide", "blanks in blank lines", "close"],
)
def test_variants_of_columns_read_the_same(write, content):
    if content == CONLL.replace("O\n\n", "O\n"):
        # the blank line after -DOCSTART- may be missing; put back the first sentence's, removed along with it
        content = content.replace("rejects VBZ B-VP O\n", "rejects VBZ B-VP O\n\n")
    found = read_sentences(write(content)).examples
    assert [(s.words, s.tags, s.document) for s in found] == [
        (s.words, s.tags, s.document) for s in read_sentences(write(CONLL, "plain.conll")).examples
    ]


def test_any_column_can_be_the_tag_or_the_word(write):
    path = write(CONLL)
    chunks = read_sentences(path, ReadingOptions(label_column="3")).examples
    assert chunks[1].tags == ("B-NP", "I-NP")
    swapped = read_sentences(write("B-X\tw\nO\tv\n"), ReadingOptions(text_column="2", label_column="1")).examples[0]
    assert (swapped.words, swapped.tags) == (("w", "v"), ("B-X", "O"))
    assert (chunks[0].separator, swapped.separator) == (" ", "\t")


def test_tags_are_converted_to_the_scheme_asked_for(write):
    path = write("a I-X\nb I-X\nc B-X\nd O\n")
    assert find_scheme(path) == "iob1"
    assert read_sentences(path).examples[0].tags == ("B-X", "I-X", "B-X", "O")
    assert read_sentences(path, target="bioes").examples[0].tags == ("B-X", "E-X", "S-X", "O")
    assert read_sentences(path, scheme="iob1", target="io").examples[0].tags == ("I-X", "I-X", "I-X", "O")


def test_a_no_break_space_belongs_to_its_word(write):
    assert read_sentences(write("a\xa0b O\n")).examples[0].words == ("a\xa0b",)


def test_jsonl_with_documents(write):
    content = jsonl(
        {"tokens": ["a", "b"], "tags": ["B-X", "O"], "document": "one"},
        {"tokens": ["c"], "tags": ["O"], "document": "one"},
        {"tokens": ["d"], "tags": ["O"], "document": "two"},
    )
    data = read_sentences(write(content, "data.jsonl"))
    assert [(s.words, s.tags, s.line, s.document) for s in data.examples] == [
        (("a", "b"), ("B-X", "O"), 1, 0),
        (("c",), ("O",), 2, 0),
        (("d",), ("O",), 3, 1),
    ]
    named = write(jsonl({"w": ["a"], "t": ["I-X"]}), "named.jsonl")
    assert read_sentences(named, ReadingOptions(text_column="w", label_column="t")).examples[0].tags == ("B-X",)


def test_tags_in_jsonl_that_are_numbers_are_ids_of_listed_tags(write):
    """Regression: files in the layout of the datasets library were refused even if the names were given."""
    path = write(jsonl({"tokens": ["a", "b", "c"], "ner_tags": [1, 2, 0]}), "data.jsonl")
    names = ("O", "B-X", "I-X")
    listed = ReadingOptions(labels=str(write("\n".join(names), "names.txt")))
    data = read_sentences(path, listed)
    assert data.examples[0].tags == ("B-X", "I-X", "O")
    assert data.report.notes == ["tags are numbers, read as ids: 0 is 'O', 1 is 'B-X', 2 is 'I-X'"]
    as_text = write(jsonl({"tokens": ["a", "b", "c"], "tags": ["1", "2", "0"]}), "text.jsonl")
    assert read_sentences(as_text, listed).examples[0].tags == ("B-X", "I-X", "O")
    unnamed = read_sentences(as_text)
    assert tags_of_task(unnamed, ReadingOptions(), TaggingSettings()) == ("0", "1", "2")
    assert unnamed.report.notes == ["tags are numbers, used as names; entities need names such as B-PER"]
    assert tagging_task(names, None, TaggingSettings()).settings.labels == [*names]
    assert "labels" not in tagging_task(names, None, TaggingSettings()).settings.as_stored()
    of_model = TaggingSettings(labels=["O", "I-Y", "I-X"], trained_scheme="io", scheme="io")
    assert KINDS["tagging"].read(path, listed, of_model).examples[0].tags == ("I-Y", "I-X", "O")
    for wrong in (3, -1, True):
        path = write(jsonl({"tokens": ["a"], "tags": [wrong]}), "wrong.jsonl")
        with pytest.raises(DataError, match=rf"line 1: a tag is not a string: tag 1 is {wrong}; 3 names of tags"):
            read_sentences(path, listed)


def test_compressed_files(write):
    path = write(gzip.compress(CONLL.encode()), "train.conll.gz")
    assert len(read_sentences(path).examples) == 3


def test_raw_text_is_cut_into_words_with_their_characters(write):
    path = write("Héllo, Mr. Smith's\tcat\n", "raw.txt")
    sentence = read_sentences(path, needs_label=False).examples[0]
    assert sentence.words == ("Héllo", ",", "Mr.", "Smith", "'s", "cat")
    assert [sentence.text[start:end] for start, end in sentence.spans] == list(sentence.words)
    assert sentence.text == "Héllo, Mr. Smith's\tcat"
    table = write('id,text\n7,"Héllo, Mr. Smith\'s\tcat"\n', "raw.csv")
    assert read_sentences(table, needs_label=False).examples[0].words == sentence.words
    same = read_sentences(write(jsonl({"text": sentence.text}), "raw.jsonl"), needs_label=False).examples[0]
    assert (same.words, same.spans) == (sentence.words, sentence.spans)


CONLL_U = """# newdoc id = 1
# text = I don't know.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tknow\tknow\tVERB\tVB\t_\t0\troot\t_\t_
4.1\tit\tit\tPRON\tPRP\t_\t_\t_\t_\t_

# text = No. 1
1\tNo. 1\tno\tNOUN\tNN\t_\t0\troot\t_\t_
"""


def test_conll_u_has_words_only_in_lines_with_whole_numbers(write):
    """Regression: without its comments, words written as one were read as words with the tag "_"."""
    path = write(CONLL_U, "en.conllu")
    first, second = read_sentences(path).examples
    assert (first.words, first.tags) == (("I", "do", "n't", "know"), ("PRON", "AUX", "PART", "VERB"))
    assert [first.line_of(word) for word in range(4)] == [3, 5, 6, 7]
    assert (second.words, second.line) == (("No. 1",), 11)
    tagged = read_sentences(path, ReadingOptions(text_column="3", label_column="5")).examples[0]
    assert (tagged.words[2], tagged.tags) == ("not", ("PRP", "VBP", "RB", "VB"))
    assert read_sentences(path, needs_label=False).examples[0].words == first.words
    with pytest.raises(DataError, match="line 12: wrong number of columns: 1 between tabs, expected 10"):
        read_sentences(write(CONLL_U + "2 x\n", "b.conllu"))
    with pytest.raises(DataError, match="line 5: missing tag"):
        read_sentences(write(CONLL_U.replace("\tAUX\t", "\t\t"), "c.conllu"))


def test_a_newdoc_comment_of_conll_u_begins_a_document(write):
    """Regression: all sentences were one document, so words attended to those of other documents."""
    other = CONLL_U.replace("# newdoc id = 1", "# newdoc\n# newpar id = newdoc") + "\n"
    last = CONLL_U.replace("# newdoc id = 1", "#newdoc")
    found = read_sentences(write(f"{CONLL_U}\n{other}{last}", "en.conllu")).examples
    assert [sentence.document for sentence in found] == [0, 0, 1, 1, 2, 2]
    assert {sentence.opening for sentence in found} == {None}
    assert read_sentences(write("# newdoc O\n", "a.conll")).examples[0].words == ("#",)


def test_rows_without_the_tag_are_read_where_tags_are_not_needed(write):
    """Regression: a partly tagged file was refused with "3 between spaces, expected 4"."""
    path = write("The DT O\nP. NNP B-PER\n\nSimmons NNP\nsleeps VBZ\n", "a.conll")
    first, second = read_sentences(path, needs_label=False).examples
    assert second.words == ("Simmons", "sleeps")
    assert second.columns == (("Simmons", "NNP", "-"), ("sleeps", "VBZ", "-"))
    assert first.columns == (("The", "DT", "O"), ("P.", "NNP", "B-PER"))
    with pytest.raises(DataError, match="line 4: wrong number of columns: 2 between spaces, expected 3"):
        read_sentences(path)
    with pytest.raises(DataError, match="line 2: wrong number of columns: 1 between spaces, expected 3"):
        read_sentences(write("The DT O\nP.\n", "b.conll"), needs_label=False)


def test_a_column_of_second_texts_is_refused(write):
    """Regression: it was ignored."""
    with pytest.raises(ConfigError, match="pair column '2': a tagging task takes one text; leave it out"):
        read_sentences(write(CONLL), ReadingOptions(pair_column="2"))


def test_words_without_a_text_count_as_joined_by_spaces(write):
    sentence = read_sentences(write(CONLL)).examples[1]
    assert sentence.text == "Peter Blackburn"
    assert sentence.spans == ((0, 5), (6, 15))


def test_layouts(write):
    assert layout_of_sentences(write(CONLL, "a.txt"), needs_label=False) == "columns"
    assert layout_of_sentences(write("a O\nb B-X\n", "b.txt"), needs_label=False) == "columns"
    assert layout_of_sentences(write("Vitamin B-12\nHello O\nthere\n", "c.txt"), needs_label=False) == "text"
    assert layout_of_sentences(write("one\ntwo\n", "d.txt"), needs_label=False) == "text"
    questions = "Where is Anna ?\nWho was Karl ?\nWhat is it ?\nWhen did they ?\n"
    assert layout_of_sentences(write(questions, "g.txt"), needs_label=False) == "text"
    assert layout_of_sentences(write("a X ?\nb Y ?\n\nc X ?\nd Z ?\n", "h.txt"), needs_label=False) == "columns"
    assert layout_of_sentences(write("one\ntwo\n", "d.txt"), needs_label=True) == "columns"
    assert layout_of_sentences(write("one\n", "d.conll"), needs_label=False) == "columns"
    assert layout_of_sentences(write("{}", "d.jsonl.gz")) == "jsonl"
    assert layout_of_sentences(write("a b", "e.txt"), ReadingOptions(format="conll"), needs_label=False) == "columns"
    with pytest.raises(ConfigError, match="tagging formats: conll"):
        layout_of_sentences(write("", "f.txt"), ReadingOptions(format="cola"))


def test_columns_without_tags_can_be_read_for_prediction(write):
    data = read_sentences(write("Rome\nis\n\nbig\n"), needs_label=False)
    assert [s.words for s in data.examples] == [("Rome", "is"), ("big",)]
    assert data.examples[0].tags is None


@pytest.mark.parametrize(
    ("content", "name", "line", "says"),
    [
        ("a O\nb\n", "d.conll", 2, "wrong number of columns: 1 between spaces, expected 2"),
        ("a\tO\nb c O\n", "d.conll", 2, "1 between tabs"),
        ("a O\n\nb x O\n", "d.conll", 3, "wrong number of columns: 3"),
        ("a B-X\nb NN\n", "d.conll", 2, "'NN' is neither O nor a prefix"),
        ("a B-X\nb B-\n", "d.conll", 2, "unknown form of tag: 'B-'"),
        ("a B-X\nb O\nc I-X\nd B-X\ne O\nf B-X\n", "d.conll", 3, "in IOB2 an entity begins with B-"),
        ("a B-X\nb E-X\n\nc B-X\n", "d.conll", 4, "continues until E-X"),
        ("a\tO\n\tO\n", "d.conll", 2, "empty word"),
        ("a\tO\nb\t\n", "d.conll", 2, "missing tag"),
        ("a\nb\n", "d.conll", 1, "one column"),
        (b"a O\nb\xff O\n", "d.conll", 2, "0xff, which is not UTF-8"),
        (jsonl({"tokens": [], "tags": []}), "d.jsonl", 1, "a sentence without words"),
        (jsonl({"tokens": ["a"], "tags": ["O"]}, {"tokens": ["a"], "tags": []}), "d.jsonl", 2, "1 words, 0 tags"),
        (jsonl({"tokens": ["a"], "tags": [3]}), "d.jsonl", 1, "tag 1 is 3; write the names of tags, not"),
        (jsonl({"tokens": "a", "tags": ["O"]}), "d.jsonl", 1, "words are not a list"),
        (jsonl({"tokens": ["a", " "], "tags": ["O", "O"]}), "d.jsonl", 1, "empty word: word 2"),
        (jsonl({"tokens": ["a"]}), "d.jsonl", 1, "no list of tags"),
        (jsonl({"text": "a"}), "d.jsonl", 1, "no list of words: expected the key 'tokens or words', found 'text'"),
        (jsonl({"tokens": ["a", "b"], "tags": ["O", "I-X"]}, {"tokens": ["a", "b"], "tags": ["O", "B-X"]},
               {"tokens": ["a", "b"], "tags": ["B-X", "I-X"]}), "d.jsonl", 1, "word 2: in IOB2"),
        ("{]\n", "d.jsonl", 1, "not valid JSON"),
        ('{"tokens": ["\\ud800"], "tags": ["O"]}\n', "d.jsonl", 1, "contains an unpaired surrogate"),
    ],
)  # fmt: skip
def test_wrong_data_is_refused_with_its_line(write, content, name, line, says):
    path = write(content, name)
    with pytest.raises(DataError) as error:
        read_sentences(path)
    assert f"{path}: line {line}: " in str(error.value)
    assert says in str(error.value)


def test_tags_that_are_no_entities_are_plain(write):
    path = write("a NN\nb VBZ\n\nc -X-\n")
    data = read_sentences(path)
    assert find_scheme(path) == "plain"
    assert [s.tags for s in data.examples] == [("NN", "VBZ"), ("-X-",)]
    assert read_sentences(path, scheme="plain").examples == data.examples


def test_plain_tags_that_look_like_entities_stay_as_they_are(write):
    path = write("a I-X\nb O\nc NN\n")
    for options in ({"scheme": "plain"}, {"target": "plain"}):
        assert read_sentences(path, **options).examples[0].tags == ("I-X", "O", "NN")


@pytest.mark.parametrize(
    ("content", "line", "tag", "other_line", "other"),
    [("a NN\n\nb VB\nc O\n", 1, "NN", 4, "O"), ("a O\nb B-X\nc X-Y\n", 3, "X-Y", 1, "O")],
)
def test_a_file_with_tags_of_either_form_is_refused(write, content, line, tag, other_line, other):
    path = write(content)
    with pytest.raises(DataError) as error:
        read_sentences(path)
    said = str(error.value)
    assert said.startswith(f"{path}: line {line}: unknown form of tag: {tag!r} is neither O nor a prefix")
    assert f"{other!r} in line {other_line} is an entity tag" in said
    assert 'tagging.scheme = "plain"' in said


def test_skipping_keeps_the_sentences_with_entity_tags(write):
    data = read_sentences(write("a NN\n\nb B-X\n\nc I-X\nd NN\n"), ReadingOptions(on_bad_rows="skip"))
    assert [s.tags for s in data.examples] == [("B-X",)]
    assert data.report.dropped == {"unknown form of tag": 2}


@pytest.mark.parametrize("name", ["conll2003", "CoNLL2003"])
def test_the_catalog_says_how_its_files_lie(write, name):
    options = ReadingOptions(format=name)
    assert layout_of_sentences(write(CONLL, "raw.txt"), options, needs_label=False) == "columns"
    assert read_sentences(write(CONLL), options).examples[1].tags == ("B-PER", "I-PER")


def test_a_format_of_another_kind_is_refused(write):
    path = write(CONLL)
    with pytest.raises(
        ConfigError, match=r"'rte' is for the task pair, not tagging; tagging formats: conll, .*conll2003"
    ):
        read_sentences(path, ReadingOptions(format="rte"))
    with pytest.raises(ConfigError, match=r"'nonsense' is not in the catalog.*tagging formats"):
        read_sentences(path, ReadingOptions(format="nonsense"))
    with pytest.raises(ConfigError, match="'conll2003' is for the task tagging, not single or pair"):
        KINDS["single"].read(path, ReadingOptions(format="conll2003"))


def test_empty_files_and_files_without_sentences_are_refused(write):
    with pytest.raises(DataError, match="the file is empty"):
        read_sentences(write(""))
    with pytest.raises(DataError, match="no usable rows: 0 read"):
        read_sentences(write("-DOCSTART- -X- O\n\n\n"))
    with pytest.raises(DataError, match="cannot be read"):
        read_sentences("nowhere.conll")
    with pytest.raises(DataError, match="raw text has no tags"):
        read_sentences(write("a b\n", "a.txt"), ReadingOptions(format="text"))


def test_bad_sentences_are_skipped_and_counted(write):
    content = "a O\nb\n\nc B-X\nd I-X\n\ne O\nf I-X\n\ng ?\n\nh I-Y\n\ni B-X\n"
    report = ReadingReport(write(content))
    options, settings = ReadingOptions(on_bad_rows="skip"), TaggingSettings()
    kept = list(iterate_sentences(report.path, options, settings, needs_label=True, report=report))
    assert [(s.words, s.line) for s in kept] == [(("c", "d"), 4), (("i",), 14)]
    assert report.dropped == {
        "wrong number of columns": 1,
        "tag not allowed by the scheme": 2,
        "unknown form of tag": 1,
    }
    assert report.first_dropped_lines["tag not allowed by the scheme"] == 8
    assert report.num_rows == report.num_kept + sum(report.dropped.values())


def test_a_scheme_that_is_stated_is_held_to(write):
    path = write("a I-X\nb I-X\n")
    assert read_sentences(path, scheme="io").examples[0].tags == ("B-X", "I-X")
    with pytest.raises(DataError, match="line 1: tag not allowed by the scheme: in IOB2"):
        read_sentences(path, scheme="iob2")


def test_column_numbers_are_checked(write):
    path = write("a O\n")
    with pytest.raises(ConfigError, match="given by number, from 1"):
        read_sentences(path, ReadingOptions(label_column="tag"))
    with pytest.raises(ConfigError, match="given by number, from 1"):
        read_sentences(path, ReadingOptions(text_column="0"))
    with pytest.raises(DataError, match="line 1: column 3 was requested as the tag, but the row has 2"):
        read_sentences(path, ReadingOptions(label_column="3"))


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("split", "original", "num_sentences", "num_words", "num_documents", "num_entities"),
    [
        pytest.param("train.txt", "eng.train", 14_041, 203_621, 946, 23_499, marks=pytest.mark.slow),
        pytest.param("valid.txt", "eng.testa", 3_250, 51_362, 216, 5_942, marks=pytest.mark.slow),
        ("test.txt", "eng.testb", 3_453, 46_435, 231, 5_648),
    ],
)
def test_conll_2003_has_its_published_counts(
    data_folder, split, original, num_sentences, num_words, num_documents, num_entities
):
    data = read_sentences(data_folder / "conll2003" / split)
    assert find_scheme(data_folder / "conll2003" / split) == "iob2"
    assert len(data.examples) == data.report.num_kept == num_sentences
    assert sum(len(sentence.words) for sentence in data.examples) == num_words
    assert len({sentence.document for sentence in data.examples}) == num_documents
    assert sum(len(entities_of(sentence.tags)) for sentence in data.examples) == num_entities
    in_iob1 = read_sentences(data_folder / "conll2003" / "iob1" / original)
    assert find_scheme(data_folder / "conll2003" / "iob1" / original) == "iob1"
    assert [(s.words, s.tags, s.document) for s in in_iob1.examples] == [
        (s.words, s.tags, s.document) for s in data.examples
    ]
