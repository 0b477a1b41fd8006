"""`strata completion`: a script per shell that knows the commands, installed by one command."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from cyclopts import App
from cyclopts.completion.detect import ShellDetectionError

from strata_cli.main import run
from tests.parts.required import absent


@cache
def script_of(shell: str) -> str:
    """Return what `completion show` prints; it takes a second, so that one test pays for it."""
    written = io.StringIO()
    with redirect_stdout(written):
        assert run(["completion", "show", shell]) == 0
    return written.getvalue()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_knows_commands_and_options(shell: str, tmp_path: Path) -> None:
    """Nested commands and their options too; the shell itself accepts the script."""
    script = script_of(shell)
    for word in ("standalone", "doctor", "tail", "--tiered-storage-level"):
        assert word in script
    if (program := shutil.which(shell)) is not None:
        file = tmp_path / "script"
        file.write_text(script)
        assert subprocess.run([program, "-n", str(file)], check=False).returncode == 0


def test_one_command_installs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the place where the shell looks, or in a file that is named."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert run(["completion", "install", "bash", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["shell"] == "bash"
    assert Path(told["file"]).is_relative_to(tmp_path)
    assert "doctor" in Path(told["file"]).read_text()
    file = tmp_path / "own" / "strata.fish"
    file.parent.mkdir()
    assert run(["completion", "install", "fish", "--file", str(file), "--no-startup"]) == 0
    assert "doctor" in file.read_text()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("strata message ta", {"tail"}),
        ("strata group res", {"reset"}),
        ("strata message tail --fo", {"--follow", "--format"}),
    ],
)
def test_bash_completes(words: str, found: set[str], tmp_path: Path) -> None:
    """The script does what it is for: it finds commands and their options."""
    if shutil.which("bash") is None:
        absent("missing: bash (apt-get install bash)")
    script = tmp_path / "strata.bash"
    script.write_text(script_of("bash"))
    typed = words.split()
    program = (
        f"source {script}; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; "
        f'COMP_LINE="{words}"; COMP_POINT={len(words)}; _strata; '
        r'printf "%s\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(done.stdout.split()) == found


@pytest.mark.parametrize(("shell", "code"), [("zsh", 0), ("powershell", 1), (None, 2)])
def test_the_shell_is_found(
    shell: str | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a name it is the shell of the caller; a shell that is not known must be named."""

    def detected() -> str:
        if shell is None:
            raise ShellDetectionError
        return shell

    def generated(self: App, *, prog_name: str, shell: str) -> str:
        return f"{prog_name} for {shell}"

    monkeypatch.setattr("cyclopts.completion.detect.detect_shell", detected)
    monkeypatch.setattr(App, "generate_completion", generated)
    assert run(["completion", "show"]) == code
    output = capsys.readouterr()
    assert output.out == ("strata for zsh" if code == 0 else "")
    assert output.err.count("\n") == (code != 0)
