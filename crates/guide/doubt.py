"""When the guide is not sure: below which probability of its least likely token an answer is doubted."""

# The probability that mlx-guide uses (`SURE` in src/lib.rs); `report` shows what it does and what a fit would give.
SURE = 0.74


def fit(outcomes):
    """The probability that tells right answers from wrong ones best: the share of wrong ones below it minus that of right ones."""
    right, wrong = ([likely for likely, is_right in outcomes if is_right is kind] for kind in (True, False))
    share = lambda values, bound: sum(likely < bound for likely in values) / max(1, len(values))
    bounds = [step / 100 for step in range(1, 100)]
    return max(bounds, key=lambda bound: share(wrong, bound) - share(right, bound))


def shares(outcomes, bound):
    """The shares of wrong answers that are doubted, of right ones that are, and of wrong ones among all that are not."""
    doubted = lambda kind: sum(likely < bound for likely, is_right in outcomes if is_right is kind)
    wrong = sum(not is_right for _, is_right in outcomes)
    right = len(outcomes) - wrong
    kept = len(outcomes) - doubted(True) - doubted(False)
    return dict(
        wrong_doubted=round(doubted(False) / max(1, wrong), 4), right_doubted=round(doubted(True) / max(1, right), 4),
        wrong_of_sure=round((wrong - doubted(False)) / max(1, kept), 4))


def report(outcomes):
    """What `SURE` does on all, and what a bound does that was fitted on one half and is used on the other."""
    outcomes = sorted(outcomes)
    halves = outcomes[::2], outcomes[1::2]
    crossed = [dict(fitted=fit(one), **shares(other, fit(one))) for one, other in (halves, halves[::-1])]
    return dict(threshold=SURE, **shares(outcomes, SURE), fitted=fit(outcomes), crossed=crossed)
