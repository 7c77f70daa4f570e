"""Text columns of Parquet files; needs the extra `parquet`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from maskloom.errors import ConfigError, DataError
from maskloom.foreign_files import check_regular

_ROWS_AT_ONCE = 256


def parquet_texts(path: Path, column: str) -> Iterator[tuple[int, bytes]]:
    """Yield (row from 1, UTF-8 bytes) of a column of strings, a few hundred rows in memory at a time.

    Raises ConfigError when pyarrow is not installed; DataError for a file that is not Parquet, for a missing or
    ill-typed column and for a row without a value.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError(
            f"{path}: reading .parquet needs pyarrow; install it with: pip install 'maskloom[parquet]'"
        ) from None
    check_regular(path)
    # names and numbers of a damaged file can also fail on their way to Python
    damage = (pa.ArrowException, OSError, ValueError, OverflowError)
    try:
        file = pq.ParquetFile(path)
        schema = {name: file.schema_arrow.field(name).type for name in set(file.schema_arrow.names)}
    except (*damage, KeyError) as error:
        raise DataError(f"{path}: not a whole Parquet file: {error}") from None
    with file:
        if column not in schema:
            held = ", ".join(sorted(name[:40] for name in schema)[:12])
            raise DataError(f"{path}: no column {column!r}; the file has {held or 'none'}")
        kind = schema[column]
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise DataError(f"{path}: column {column!r} must hold strings, not {kind}")
        batches = file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column])
        row = 0
        while True:
            try:
                batch = next(batches, None)
            except damage as error:
                raise DataError(f"{path}, after row {row}: the Parquet file is damaged: {error}") from None
            if batch is None:
                return
            values = batch.column(0)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            for content in values.cast(pa.large_binary()).to_pylist():
                row += 1
                if content is None:
                    raise DataError(f"{path}, row {row}: column {column!r} has no value")
                yield row, content
