"""Statistics of rounds: what the ratio of two ways is, and how well it is known.

Rounds are paired: in round i both ways met the same mood of a shared disk. All of this works on the
logs of the rounds' ratios, where half and double are the same distance from 1.
"""
import functools
import math
import statistics

# `interval` is the one of bench/src/report/compare.rs, with its constants and its seed:
# the same rounds give the same figures. It is written again so that pages can be made where nothing
# is built. A test compares the constants.
RESAMPLES = 2000
ROUNDS_MIN = 3
BELOW = 0.025
ABOVE = 0.001

# Standard errors from which on a correlation of neighbours counts: less costs independent values their
# power, more lets alarms of correlated ones through (simulated). And the most that is believed.
CHANCE = 1.0
CORRELATION_MAX = 0.9

NORMAL = statistics.NormalDist()
WORD = (1 << 64) - 1


def logs(ours, other):
    """Logs of the rounds' ratios; None if there are not as many of both, or one is no number."""
    if len(ours) != len(other) or not all(one > 0 and two > 0 for one, two in zip(ours, other)):
        return None
    return [math.log(one / two) for one, two in zip(ours, other)]


def mean(values):
    """Mean of the values, and its standard error."""
    n = len(values)
    middle = math.fsum(values) / n
    return middle, math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (n - 1) / n)


def mean_in_turn(values):
    """Mean of values that were measured one after the other, and its standard error. Where neighbours are
    alike, n values tell as much as fewer that are not: the variance grows by (1 + r) / (1 - r), where r is
    their correlation (of an AR(1) process). Never less than that of `mean`."""
    middle, error = mean(values)
    r = correlation(values)
    return middle, error * math.sqrt((1 + r) / (1 - r))


def correlation(values):
    """Correlation of neighbours; none if it is so small that chance would do, since few values show one."""
    n = len(values)
    middle = math.fsum(values) / n
    apart = [value - middle for value in values]
    squares = math.fsum(value**2 for value in apart)
    if n < 5 or squares == 0:
        return 0.0
    found = math.fsum(one * two for one, two in zip(apart, apart[1:])) / squares
    # Without one, its standard error is about 1 / sqrt(n). What is found is too low by (1 + 4 r) / n
    # (Kendall).
    if found < CHANCE / math.sqrt(n):
        return 0.0
    return min((found * n + 1) / (n - 4), CORRELATION_MAX)


def interval(ours, other, comparisons=1, above=ABOVE):
    """Ratio of two ways and the ends of its interval, as `Ratio::of_rounds` has it. `comparisons` are
    those of the run, `above` the share of runs in which the truth may lie above the interval of any of
    them. None for too few rounds."""
    values = logs(ours, other)
    if values is None or len(values) < ROUNDS_MIN:
        return None
    n = len(values)
    middle, error = mean(values)
    above /= max(comparisons, 1)
    low, high = middle - error * student(BELOW, n - 1), middle + error * student(above, n - 1)
    return math.exp(middle), math.exp(low), math.exp(high)


def place(outside, n):
    return int(widened(outside, n) * RESAMPLES)


@functools.lru_cache
def resamples(n):
    """Places of the values of each resample, by SplitMix64 of bench/src/random.rs."""
    state = n
    drawn = []
    for _ in range(RESAMPLES * n):
        state = (state + 0x9E3779B97F4A7C15) & WORD
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        drawn.append(((z ^ (z >> 31)) * n) >> 64)
    return [drawn[start:start + n] for start in range(0, RESAMPLES * n, n)]


def widened(outside, n):
    """Share of resamples to leave out at an end, so that the truth lies beyond it in `outside` of all runs."""
    return NORMAL.cdf(-math.sqrt(n / (n - 1)) * student(outside, n - 1))


@functools.lru_cache(maxsize=None)
def student(above, freedom):
    """Value above which Student's t lies with probability `above`."""
    low, high = 0.0, 1e6
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if (1 - student_within(middle, freedom)) / 2 > above:
            low = middle
        else:
            high = middle
    return high


def student_within(t, freedom):
    """Probability that Student's t lies within `t` of zero (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    is_odd = freedom % 2 == 1
    # Each term is the one before times cos² (k - 1) / k.
    term, total, k = (math.cos(angle), 0.0, 1) if is_odd else (1.0, 0.0, 0)
    while k + 2 <= freedom:
        total += term
        k += 2
        term *= square * (k - 1) / k
    return (angle + sine * total) / (math.pi / 2) if is_odd else sine * total
