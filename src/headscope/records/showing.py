"""How a record shows itself: as a table, a data frame, a figure, and as HTML in a notebook.

Figures and HTML are the report's, which stands above the records and knows them all. A record knows only the name of
its door and asks there when it is to be shown, so that records alone need neither matplotlib nor the report.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headscope.records.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

DOOR = "headscope.report.showing"


class Shown:
    """What all records can do, and small results such as `Check` and `Multiplier` as well."""

    COLUMNS = ""  # of the table; where there are none, the plain fields in one row

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the table."""
        return [tuple(self._plain().values())]

    def table(self) -> Table:
        """What the record says, row by row, under named columns."""
        return Table(tuple(self.COLUMNS.split()) or tuple(self._plain()), self.rows())

    def _plain(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # pyright: ignore[reportArgumentType]
        return {name: value for name, value in values.items() if value is None or isinstance(value, (str, int, float))}

    def to_pandas(self) -> DataFrame:
        """The table as a pandas data frame."""
        return self.table().to_pandas()

    def plot(self, **how: Any) -> Figure:
        """The figure that the studies draw of such a record.

        Args:
            how: options of that figure; every one takes `width`, in inches.

        Returns:
            A matplotlib figure, which a notebook shows and `savefig` writes.
        """
        return import_module(DOOR).figure_of(self, **how)

    def _repr_html_(self) -> str:
        return import_module(DOOR).html_of(self)
