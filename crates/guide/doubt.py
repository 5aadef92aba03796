"""Fits the threshold for doubted answers: the lowest trusted probability of an answer's least likely token."""

# The threshold of mlx-guide (`CONFIDENCE_THRESHOLD` in src/lib.rs). `report` compares it with a new fit.
SURE = 0.81


def fit(outcomes):
    """Returns the threshold that best separates right from wrong answers. It maximizes the share of wrong ones below it minus that of right ones."""
    right, wrong = ([likely for likely, is_right in outcomes if is_right is kind] for kind in (True, False))
    share = lambda values, bound: sum(likely < bound for likely in values) / max(1, len(values))
    bounds = [step / 100 for step in range(1, 100)]
    return max(bounds, key=lambda bound: share(wrong, bound) - share(right, bound))


def shares(outcomes, bound):
    """Returns the shares of doubted answers among the wrong and among the right ones, and of wrong ones among the trusted."""
    doubted = lambda kind: sum(likely < bound for likely, is_right in outcomes if is_right is kind)
    wrong = sum(not is_right for _, is_right in outcomes)
    right = len(outcomes) - wrong
    kept = len(outcomes) - doubted(True) - doubted(False)
    return dict(
        wrong_doubted=round(doubted(False) / max(1, wrong), 4), right_doubted=round(doubted(True) / max(1, right), 4),
        wrong_of_sure=round((wrong - doubted(False)) / max(1, kept), 4))


def report(outcomes):
    """Returns the results of `SURE` on all cases, and of thresholds fitted on one half and tested on the other."""
    outcomes = sorted(outcomes)
    halves = outcomes[::2], outcomes[1::2]
    crossed = [dict(fitted=fit(one), **shares(other, fit(one))) for one, other in (halves, halves[::-1])]
    return dict(threshold=SURE, **shares(outcomes, SURE), fitted=fit(outcomes), crossed=crossed)
