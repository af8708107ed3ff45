"""Pairs of texts: what they are, and how they are read from files."""

import csv
import json
import lzma
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .errors import DataError

__all__ = ["Pair", "read_pairs", "read_wordnet"]


class Pair(NamedTuple):
    """A query and the key that answers it.

    Args:
        query: Text that is asked.
        key: Text that is found.
        name: What is shown for the key.
        group: Rows of one group stay together in one split.
    """

    query: str
    key: str
    name: str
    group: str


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{number}: is no JSON: {error.msg} at column {error.colno}") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}:{number}: must be an object with fields, got {line.strip()[:60]}")
            yield number, row


def _table_rows(path: Path, delimiter: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                if None in row:
                    raise DataError(f"{path}:{reader.line_num}: has more fields than the header")
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"{path}:{reader.reader.line_num}: {error}") from error


def _field(path: Path, number: int, row: Mapping[str, object], name: str) -> str:
    if name not in row:
        raise DataError(f"{path}:{number}: has no field {name!r}; its fields are {', '.join(map(str, row))}")
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{path}:{number}: field {name!r} must be a text that is not empty, got {value!r}")
    return value


def read_pairs(path: Path, query_field: str, key_field: str, group_field: str | None) -> list[Pair]:
    """Pairs of a JSONL, CSV or TSV file; the last two have a header.

    Raises:
        DataError: For what can't be read; names file, line and fault.
    """
    kind = path.suffix.lower()
    if kind not in (".jsonl", ".csv", ".tsv"):
        raise DataError(f"{path}: must end with .jsonl, .csv or .tsv")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    pairs = []
    try:
        for number, row in _json_rows(path) if kind == ".jsonl" else _table_rows(path, "," if kind == ".csv" else "\t"):
            query, key = (_field(path, number, row, name) for name in (query_field, key_field))
            group = str(number) if group_field is None else _field(path, number, row, group_field)
            pairs.append(Pair(query, key, key, group))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from error
    return pairs


def read_wordnet(path: Path) -> list[Pair]:
    """Definitions, with the lemmas of the synset as key."""
    pairs = []
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.rstrip("\n").split("\t")
            if len(fields) < 3:
                raise DataError(f"{path}:{number}: must have part of speech, lemmas and definition, got {line[:60]!r}")
            lemmas = fields[1].replace("|", ", ")
            pairs.append(Pair(fields[2], lemmas, lemmas, str(number)))
    return pairs
