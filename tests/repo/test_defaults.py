"""A default is written once: a key of the configuration takes it from the options it is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.sources import nodes_of, written_code

# Numbers that are alike by chance, and those of plugins, of which the core imports nothing.
OTHERWISE = {
    # An address that everything listens on.
    ("NodeSection", "EdgeOptions", "host"),
    ("NodeSection", "MetricsServerOptions", "host"),
    ("ConsoleSection", "EdgeOptions", "host"),
    ("ConsoleSection", "MetricsServerOptions", "host"),
    # Limits of other connections and other calls.
    ("PeerSection", "WindowOptions", "call_timeout_ms"),
    ("RefusalsSection", "ForwarderOptions", "max_connections"),
    ("RemotingSection", "EdgeOptions", "max_upload_ms"),
    ("RemotingSection", "ForwarderOptions", "max_connections"),
    ("StorageClientSection", "ForwarderOptions", "connect_timeout_ms"),
    ("StorageClientSection", "MetadataClientOptions", "try_timeout_ms"),
    # Key-value tables.
    ("KvSection", "TableOptions", "max_key_bytes"),
    ("KvSection", "TableOptions", "max_operations"),
    ("KvSection", "TableOptions", "max_value_bytes"),
}


def literals(*, of_sections: bool) -> Iterator[tuple[str, str, object]]:
    """Yield class, field and default, of sections or of classes of options."""
    for path in written_code("libs", "services"):
        for each in nodes_of(path):
            if not isinstance(each, ast.ClassDef):
                continue
            bases = {ast.unparse(base) for base in each.bases}
            is_section = bool(bases & {"Section", "Config", "BaseModel"})
            is_options = each.name.endswith(("Options", "Limits", "Rules"))
            if is_section if of_sections else is_options and not is_section:
                yield from (
                    (each.name, name, value)
                    for name, value in map(_default, each.body)
                    if value is not None
                )


def _default(statement: ast.stmt) -> tuple[str, object]:
    """Return name and default of a field; None: it has none, or not a literal."""
    if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
        return "", None
    value = statement.value
    if isinstance(value, ast.Call):
        value = next((each.value for each in value.keywords if each.arg == "default"), None)
    if value is None or any(isinstance(each, ast.Call | ast.Attribute) for each in ast.walk(value)):
        return "", None
    text = ast.unparse(value)
    names = {"_MIB": 1024 * 1024, "_DAY_MS": 86_400_000}
    try:
        return statement.target.id, eval(text, {"__builtins__": {}}, names)
    except NameError:
        return "", None


def test_no_default_is_written_in_a_section_and_in_options() -> None:
    """A literal of a key does not repeat the one of the field that it fills."""
    options = list(literals(of_sections=False))
    assert len(options) > 100
    twice = {
        (section, owner, name)
        for section, name, value in literals(of_sections=True)
        for owner, other, default in options
        if value and value is not True and (name, value) == (other, default)
    }
    assert twice == OTHERWISE
