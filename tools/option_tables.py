"""Writes the tables of options into the documents, between `<!-- options: COMMAND -->` and `<!-- end -->`.

python tools/option_tables.py
"""

from __future__ import annotations

import re
from pathlib import Path

from headscope.runs.settings import table
from headscope.sparse.settings import Settings as SparsifySettings
from headscope.studies import settings as studies

RECORDS = {one.command: one for one in (SparsifySettings, *vars(studies).values()) if hasattr(one, "command")}
PLACE = re.compile(r"(<!-- options: ([\w-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def main() -> None:
    for page in (Path(__file__).parents[1] / "docs").glob("*.md"):
        text = page.read_text()
        new = PLACE.sub(lambda place: f"{place[1]}{table(RECORDS[place[2]])}\n", text)
        if new != text:
            page.write_text(new)
            print(page.name)


if __name__ == "__main__":
    main()
