"""Hooks of mkdocs.yml: copy linked files from outside of docs/, and document the public API.

On GitHub a page links to ``../../configs/demo.yaml``. On the site that file is at
``source/configs/demo.yaml``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]+)?(\))")
CODE = re.compile(r"(^ *```.*?^ *```|``.+?``|`[^`\n]+`)", re.M | re.S)
API = re.compile(r"^\| `(\w+)` \| `(rlinf_core\.[\w.]+)` \|", re.M)


def repository_path(src_uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    return src_uri.removeprefix("source/") if src_uri.startswith("source/") else f"docs/{src_uri}"


def targets(markdown: str, path: str) -> list[str]:
    """Return the paths in the repository that a page at ``path`` links to."""
    links = (match[2] for part in CODE.split(markdown)[::2] for match in LINK.finditer(part))
    return [
        os.path.normpath(os.path.join(os.path.dirname(path), link))
        for link in links
        if "://" not in link
    ]


def on_files(files: Files, config: Any) -> Files:
    """Add each file outside of docs/ that a page links to, and the files that they link to."""
    waiting = [repository_path(file.src_uri) for file in files if file.src_uri.endswith(".md")]
    added: set[str] = set()
    while waiting:
        path = waiting.pop()
        for target in targets((ROOT / path).read_text(), path):
            if not target.startswith("docs/") and target not in added and (ROOT / target).is_file():
                added.add(target)
                files.append(
                    File.generated(config, f"source/{target}", abs_src_path=str(ROOT / target))
                )
                waiting += [target] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Send links to the copies, and write the API's page."""
    path = repository_path(page.file.src_uri)
    here = os.path.dirname(page.file.src_uri)

    def relink(match: re.Match[str]) -> str:
        if "://" in match[2]:
            return match[0]
        target = os.path.normpath(os.path.join(os.path.dirname(path), match[2]))
        at = target.removeprefix("docs/") if target.startswith("docs/") else f"source/{target}"
        return f"{match[1]}{os.path.relpath(at, here or '.')}{match[3] or ''}{match[4]}"

    parts = CODE.split(markdown)
    markdown = "".join(
        LINK.sub(relink, part) if number % 2 == 0 else part for number, part in enumerate(parts)
    )
    if page.file.src_uri == "reference/api.md":
        markdown += "".join(f"\n::: {module}.{name}\n" for name, module in API.findall(markdown))
    return markdown
