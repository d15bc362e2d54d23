"""The notebooks of examples/ as pages of the documentation: a hook of mkdocs (mkdocs.yml). They are shown as they were
executed; nothing runs here. Pictures become files, and so do the interactive pieces, which a page shows in a frame."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"


def on_files(files: Any, config: Any) -> Any:
    """Add a page per notebook, and the files that it shows."""
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

    for path in sorted(EXAMPLES.glob("*.ipynb")):
        for name, content in pages_of(path).items():
            files.append(File.generated(config, name, content=content))
    return files


def pages_of(path: Path) -> dict[str, str | bytes]:
    """The page of a notebook, and the files beside it, by name."""
    made: dict[str, str | bytes] = {}
    name, parts = f"notebook-{path.stem}", []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output, name, made) for output in cell.get("outputs", [])]
    parts.append(f"*This page is `examples/{path.name}`, a notebook.*")
    return {f"{name}.md": "\n\n".join(part for part in parts if part) + "\n", **made}


def _output(output: dict[str, Any], name: str, made: dict[str, str | bytes]) -> str:
    """What a cell put out, as Markdown."""
    if "text" in output:
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    place = f"images/{name}-{len(made)}"
    if "image/png" in data:
        made[f"{place}.png"] = base64.b64decode(data["image/png"])
        return f"![What the cell draws]({place}.png)"
    if frame := re.search(r'style="([^"]*)" srcdoc=\'([^\']*)\'', data.get("text/html", "")):
        made[f"{place}.html"] = html.unescape(frame[2])
        return f'<iframe sandbox="allow-scripts" style="{html.escape(frame[1])}" src="{place}.html"></iframe>'
    if "text/html" in data:
        return re.sub(r"\s*\n\s*", " ", re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL))
    return f"```text\n{data.get('text/plain', '')}\n```"
