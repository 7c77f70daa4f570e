"""More than forty kinds of bad data sets: each is handled as stated, or refused with file and line."""

import pytest

from tools.fuzzing.data_sets import BAD_DATA, outcome_of


@pytest.mark.parametrize("data", BAD_DATA, ids=lambda data: data.what)
def test_bad_data_is_handled_as_stated_or_refused_with_its_place(tmp_path, data):
    assert outcome_of(data, tmp_path) == ""


def test_there_are_forty_kinds():
    assert len({data.what for data in BAD_DATA}) == len(BAD_DATA) >= 40
