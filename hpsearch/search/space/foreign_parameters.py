"""Parameters in the terms of other libraries, and what they are called here."""

from __future__ import annotations

_RAY, _OPTUNA = "ray.tune.", "optuna.distributions"
_OURS = {
    "Float": "Float(low, high), or Float(low, high, log=True) for loguniform",
    "Integer": "Int(low, high), which includes high",
    "Categorical": "Categorical([...])",
    "FloatDistribution": "Float(low, high, log=..., step=...)",
    "IntDistribution": "Int(low, high, log=..., step=...)",
    "CategoricalDistribution": "Categorical([...])",
}


def what_is_foreign(value: object) -> str | None:
    """Return a description of a parameter of Ray Tune or Optuna, with its replacement; None for other values.

    Nothing is imported.

    >>> what_is_foreign({"grid_search": [1, 2]})
    "a grid of Ray Tune: write Categorical([...]) and sampler='brute_force', or pass backend='ray'"
    """
    if isinstance(value, dict) and set(value) == {"grid_search"}:
        return "a grid of Ray Tune: write Categorical([...]) and sampler='brute_force', or pass backend='ray'"
    module, kind = type(value).__module__, type(value).__name__
    if module.startswith(_RAY):
        write = f"write {_OURS[kind]}, or " if kind in _OURS else ""
        return f"a domain of Ray Tune ({kind}): {write}pass backend='ray'"
    if module.startswith(_OPTUNA) and kind in _OURS:
        return f"a distribution of Optuna: write {_OURS[kind]}"
    return None
