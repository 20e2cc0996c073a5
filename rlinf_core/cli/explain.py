"""``rlinf explain RL-E101``: cause and remedy of an error by its code."""

from rlinf_core.cli.data import print_table
from rlinf_core.core.error_codes import error_kinds
from rlinf_core.core.errors import RlinfError, nearest


def explain(code: str) -> None:
    """Print a kind of error, or the list of all without a code.

    Raises:
        RlinfError: there is no such code.
    """
    kinds = error_kinds()
    if not code:
        print_table(["code", "error"], [[kind.code, kind.title] for kind in kinds.values()])
        return
    name = f"RL-E{code.strip(' []').upper().removeprefix('RL-').removeprefix('E')}"
    if name not in kinds:
        raise RlinfError(
            f"explain: expected a code such as RL-E101, got '{code}'{nearest(name, kinds)}. rlinf "
            "explain lists all codes",
            code="RL-E110",
        )
    kind = kinds[name]
    print(
        f"{kind.code}: {kind.title}\n\nCause    {kind.cause}\nRemedy   {kind.remedy}\nExample  "
        f"{kind.example}"
    )
    if kind.usage:
        print("\nA command that ends with it has exit code 2.")
