from tests.tensorflow_files import tensorflow_name

from maskloom.checkpoints.published.bert import BERT_FORMAT
from maskloom.checkpoints.published.format import MAX_LSTM_LAYERS
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig

BASE = BertConfig.of_size("base", vocab_size=9)
HEADS = tuple(BERT_FORMAT.heads)
ROWS = BERT_FORMAT.rows(BASE, ("mlm", "nsp"))


def test_table_is_one_to_one_in_every_dialect():
    # heads with the same published name never occur in one file
    rows = BERT_FORMAT.rows(BASE, [head for head in HEADS if head not in BERT_FORMAT.same_name[1:]])
    for key in (lambda row: row.huggingface, lambda row: (row.ours, row.part)):
        assert len({key(row) for row in rows}) == len(rows)
    published = {row.huggingface for row in rows if not row.huggingface.startswith(("crf", "bilstm", "document"))}
    in_tensorflow = {tensorflow_name(name) for name in published}
    assert len(in_tensorflow) == 206 + 4  # 4 for classifier and span
    assert {BERT_FORMAT.canonical(name, {})[0] for name in in_tensorflow} == published


def test_base_has_the_published_number_of_tensors():
    # 199 for the encoder with its pooler and 7 for the heads.
    assert len(ROWS) == 206
    assert len(BERT_FORMAT.rows(BASE, ())) == 199


def test_every_parameter_has_its_names():
    config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=2, num_attention_heads=2, intermediate_size=3)
    options = {"bilstm_tagger": {"layers": "scalar_mix", "lstm_size": 4, "lstm_layers": MAX_LSTM_LAYERS}}
    model = build_model(config, HEADS, num_labels=2, seed=0, head_options=options)
    assert {row.ours for row in BERT_FORMAT.rows(config, HEADS)} == {name for name, _ in model.named_parameters()}


def test_only_dense_kernels_are_transposed():
    names = {tensorflow_name(row.huggingface) for row in ROWS}
    transposed = {name for name in names if BERT_FORMAT.canonical(name, {})[1]}
    assert transposed == {name for name in names if name.endswith("/kernel")}
    assert len(transposed) == 12 * 6 + 2


def test_names_of_all_dialects_meet():
    rows = {row.huggingface: row for row in ROWS}
    name = "bert.encoder.layer.3.attention.output.LayerNorm.weight"
    for foreign in (
        name,
        name.removeprefix("bert."),
        name.replace(".weight", ".gamma"),
        "bert/encoder/layer_3/attention/output/LayerNorm/gamma",
        "bert/encoder/layer_3/attention/output/LayerNorm/gamma:0",
    ):
        assert BERT_FORMAT.canonical(foreign, rows) == (name, False)
    assert BERT_FORMAT.canonical("bert/pooler/dense/kernel", rows) == ("bert.pooler.dense.weight", True)
    assert BERT_FORMAT.canonical("something.else", rows) == ("something.else", False)


def test_buffers_and_optimizer_state_are_ignored():
    for name in (
        "embeddings.position_ids",
        "bert.embeddings.position_ids",
        "global_step",
        "bert/pooler/dense/kernel/adam_m",
        "cls/predictions/output_bias/adam_v",
    ):
        assert BERT_FORMAT.is_ignored(name)
    assert not BERT_FORMAT.is_ignored("bert/pooler/dense/kernel")
