"""Is the new one worse? Wald's sequential test, which may be looked at after every pair of episodes.

A. Wald, Sequential Analysis (Wiley, 1947), section 6.4.2, of two binomial distributions. Each episode of the new policy is
paired with one of the old. Pairs that did alike say nothing. Of the others, the new one did worse in a fraction p: 1/2
where the two are equal, whatever their success rates, and odds / (1 + odds) where it is as much worse as has to be found
out. Every pair that differs multiplies the ratio of the likelihoods of the second to the first; the test ends once that
is 1 / alpha or more (worse), or beta or less (not worse).

The ratio, and its inverse, are supermartingales under what each of the two ends speaks against, also where p < 1/2 or
beyond the odds. So by Ville's inequality (1939) neither error is more probable than alpha and beta, however long the test
goes on and wherever it is cut off. Of numbers instead of successes it is the sign test, made sequential in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

WORSE, NOT_WORSE, OPEN = "worse", "not worse", ""


def judged(pairs: Iterable[float], odds: float, alpha: float, beta: float) -> str:
    """What the test says after these pairs.

    Args:
        pairs: of each, in their order, a number above 0 where the new one did worse, below 0 where better, 0 where alike.
        odds: of worse to better, of a policy that has to be found worse.
        alpha: of calling one worse that is not.
        beta: of calling one not worse that is, by these odds.
    """
    of_worse, of_better = math.log(2 * odds / (1 + odds)), math.log(2 / (1 + odds))
    evidence = 0.0
    for pair in pairs:
        evidence += of_worse if pair > 0 else of_better if pair < 0 else 0.0
        if evidence >= -math.log(alpha):
            return WORSE
        if evidence <= math.log(beta):
            return NOT_WORSE
    return OPEN
