"""YAML files of people, read strictly: a key that is there twice is a mistake.

The usual reader lets the last one count. A file that was put together of two would lose the first
list of topics that way, and `strata apply --prune` would delete them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strata_cli.errors import UsageError

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node

_MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key `<<`, which brings the keys of another mapping along."""


def documents_of(text: str) -> list[Any]:
    """Return the documents of a YAML or JSON text that are not empty.

    Raises:
        UsageError: it is no such text, or a mapping has a key twice.
    """
    import yaml

    class StrictLoader(yaml.SafeLoader):
        """Refuses a mapping with a key that is there twice."""

        def compose_mapping_node(self, anchor: dict[Any, Node]) -> MappingNode:
            node: MappingNode = super().compose_mapping_node(anchor)
            known: set[tuple[str, str]] = set()
            for key, _ in node.value:
                name = key.tag, str(key.value)
                if name in known and key.tag != _MERGE:
                    raise UsageError(f"line {key.start_mark.line + 1}: {name[1]} is there twice")
                known.add(name)
            return node

    try:
        found = yaml.load_all(text, Loader=StrictLoader)
        return [each for each in found if each is not None]
    except yaml.YAMLError as error:
        raise UsageError(f"the file is not YAML: {' '.join(str(error).split())}") from None
    except (ValueError, RecursionError) as error:
        # A date that is none, or lists in lists without an end.
        raise UsageError(f"the file cannot be read: {error}") from None
