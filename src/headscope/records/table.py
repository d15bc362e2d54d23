"""A table of results: rows of plain values under named columns, and the one way it becomes CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import SetupError
from headscope.records.files import write_bytes

if TYPE_CHECKING:
    from pandas import DataFrame

# Rows that a notebook shows of a table.
SHOWN = 20


@dataclass(frozen=True)
class Table:
    """Columns and rows; floats: how numbers with a fraction are written to a file (all digits, if not said)."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    floats: str = ""

    @classmethod
    def of(cls, columns: str, rows: Iterable[Sequence[Any]], floats: str = "") -> Table:
        """columns: their names, separated by spaces."""
        return cls(tuple(columns.split()), [tuple(row) for row in rows], floats)

    @classmethod
    def of_dicts(cls, rows: Sequence[Mapping[str, Any]]) -> Table:
        """Rows under the keys of the last one; what an earlier row does not have stays empty."""
        columns = tuple(rows[-1]) if rows else ()
        return cls(columns, [tuple(row.get(name) for name in columns) for row in rows])

    def dicts(self) -> list[dict[str, Any]]:
        """A dictionary per row, by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def csv(self) -> bytes:
        """As CSV in UTF-8: a line of names, then a line per row; every line ends in a line feed."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([self._cell(value) for value in row] for row in self.rows)
        return text.getvalue().encode()

    def _cell(self, value: Any) -> Any:
        # (What could not be computed stays empty: a nan would pass for a result.)
        if isinstance(value, float):
            return format(value, self.floats) if math.isfinite(value) else ""
        return value

    def save(self, path: str | Path) -> Path:
        """Write it as CSV.

        Args:
            path: where.

        Returns:
            That path.
        """
        return write_bytes(Path(path), self.csv())

    def to_pandas(self) -> DataFrame:
        """As a pandas data frame."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise SetupError(
                "to_pandas() needs pandas, which is not installed: pip install pandas. (table() has the same rows.)"
            ) from error
        return DataFrame(self.rows, columns=list(self.columns))

    def _repr_html_(self) -> str:
        """The first rows, for notebooks."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        rows = ["".join(f"<td>{html.escape(_short(v))}</td>" for v in row) for row in self.rows[:SHOWN]]
        more = len(self.rows) - len(rows)
        note = f"<p>and {more:,} more rows: to_pandas() has them all</p>" if more > 0 else ""
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _short(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
