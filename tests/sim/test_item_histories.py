"""The project's linearizability checker and porcupine agree on histories of one item.

`make porcupine` builds the other one (Go); without it the comparison is skipped.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strata_sim.linearizability import ITEM, UNKNOWN, Operation, check
from tests.parts.required import absent

PORCUPINE = Path(__file__).resolve().parents[2] / "build" / "porcupine"
HISTORIES = 400
LOST = float("inf")


def made_up(chance: random.Random) -> list[Operation]:
    """Return a history as concurrent clients of a real item see it, sometimes with one lie."""
    state: tuple[str, int] | None = None
    history: list[Operation] = []
    free_s = [0.0] * chance.randrange(1, 5)
    now_s = 0.0
    for number in range(chance.randrange(1, 14)):
        client = chance.randrange(len(free_s))
        now_s = max(now_s, free_s[client]) + chance.random()
        asked = chance.choice(
            [
                ("put", f"v{number}"),
                ("get",),
                ("cas", chance.randrange(4), f"v{number}"),
                ("delete",),
            ]
        )
        answer, state = carried_out(state, asked)
        called_s = now_s - chance.random() * 2
        # Never at the very time of a return: the checkers order these differently.
        called_s = max(called_s, free_s[client] + 0.001)
        free_s[client] = max(now_s, called_s) + chance.random() * 2
        if chance.random() < 0.15:
            history.append(Operation(asked, UNKNOWN, called_s, LOST, str(client)))
            if chance.random() < 0.5:
                # It was never carried out after all; what was answered since may not fit.
                continue
        else:
            history.append(Operation(asked, answer, called_s, free_s[client], str(client)))
    if chance.random() < 0.5:
        return with_a_lie(history, chance)
    return history


def carried_out(state: Any, asked: Any) -> tuple[Any, Any]:
    """Return (answer, state afterwards)."""
    version = 0 if state is None else state[1]
    match asked:
        case ("put", value):
            return version + 1, (value, version + 1)
        case ("cas", expected, value) if expected == version:
            return version + 1, (value, version + 1)
        case ("cas", _, _):
            return 0, state
        case ("delete",):
            return state is not None, None
    return state, state


def with_a_lie(history: Sequence[Operation], chance: random.Random) -> list[Operation]:
    """Return a history in which one answer is another one."""
    lied = list(history)
    at = chance.randrange(len(lied))
    one = lied[at]
    answers: dict[str, Sequence[Any]] = {
        "put": (1, 2, 3),
        "cas": (0, 1, 2),
        "delete": (True, False),
        "get": (None, ("v0", 1), ("v1", 1), ("v1", 2)),
    }
    if one.output is not UNKNOWN:
        answer = chance.choice(answers[one.input[0]])
        lied[at] = Operation(one.input, answer, one.called_s, one.returned_s, one.client)
    return lied


def as_json(history: Sequence[Operation]) -> str:
    """Return a history as the program reads it."""
    return json.dumps([as_dict(number, one) for number, one in enumerate(history)])


def as_dict(number: int, one: Operation) -> dict[str, Any]:
    answered = one.output is not UNKNOWN
    found = one.output if answered and one.input[0] == "get" else None
    value, version = found or ("", 0)
    return {
        # Nobody else may be the client of an operation without an answer.
        "client": int(one.client) if answered else 1_000 + number,
        "verb": one.input[0],
        "value": one.input[-1] if one.input[0] in ("put", "cas") else "",
        "expected": one.input[1] if one.input[0] == "cas" else 0,
        "answered": answered,
        "number": int(one.output) if answered and one.input[0] != "get" else 0,
        "found": {"Value": value, "Version": version},
        "called": round(one.called_s * 1e6),
        "returned": round(one.returned_s * 1e6) if answered else 1 << 60,
    }


def test_the_checker_agrees_with_porcupine() -> None:
    """On good histories, on lies, and where answers are missing."""
    if not PORCUPINE.is_file():
        absent("porcupine is missing: make porcupine")
    seed = int(os.environ.get("STRATA_SIM_SEED", random.randrange(2**32)))
    print(f"STRATA_SIM_SEED={seed}")
    chance = random.Random(seed)
    histories = [made_up(chance) for _ in range(HISTORIES)]
    lines = "\n".join(map(as_json, histories))
    done = subprocess.run([str(PORCUPINE)], input=lines, capture_output=True, text=True, check=True)
    theirs = [line == "true" for line in done.stdout.splitlines()]
    ours = [check(ITEM, history).linearizable for history in histories]
    assert ours == theirs
    # The comparison is worth something only if both verdicts are there.
    assert 0.2 < sum(ours) / len(ours) < 0.9
