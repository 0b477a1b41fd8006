"""The layer contracts have teeth: a pure package that imports a clock is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("package", ["raft", "mq", "remoting"])
def test_a_clock_in_the_pure_core_fails_the_check(package: str, tmp_path: Path) -> None:
    """import-linter fails when a copy of a pure package imports `time`."""
    copy = tmp_path / f"strata_{package}"
    copy.mkdir()
    (copy / "__init__.py").write_text("")
    (copy / "clock.py").write_text("import time\n\nNOW = time.time()\n")
    config = tmp_path / "contract.toml"
    section = _forbidden_section((ROOT / "pyproject.toml").read_text())
    config.write_text(
        f'[tool.importlinter]\nroot_packages = ["strata_{package}"]\n'
        f"include_external_packages = true\n{section}".replace(
            'source_modules = ["strata_raft", "strata_mq", "strata_remoting"]',
            f'source_modules = ["strata_{package}"]',
        )
    )
    result = subprocess.run(
        [
            str(Path(sys.executable).parent / "lint-imports"),
            *("--config", str(config), "--no-cache"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"strata_{package}.clock -> time" in result.stdout


def _forbidden_section(text: str) -> str:
    """Return the contract about the pure core as it stands in pyproject.toml."""
    start = text.index('[[tool.importlinter.contracts]]\nname = "The pure core')
    return text[start : text.index("[[tool.importlinter.contracts]]", start + 10)]
