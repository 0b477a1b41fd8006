"""Write the part of the chart's schema of values that describes `config`, from the configuration.

`definitions.config` of charts/strata/values.schema.json is generated; the rest is written by hand.
Keys with secrets are left out: the chart would put them into a ConfigMap.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from strata_cli.processes.cluster_config import ClusterConfig

SCHEMA = Path(__file__).resolve().parent.parent / "charts" / "strata" / "values.schema.json"

_KEPT = (
    *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems"),
)

Schema = dict[str, Any]


def main() -> int:
    """Write the file, or with --check tell whether that would change it."""
    fresh = generated()
    if "--check" in sys.argv[1:]:
        if SCHEMA.read_text(encoding="utf-8") == fresh:
            return 0
        print(f"{SCHEMA} is not fresh: run `make docs`")
        return 1
    SCHEMA.write_text(fresh, encoding="utf-8")
    return 0


def generated() -> str:
    """Return the text of the whole file."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    schema["definitions"]["config"] = config_schema()
    return json.dumps(schema, indent=1) + "\n"


def config_schema() -> Schema:
    """Return the schema of the configuration: sections, keys, their types and limits."""
    model = ClusterConfig.model_json_schema()
    return _plain(model, model["$defs"])


def _plain(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return a schema without references, titles and defaults."""
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if len(schema.get("allOf", ())) == 1:
        return _plain(schema["allOf"][0], definitions)
    found = {key: schema[key] for key in _KEPT if key in schema}
    if "anyOf" in schema:
        found["anyOf"] = [_plain(each, definitions) for each in schema["anyOf"]]
    if schema.get("type") == "array":
        found["items"] = _plain(schema.get("items", {}), definitions)
        # Lists of words may be one text with commas.
        return {"anyOf": [found, {"type": "string"}]} if found["items"] else found
    if "properties" in schema:
        found["additionalProperties"] = False
        found["properties"] = {
            name: _plain(each, definitions)
            for name, each in schema["properties"].items()
            if each.get("format") != "password"
        }
    elif isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = _plain(schema["additionalProperties"], definitions)
    return found


if __name__ == "__main__":
    sys.exit(main())
