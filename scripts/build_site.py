"""Build the documentation as a site of static files: `build_site.py TARGET`.

The pages keep the paths of the repository, so a link that works there works on the site. Each page
of the repository's root and of `docs` is part of the site, and so is each file that one of them
links to. `SECTIONS` gives the order; a page that no section names stands in the last section.
A dead link or a missing anchor ends the build with exit code 1. Nothing is fetched, neither here
nor by a reader's browser.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

# A section and its pages in order. A pattern takes every page that no other section names; a page
# that does not exist is left out.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Start",
        (
            "docs/quickstart.md",
            "docs/concepts.md",
            "docs/clients.md",
            "docs/glossary.md",
            "docs/comparison.md",
            "docs/migration.md",
        ),
    ),
    (
        "Install",
        (
            "docs/install.md",
            "docs/sizing.md",
            "docs/container.md",
            "docs/kubernetes.md",
            "docs/autoscaling.md",
        ),
    ),
    (
        "Operate",
        (
            "docs/troubleshooting.md",
            "docs/command-line.md",
            "docs/console.md",
            "docs/remoting.md",
            "docs/mqadmin.md",
            "docs/backup.md",
            "docs/restore.md",
            "docs/upgrade.md",
            "docs/security.md",
            "docs/observability.md",
            "docs/placement.md",
            "docs/tier.md",
            "docs/object-stores.md",
        ),
    ),
    (
        "Use",
        (
            "docs/filters.md",
            "docs/priority.md",
            "docs/lite-topics.md",
            "docs/kv.md",
            "docs/spark.md",
        ),
    ),
    ("Reference", ("docs/cli.md", "docs/configuration.md", "docs/metrics.md", "docs/protocol.md")),
    ("Runbooks", ("docs/runbooks/README.md", "docs/runbooks/*.md")),
    (
        "Inside",
        ("ARCHITECTURE.md", "docs/data-layout.md", "docs/rules.md", "docs/performance.md"),
    ),
    ("Decisions", ("docs/adr/README.md", "docs/adr/*.md")),
    (
        "Project",
        (
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "docs/testing.md",
            "docs/releasing.md",
        ),
    ),
    ("More", ("docs/**/*.md", "**/*.md")),
)
_LINK = re.compile(r"\]\(([^)#\s]+)")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def main() -> None:
    """Build the site; exit with 1 if a page has a dead link."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, help="the folder that gets the site")
    target = parser.parse_args().target.resolve()
    source = target.with_name(target.name + "-source")
    files = sorted(reachable())
    copy(files, source / "pages")
    configuration = settings(navigation([path for path in files if path.endswith(".md")]))
    # JSON is YAML: no writer of YAML is needed.
    (source / "mkdocs.yml").write_text(json.dumps(configuration, indent=1))
    generator = Path(sys.executable).with_name("zensical")
    command = [str(generator), "build", "--strict", "--clean", "-f", str(source / "mkdocs.yml")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if ran.returncode:
        # The generator ends a refused build with its own stack trace, which helps nobody.
        print((ran.stdout + ran.stderr).partition("Traceback (most")[0], file=sys.stderr)
        sys.exit(1)
    if target.exists():
        shutil.rmtree(target)
    (source / "site").rename(target)
    pages = sum(1 for _ in target.rglob("*.html"))
    print(f"{pages} pages in {target}: open {target / 'index.html'}")


def reachable(root: Path = ROOT) -> set[str]:
    """Return the pages of the site and every file that they link to, as paths below the root."""
    waiting = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        name = path.relative_to(root).as_posix()
        if name in found:
            continue
        found.add(name)
        if path.suffix == ".md":
            waiting += [file for file in targets(path) if file.is_file() and root in file.parents]
        elif path.suffix == ".html":
            # A page of its own brings what lies beside it.
            waiting += [file for file in path.parent.iterdir() if file.is_file()]
    return found


def targets(page: Path) -> Iterator[Path]:
    """Yield what the relative links of a page lead to, whether it exists or not."""
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" not in target:
            yield (page.parent / target).resolve()


def copy(files: list[str], folder: Path) -> None:
    """Make the folder hold exactly these files of the repository; README becomes the first page."""
    if folder.exists():
        shutil.rmtree(folder)
    for name in files:
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, to)


def navigation(pages: list[str], root: Path = ROOT) -> list[dict[str, Any]]:
    """Return sections with the title and path of each page; every page is in it exactly once."""
    named = {name for _, names in SECTIONS for name in names if "*" not in name} | {"README.md"}
    left = [page for page in pages if page not in named]
    entries: list[dict[str, Any]] = [{"StrataMQ": "README.md"}]
    for section, names in SECTIONS:
        chosen: list[str] = []
        for name in names:
            if "*" not in name:
                chosen += [name] if name in pages else []
                continue
            matching = [page for page in left if _matches(page, name)]
            left = [page for page in left if page not in matching]
            chosen += matching
        if chosen:
            entries.append({section: [{title(root / page): page} for page in chosen]})
    return entries


def _matches(page: str, pattern: str) -> bool:
    """Whether a pattern takes a page; `**` stands for any number of folders."""
    expression = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    return re.fullmatch(expression, page) is not None


def title(page: Path) -> str:
    """Return the first heading of a page without marks of code, or its name."""
    found = _TITLE.search(page.read_text())
    return found[1].replace("`", "") if found else page.stem


def settings(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the generator is told: nothing from elsewhere, relative addresses, search."""
    scheme = {"media": "(prefers-color-scheme: light)", "scheme": "default"}
    dark = {"media": "(prefers-color-scheme: dark)", "scheme": "slate"}
    return {
        "site_name": "StrataMQ",
        "docs_dir": "pages",
        "site_dir": "site",
        "use_directory_urls": False,
        "nav": entries,
        "extra": {"generator": False},
        "theme": {
            "name": "material",
            "font": False,
            "palette": [scheme, dark],
            "features": ["navigation.indexes", "navigation.top", "content.code.copy"],
        },
        "markdown_extensions": [
            "attr_list",
            "md_in_html",
            "tables",
            {"toc": {"permalink": True}},
            "pymdownx.superfences",
        ],
    }


if __name__ == "__main__":
    main()
