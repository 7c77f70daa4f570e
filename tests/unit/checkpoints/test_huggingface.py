import json
import os
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tensorflow_files import tensorflow_name
from tests.unused_tensors import unused_tensors

from maskloom.checkpoints.huggingface import load_model, read_config, save_model
from maskloom.checkpoints.published.own import _names
from maskloom.errors import ConfigError, DataError
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig
from maskloom.models.bert import BertConfig

CONFIG = BertConfig(
    vocab_size=31,
    hidden_size=14,
    num_hidden_layers=2,
    num_attention_heads=7,
    intermediate_size=9,
    max_position_embeddings=13,
)


@pytest.fixture
def model():
    model = build_model(CONFIG, seed=1)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture
def folder(model, tmp_path):
    save_model(model, tmp_path)
    return tmp_path


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file({name: value.contiguous() for name, value in change(tensors).items()}, folder / "model.safetensors")


def assert_equal(model, other):
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


def tensorflow_arrays(folder):
    arrays = {tensorflow_name(name): value for name, value in load_file(folder / "model.safetensors").items()}
    return {name: (value.T if name.endswith("/kernel") else value).numpy().copy() for name, value in arrays.items()}


SAVED = [
    *(("bert", *heads) for heads in ((), ("mlm",), ("mlm", "nsp"), ("classifier",), ("nsp",), ("choice",))),
    *(("gpt", *heads) for heads in ((), ("lm",), ("classifier",), ("classifier", "lm"), ("choice", "lm"), ("tagger",))),
    *(
        (name, *heads)
        for name in ("transformer", "bart", "t5")
        for heads in ((), ("decoder",), ("decoder", "classifier"), ("classifier",), ("decoder", "tagger"), ("mlm",))
    ),
    ("bart", "decoder", "span", "choice"),
]


@pytest.mark.parametrize("saved", SAVED, ids=" ".join)
def test_the_heads_that_were_saved_are_those_that_open(saved, tmp_path):
    name, *heads = saved
    sizes = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ARCHITECTURES[name].config_type(**sizes, intermediate_size=48, max_position_embeddings=13)
    model = build_model(config, heads, num_labels=4, seed=1)
    save_model(model, tmp_path)
    found, report = load_model(tmp_path)
    assert sorted(found.heads) == sorted(heads)
    assert found.state_dict().keys() == model.state_dict().keys()
    assert_equal(model, found)
    assert report.new_parameters == unused_tensors(tmp_path, report) == ()
    save_model(found, tmp_path / "again")
    assert read_config(tmp_path / "again") == read_config(tmp_path)


def test_a_folder_without_a_class_that_is_known_holds_what_its_tensors_are(tmp_path):
    config = BartConfig(vocab_size=31, hidden_size=12, num_hidden_layers=1, num_attention_heads=2)
    for heads, expected in (((), ["decoder"]), (("classifier",), ["classifier"])):
        save_model(build_model(config, heads, num_labels=4), tmp_path)
        content = read_config(tmp_path)
        for classes in (None, ["BartForEverything"], [["BartModel"]], "BartModel", []):
            (tmp_path / "config.json").write_text(json.dumps({**content, "architectures": classes}))
            assert [*load_model(tmp_path)[0].heads] == expected


@pytest.mark.parametrize("name", ["gpt", "transformer", "bart", "t5"])
def test_a_head_without_published_names_is_not_written(name, tmp_path):
    with pytest.raises(ConfigError, match=rf"(?i)has the layout of {name}, which cannot have the head nsp"):
        save_model(build_model(ARCHITECTURES[name].config_type.of_size("tiny", vocab_size=23), ("nsp",)), tmp_path)
    assert not any(tmp_path.iterdir())


def test_models_that_can_have_a_decoder_are_named(folder):
    with pytest.raises(
        ConfigError, match="head decoder; to generate texts, start from a Transformer, Marian, BART or T5"
    ):
        load_model(folder, heads=("decoder",))


class TestDialects:
    def test_own_file(self, folder, model):
        loaded, report = load_model(folder)
        assert_equal(model, loaded)
        assert list(loaded.heads) == ["mlm", "nsp"]
        assert (report.new_parameters, unused_tensors(folder, report)) == ((), ())

    def test_without_prefix_with_position_ids_and_old_norm_names(self, folder, model):
        def change(tensors):
            renamed = {}
            for name, value in tensors.items():
                new = name.removeprefix("bert.")
                if "LayerNorm" in new:
                    new = new.replace(".weight", ".gamma").replace(".bias", ".beta")
                renamed[new] = value
            return {**renamed, "embeddings.position_ids": torch.arange(13)[None]}

        rewrite(folder, change)
        loaded, report = load_model(folder)
        assert_equal(model, loaded)
        assert unused_tensors(folder, report) == ()

    def test_decoder_copies_are_checked_and_tied(self, folder, model):
        def change(tensors):
            word, bias = tensors["bert.embeddings.word_embeddings.weight"], tensors["cls.predictions.bias"]
            copies = {"cls.predictions.decoder.weight": word.clone(), "cls.predictions.decoder.bias": bias.clone()}
            return tensors | copies

        rewrite(folder, change)
        loaded, _ = load_model(folder)
        assert_equal(model, loaded)
        assert loaded.heads["mlm"].decoder is loaded.encoder.word_embeddings
        rewrite(folder, lambda t: t | {"cls.predictions.decoder.weight": t["cls.predictions.decoder.weight"] + 1})
        with pytest.raises(DataError, match=r"decoder.weight differs from bert.embeddings.word_embeddings.weight"):
            load_model(folder)

    def test_decoder_bias_under_its_second_name_only(self, folder, model):
        def change(tensors):
            return tensors | {"cls.predictions.decoder.bias": tensors.pop("cls.predictions.bias")}

        rewrite(folder, change)
        assert_equal(model, load_model(folder)[0])

    def test_tensorflow_names_with_optimizer_state_and_googles_config(self, folder, model):
        arrays = tensorflow_arrays(folder)
        arrays |= {"global_step": np.array(7), "bert/pooler/dense/kernel/adam_m": np.zeros((14, 14), np.float32)}
        save_file({name: torch.from_numpy(value) for name, value in arrays.items()}, folder / "model.safetensors")
        config = read_config(folder)
        for key in ("model_type", "architectures", "layer_norm_eps"):
            del config[key]
        (folder / "config.json").unlink()
        (folder / "bert_config.json").write_text(json.dumps(config | {"directionality": "bidi"}))
        loaded, report = load_model(folder)
        assert_equal(model, loaded)
        assert unused_tensors(folder, report) == ()

    def test_tensorflow_values_land_where_they_belong(self, folder):
        # Square kernels load in either orientation; only the values tell.
        arrays = tensorflow_arrays(folder)
        for name in ("bert/pooler/dense/kernel", "bert/encoder/layer_0/intermediate/dense/kernel"):
            arrays[name] = np.arange(arrays[name].size, dtype=np.float32).reshape(arrays[name].shape)
        arrays["cls/seq_relationship/output_weights"] = np.arange(28, dtype=np.float32).reshape(2, 14)
        save_file({name: torch.from_numpy(value) for name, value in arrays.items()}, folder / "model.safetensors")
        loaded, _ = load_model(folder)
        assert loaded.encoder.pooler.dense.weight[0, :3].tolist() == [0, 14, 28]
        assert loaded.encoder.layers[0].feed_forward.up.weight[1, :3].tolist() == [1, 10, 19]
        assert loaded.heads["nsp"].dense.weight[1, :2].tolist() == [14, 15]

    def test_shards(self, folder, model):
        tensors = load_file(folder / "model.safetensors")
        places = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(tensors)}
        for file in set(places.values()):
            save_file({name: value for name, value in tensors.items() if places[name] == file}, folder / file)
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        assert_equal(model, load_model(folder)[0])


class TestHeads:
    def test_absent_heads_are_named_and_seeded(self, folder):
        first, report = load_model(folder, heads=("classifier", "nsp"), num_labels=4, seed=3)
        second, _ = load_model(folder, heads=("classifier",), num_labels=4, seed=3)
        other, _ = load_model(folder, heads=("classifier",), num_labels=4, seed=4)
        assert report.new_parameters == ("classifier.weight", "classifier.bias")
        assert all(name.startswith("cls.predictions.") for name in unused_tensors(folder, report))
        assert len(unused_tensors(folder, report)) == 5
        weights = [model.heads["classifier"].dense.weight for model in (first, second, other)]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])

    def test_absent_pooler_starts_afresh_and_is_named(self, folder, model):
        rewrite(folder, lambda tensors: {name: value for name, value in tensors.items() if "pooler" not in name})
        loaded, report = load_model(folder)
        assert report.new_parameters == ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
        assert torch.equal(loaded.encoder.word_embeddings, model.encoder.word_embeddings)

    def test_number_of_labels_comes_from_the_file(self, tmp_path):
        save_model(build_model(CONFIG, ("classifier",), num_labels=5, seed=1), tmp_path)
        assert load_model(tmp_path)[0].heads["classifier"].num_labels == 5
        with pytest.raises(DataError, match=r"classifier.weight: shape \(5, 14\), the configuration needs \(3, 14\)"):
            load_model(tmp_path, heads=("classifier",), num_labels=3)
        replaced, report = load_model(tmp_path, heads=("classifier",), num_labels=3, replace_heads=("classifier",))
        assert replaced.heads["classifier"].num_labels == 3
        assert report.new_parameters == ("classifier.weight", "classifier.bias")
        assert unused_tensors(tmp_path, report) == ("classifier.bias", "classifier.weight")

    def test_a_new_classifier_needs_a_number_of_labels(self, folder):
        with pytest.raises(ConfigError, match="num_labels of at least 1"):
            load_model(folder, heads=("classifier",))

    def test_heads_that_are_not_asked_for_are_left_out(self, folder):
        rewrite(folder, lambda tensors: tensors | {"qa_outputs.weight": torch.zeros(2, 14)})
        assert "qa_outputs.weight" in unused_tensors(folder, load_model(folder, heads=("mlm",))[1])

    @pytest.mark.parametrize("head", ["classifier", "tagger", "choice", "span"])
    def test_the_architecture_tells_heads_of_one_name_apart(self, tmp_path, head):
        model = build_model(CONFIG, (head,), 3 if head in ("classifier", "tagger") else None, seed=3)
        save_model(model, tmp_path)
        loaded, report = load_model(tmp_path)
        assert tuple(loaded.heads) == (head,)
        assert torch.equal(loaded.heads[head].dense.weight, model.heads[head].dense.weight)
        reads_tokens = head in ("tagger", "span")
        assert report.new_parameters == (("bert.pooler.dense.weight", "bert.pooler.dense.bias") if reads_tokens else ())

    def test_a_head_of_another_kind_starts_afresh(self, tmp_path):
        save_model(build_model(CONFIG, ("classifier",), 3, seed=3), tmp_path)
        loaded, report = load_model(tmp_path, heads=("tagger",), num_labels=5)
        assert loaded.heads["tagger"].num_labels == 5
        assert report.new_parameters == ("classifier.weight", "classifier.bias")


class TestRefusals:
    def test_all_mismatches_at_once(self, folder):
        def change(tensors):
            del tensors["bert.encoder.layer.1.output.dense.bias"]
            tensors["bert.pooler.dense.weight"] = torch.zeros(14, 13)
            tensors["bert.embeddings.LayerNorm.bias"] = torch.zeros(14, dtype=torch.int64)
            tensors["bert.encoder.layer.2.output.dense.bias"] = torch.zeros(14)
            tensors["pooler.dense.bias"] = torch.zeros(14)
            return tensors

        rewrite(folder, change)
        with pytest.raises(DataError) as caught:
            load_model(folder)
        message = str(caught.value)
        assert "5 problems" in message
        for part in (
            "model.safetensors",
            "layer.1.output.dense.bias: missing, shape (14,)",
            "bert.pooler.dense.weight: shape (14, 13), the configuration needs (14, 14)",
            "bert.embeddings.LayerNorm.bias: holds integers",
            "bert.encoder.layer.2.output.dense.bias: no place",
            "are the same parameter",
        ):
            assert part in message

    def test_a_part_of_a_head_is_no_head(self, folder):
        rewrite(folder, lambda tensors: {k: v for k, v in tensors.items() if k != "cls.predictions.bias"})
        with pytest.raises(DataError, match=r"cls.predictions.bias: missing"):
            load_model(folder)

    @pytest.mark.parametrize("value", [float("nan"), 1e300])
    def test_values_that_are_not_finite(self, folder, value):
        bias = torch.full((14,), value, dtype=torch.float64)
        rewrite(folder, lambda tensors: tensors | {"bert.pooler.dense.bias": bias})
        with pytest.raises(DataError, match=r"bert.pooler.dense.bias: holds values that are not finite"):
            load_model(folder)

    def test_a_configuration_of_another_size_allocates_nothing(self, folder):
        config = read_config(folder) | {"hidden_size": 65_536, "intermediate_size": 1_000_000, "num_attention_heads": 1}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(DataError, match="the configuration needs"):
            load_model(folder)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "bert_model.ckpt.index", "tf_model.h5", "model.pt"])
    def test_files_that_can_run_code(self, folder, name):
        (folder / "model.safetensors").rename(folder / name)
        with pytest.raises(DataError, match=f"{name}.*(can run code|TensorFlow).*model.safetensors"):
            load_model(folder)

    def test_missing_parts(self, folder, tmp_path):
        with pytest.raises(DataError, match="not a folder"):
            load_model(tmp_path / "absent")
        (folder / "model.safetensors").unlink()
        with pytest.raises(DataError, match="no weights"):
            load_model(folder)
        (folder / "config.json").unlink()
        with pytest.raises(DataError, match=r"no config.json"):
            load_model(folder)

    @pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"vocab_size": }', "[" * 100_000])
    def test_damaged_configuration(self, folder, text):
        (folder / "config.json").write_text(text)
        with pytest.raises(DataError, match=r"config.json"):
            load_model(folder)

    def test_configuration_in_another_encoding(self, folder):
        (folder / "config.json").write_bytes(b'{"a": "\xff"}')
        with pytest.raises(DataError, match=r"config.json: byte 8 is not UTF-8"):
            load_model(folder)


class TestSaving:
    def test_writes_nothing_else_and_leaves_no_temporary_files(self, folder):
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]

    def test_same_model_same_bytes(self, folder, model, tmp_path):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        save_model(model, tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_both_files_have_the_mode_that_the_umask_gives(self, model, tmp_path):
        before = os.umask(0o027)
        try:
            save_model(model, tmp_path / "new")
        finally:
            os.umask(before)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
        assert modes == {"config.json": 0o640, "model.safetensors": 0o640}

    def test_the_bytes_are_those_of_the_safetensors_library(self, folder, tmp_path):
        save_file(load_file(folder / "model.safetensors"), tmp_path / "theirs", metadata={"format": "pt"})
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "theirs").read_bytes()

    def test_a_failing_save_keeps_the_old_files(self, folder, model, monkeypatch):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}

        def fail(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        model.encoder.word_embeddings.data.zero_()
        with pytest.raises(OSError, match="No space"):
            save_model(model, folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            ({"hidden_size": 15}, r"may not change the model's own keys \['hidden_size'\]"),
            ({"id2label": {"0": "a"}}, "id2label names 1 label, but the classifier has 3"),
        ],
    )
    def test_extra_config_may_not_contradict_the_model(self, tmp_path, extra, message):
        model = build_model(CONFIG, ("classifier",), num_labels=3, seed=1)
        with pytest.raises(ConfigError, match=message):
            save_model(model, tmp_path, extra_config=extra)

    def test_extra_config_is_kept(self, tmp_path):
        model = build_model(CONFIG, ("classifier",), num_labels=2, seed=1)
        names = {"id2label": {"0": "nein", "1": "jä"}, "label2id": {"nein": 0, "jä": 1}, "problem_type": "x"}
        save_model(model, tmp_path, extra_config=names)
        config = read_config(tmp_path)
        assert {key: config[key] for key in names} == names
        assert config["architectures"] == ["BertForSequenceClassification"]


@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_a_model_of_our_own_format_is_planned_once_to_know_its_names(name, monkeypatch, tmp_path):
    row, built = ARCHITECTURES[name], []
    config = row.config_type(vocab_size=20, hidden_size=24, num_hidden_layers=1)
    save_model(build_model(config, ("classifier",), 2, seed=0), tmp_path)

    def build(config):
        built.append(config)
        return row.build(config)

    _names.cache_clear()
    monkeypatch.setitem(ARCHITECTURES, name, replace(row, build=build))
    assert tuple(load_model(tmp_path)[0].heads) == ("classifier",)
    assert built == [config] * 2  # the names, and the model itself
