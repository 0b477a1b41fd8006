"""SQL92 filters over the properties of messages, as RocketMQ has them.

`compile_sql` is the way in. `lexer`, `parser`, `syntax` and `compiler` are its steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_mq.filters.sql.compiler import Decide, EvaluationError, compile_condition, names_in
from strata_mq.filters.sql.lexer import illegal
from strata_mq.filters.sql.parser import SqlLimits, parse
from strata_mq.filters.sql.syntax import All, Condition, Equality, InCondition, Literal, Property

__all__ = ["EvaluationError", "SqlCondition", "SqlLimits", "compile_sql"]


@dataclass(frozen=True, slots=True)
class SqlCondition:
    """A compiled expression.

    Attributes:
        evaluate: properties by name -> True, False or None (NULL); only True matches. Raises
            EvaluationError: no match.
        names: the properties that it asks for.
        tree: what was compiled.
    """

    evaluate: Decide
    names: frozenset[str]
    tree: Condition

    def texts_of(self, name: str) -> frozenset[str] | None:
        """Return what a property must be for a match; None: the expression does not pin it.

        Looks at `name = 'text'` and `name IN (...)` as the expression itself or joined by AND.
        """
        conditions = self.tree.operands if isinstance(self.tree, All) else (self.tree,)
        for condition in conditions:
            match condition:
                case InCondition(negated=False) if condition.name == name:
                    return condition.texts
                case Equality(Property(pinned), Literal(str() as text)) | Equality(
                    Literal(str() as text), Property(pinned)
                ) if pinned == name:
                    return frozenset((text,))
        return None


_DEFAULT_LIMITS = SqlLimits()


def compile_sql(expression: str, limits: SqlLimits = _DEFAULT_LIMITS) -> SqlCondition:
    """Compile an expression.

    Raises:
        RequestError: ILLEGAL_FILTER_EXPRESSION, with the character at which it is wrong.
    """
    try:
        tree = parse(expression, limits)
        return SqlCondition(compile_condition(tree), names_in(tree), tree)
    except RecursionError as failure:
        # The limits are far below Python's; the caller's own stack may be deep.
        raise illegal(1, "conditions are nested too deep") from failure
