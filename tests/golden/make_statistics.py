"""Writes statistics.json: figures of SciPy and statsmodels, which are no dependencies of the project.

python -m venv /tmp/reference && /tmp/reference/bin/pip install scipy statsmodels
/tmp/reference/bin/python tests/golden/make_statistics.py > tests/golden/statistics.json
"""

from __future__ import annotations

import json
import sys
from itertools import combinations
from math import comb

import numpy as np
import scipy
import statsmodels
import statsmodels.api as sm
from scipy.stats import binomtest, permutation_test, t
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint


def main() -> None:
    """Prints the figures."""
    made = {"scipy": scipy.__version__, "statsmodels": statsmodels.__version__, "numpy": np.__version__}
    figures = {"made_with": made, **intervals(), **tests(), "passes": passes()}
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")


def intervals() -> dict[str, object]:
    """Quantiles, intervals of shares, and cluster-robust errors."""
    freedoms = [*range(1, 61), 99, 100, 499, 500, 999, 1000, 1001, 5000, 100000]
    pairs = [(0, 1), (0, 10), (1, 10), (5, 10), (10, 10), (37, 100), (95, 100), (999, 1000)]
    random = np.random.default_rng(5)
    clusters = []
    for tasks in (2, 7, 40):
        groups = np.repeat(np.arange(tasks), random.integers(1, 9, tasks))
        y = np.round(random.normal(size=tasks)[groups] + random.normal(size=len(groups)), 6)
        fit = sm.OLS(y, np.ones(len(y))).fit(cov_type="cluster", cov_kwds={"groups": groups, "use_correction": True})
        held = [y[groups == one].tolist() for one in range(tasks)]
        clusters.append({"groups": held, "mean": fit.params[0], "error": fit.bse[0]})
    upper = [(n, proportion_confint(0, n, method="beta")[1]) for n in (1, 2, 20, 500)]
    return {
        "student": [(one, t.ppf(0.975, one)) for one in freedoms],
        "wilson": [(won, n, *proportion_confint(won, n, method="wilson")) for won, n in pairs],
        "clopper_pearson_upper": upper,
        "clusters": clusters,
    }


def tests() -> dict[str, object]:
    """McNemar's exact test, and sign flips over all ways."""
    pairs = [(0, 1), (1, 1), (5, 0), (10, 2), (6, 6), (3, 17), (60, 41), (300, 250)]
    found = []
    for fixed, broken in pairs:
        p = mcnemar([[5, fixed], [broken, 5]], exact=True).pvalue
        assert abs(p - binomtest(fixed, fixed + broken).pvalue) < 1e-9
        found.append((fixed, broken, min(1.0, p)))
    random, flips = np.random.default_rng(6), []
    for size in (3, 8, 12):
        for sums in (random.integers(-4, 6, size).astype(float), np.round(random.normal(0.4, 1, size), 6)):
            p = permutation_test(
                (sums,), lambda x, axis: np.abs(x.sum(axis=axis)), permutation_type="samples", n_resamples=np.inf,
                alternative="greater", vectorized=True,
            ).pvalue  # fmt: skip
            flips.append((sums.tolist(), p))
    return {"mcnemar": found, "sign_flips": flips}


def passes() -> list[tuple[int, int, int, float, float]]:
    """pass@k and pass^k by looking at every choice of k samples."""
    found = []
    for n, c, k in ((1, 1, 1), (4, 1, 2), (6, 3, 2), (8, 7, 5), (10, 2, 9)):
        chosen = list(combinations([True] * c + [False] * (n - c), k))
        assert len(chosen) == comb(n, k)
        found.append(
            (n, c, k, float(np.mean([any(one) for one in chosen])), float(np.mean([all(one) for one in chosen])))
        )
    return found


if __name__ == "__main__":
    main()
