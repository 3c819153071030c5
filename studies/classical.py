"""A classifier of scikit-learn by cross-validation: the search of a plain function, with one branch for each model.

    python -m studies.classical [--trials 20] [--jobs 2]
    hpsearch run studies/classical.py

The function returns the mean accuracy of three folds on the handwritten digits of scikit-learn (8x8 pixels). With the
defaults of scikit-learn, the support-vector machine has 0.9699 and the random forest 0.9416.
"""

from __future__ import annotations

import argparse
from typing import Any

from hpsearch import Categorical, Float, FunctionTrial, Int, SearchPlan

SPACE: dict[str, Any] = {
    "model": Categorical(
        ["svm", "forest"],
        branches={
            "svm": {"C": Float(1e-2, 1e3, log=True), "gamma": Float(1e-5, 1e-1, log=True)},
            "forest": {"max_depth": Int(2, 32, log=True), "max_features": Float(0.05, 1.0)},
        },
    )
}


def accuracy(trial: FunctionTrial) -> dict[str, float]:
    """Return the mean accuracy of a model over three folds."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC

    params = dict(trial.params)
    if params.pop("model") == "svm":
        model: Any = SVC(**params)
    else:
        model = RandomForestClassifier(n_estimators=50, random_state=trial.seed, **params)
    images, digits = load_digits(return_X_y=True)
    return {"accuracy": float(cross_val_score(model, images, digits, cv=3).mean())}


study = SearchPlan(accuracy, SPACE, n_trials=20, study_name="classical")


def main(arguments: list[str] | None = None) -> None:
    """Search, and print the best model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    best = study.run(n_trials=options.trials, n_jobs=options.jobs)
    print(f"accuracy {best.objective:.4f} with {best.hyperparameters}")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
