import dataclasses
import json
import os
import shutil
from unittest.mock import Mock

import numpy as np
import pytest

from maskloom.data.feature_files import FEATURES, MANIFEST, OFFSETS, FeatureFile, FeaturePlan, FeatureWriter
from maskloom.errors import DataError
from tools.soak.full_disks import small_disk

PLAN = FeaturePlan("model-sum", "text-sum", ("3", "4"), 5, np.array([2, 0, 3, 1]))
ROWS = np.random.default_rng(0).standard_normal((6, 2, 5)).astype(np.float32)


def unit_rows(units, plan=PLAN):
    return np.concatenate([ROWS[plan.offsets[unit] : plan.offsets[unit + 1]] for unit in units])


def write(folder, *batches, plan=PLAN):
    writer = FeatureWriter(folder, plan)
    for units in batches:
        writer.write(np.array(units), unit_rows(units))
    return writer


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "features", [2, 0], [3, 1]).finish()
    return tmp_path / "features"


def test_rows_come_back_by_unit_whatever_the_order_they_were_written_in(folder):
    file = FeatureFile.open(folder, PLAN)
    assert (len(file), file.vectors, file.width) == (4, ["3", "4"], 5)
    for units in ([0, 1, 2, 3], [3, 0], [1], [2, 2]):
        assert np.array_equal(file.rows(units), unit_rows(units))
    assert file.rows([]).shape == (0, 2, 5)
    assert np.array_equal(file.array, ROWS)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["features"]


def test_half_precision_rounds_and_reads_as_float32(tmp_path):
    plan = dataclasses.replace(PLAN, precision="float16")
    write(tmp_path / "half", [0, 1, 2, 3], plan=plan).finish()
    file = FeatureFile.open(tmp_path / "half", plan)
    assert (tmp_path / "half" / FEATURES).stat().st_size == 6 * 2 * 5 * 2
    assert file.rows([0]).dtype == np.float32
    np.testing.assert_array_equal(file.rows([0, 1, 2, 3]), ROWS.astype(np.float16).astype(np.float32))


def test_a_killed_writer_goes_on_with_the_units_that_it_marked(tmp_path):
    first = write(tmp_path / "features", [2])
    first.mark()
    first.write(np.array([0]), unit_rows([0]))  # not marked, so it counts as lost
    second = FeatureWriter(tmp_path / "features", PLAN)
    assert second.missing_units().tolist() == [0, 1, 3]
    assert not (tmp_path / "features").exists()
    second.write(np.array([0, 1, 3]), unit_rows([0, 1, 3]))
    second.finish()
    assert np.array_equal(FeatureFile.open(tmp_path / "features", PLAN).array, ROWS)


@pytest.mark.parametrize("change", [{"model": "other"}, {"source": "other"}, {"vectors": ("3", "5")}, {"width": 4}])
def test_a_writer_of_another_plan_begins_anew(tmp_path, change):
    write(tmp_path / "features", [2]).mark()
    other = FeatureWriter(tmp_path / "features", dataclasses.replace(PLAN, **change))
    assert other.missing_units().tolist() == [0, 1, 2, 3]


def test_a_cut_array_begins_anew(tmp_path):
    write(tmp_path / "features", [2]).mark()
    (tmp_path / "features.building" / FEATURES).write_bytes(b"short")
    assert len(FeatureWriter(tmp_path / "features", PLAN).missing_units()) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "manifest.json: these features are from another model; choose a new --out"),
        ({"source": "other"}, "these features are from another text"),
        ({"vectors": ("last",)}, "vectors is"),
        ({"row_counts": np.array([2, 3, 0, 1])}, "offsets_sha256"),
    ],
)
def test_features_of_something_else_are_refused_by_name(folder, change, message):
    with pytest.raises(DataError, match=message):
        FeatureFile.open(folder, dataclasses.replace(PLAN, **change))


@pytest.mark.parametrize("name", [FEATURES, OFFSETS])
def test_damage_is_refused_by_name(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[9] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: its SHA-256"):
        FeatureFile.open(folder)
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(DataError, match=rf"{name}: has \d+ bytes instead of {len(content)}"):
        FeatureFile.open(folder, verify=False)
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name}: cannot be read"):
        FeatureFile.open(folder)


def test_a_broken_manifest_is_refused(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    for content, message in (
        ("{", "line 1, column 2: not valid JSON"),
        (json.dumps({**manifest, "format_version": 2}), "format_version 2; this program reads 1"),
        (
            json.dumps({key: value for key, value in manifest.items() if key != "width"}),
            r"width None: not the manifest of stored features",
        ),
        ("[]", "expected a JSON object"),
    ):
        (folder / MANIFEST).write_text(content)
        with pytest.raises(DataError, match=f"manifest.json: {message}"):
            FeatureFile.open(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read"):
        FeatureFile.open(folder)


def test_wrong_rows_are_not_written(tmp_path):
    writer = FeatureWriter(tmp_path / "features", PLAN)
    with pytest.raises(ValueError, match="rows have shape"):
        writer.write(np.array([0]), ROWS[:1])
    with pytest.raises(ValueError, match="not finite"):
        writer.write(np.array([3]), np.full((1, 2, 5), np.nan, np.float32))
    with pytest.raises(ValueError, match="4 units are not written, the first: 0"):
        writer.finish()
    half = FeatureWriter(tmp_path / "half", dataclasses.replace(PLAN, precision="float16"))
    with pytest.raises(ValueError, match="precision float16"):
        half.write(np.array([3]), np.full((1, 2, 5), 1e6, np.float32))


def test_units_without_rows_make_a_file_too(tmp_path):
    plan = dataclasses.replace(PLAN, row_counts=np.array([0, 0]))
    FeatureWriter(tmp_path / "none", plan).mark()
    writer = FeatureWriter(tmp_path / "none", plan)
    writer.write(np.array([0, 1]), ROWS[:0])
    writer.finish()
    assert FeatureFile.open(tmp_path / "none", plan).rows([0, 1]).shape == (0, 2, 5)


def test_finished_features_are_replaced_whole(folder):
    plan = dataclasses.replace(PLAN, model="newer")
    write(folder, [0, 1, 2, 3], plan=plan).finish()
    assert FeatureFile.open(folder, plan).manifest["model"] == "newer"


def test_a_writer_killed_while_it_removes_the_features_before_loses_nothing(folder, monkeypatch):
    """Regression: its plan was removed first, so that all features were computed again."""
    writer = write(folder, [0, 1, 2, 3])
    monkeypatch.setattr(shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        writer.finish()
    monkeypatch.undo()
    again = FeatureWriter(folder, PLAN)
    assert not len(again.missing_units())
    again.finish()
    assert np.array_equal(FeatureFile.open(folder, PLAN).array, ROWS)
    assert sorted(path.name for path in folder.iterdir()) == sorted([FEATURES, MANIFEST, OFFSETS])


def test_an_error_of_the_disk_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(28, "No space left on device")), raising=False)
    with pytest.raises(OSError, match="No space left on device") as caught:
        FeatureWriter(tmp_path / "features", PLAN)
    assert caught.value.filename == str(tmp_path / "features.building" / "features.bin")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_for_all_is_told_before_anything_is_written(tmp_path):
    with small_disk(tmp_path / "disk") as is_mounted:  # of 256 MiB
        if not is_mounted:
            pytest.skip("may not mount a file system")
        plan = FeaturePlan("model", "text", ("last",), 1 << 20, np.full(100, 1))  # 400 MiB
        with pytest.raises(OSError, match="No space left on device"):
            FeatureWriter(tmp_path / "disk" / "features", plan)
        assert list((tmp_path / "disk").iterdir()) == []
