"""The pickled state that Optuna's `CmaEsSampler` keeps in a storage: loading it could run code, so it is checked.

A storage may come from someone else, in the folder of a study. No other sampler of Optuna unpickles anything.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable

from optuna.trial import FrozenTrial

from ..errors import StudyError

# Optuna cuts the state into pieces, as some databases limit the length of a value.
_PIECE = re.compile(r"(.*optimizer):([0-9]+)", re.DOTALL)
# To look for a name in another module of numpy would import it.
_MODULES_OF_NUMPY = re.compile(
    r"numpy|numpy\.dtype|numpy\._?core\.(multiarray|numeric|_multiarray_umath)|numpy\.random(\._pickle|\._mt19937|\.mtrand)?"
)
_OF_NUMPY = {
    *("ndarray", "dtype", "scalar", "_reconstruct", "_frombuffer", "RandomState", "MT19937"),
    *("__randomstate_ctor", "__bit_generator_ctor"),
}


def check_sampler_states(trials: Iterable[FrozenTrial], place: str) -> None:
    """Check that the states of a sampler in a storage are made of the optimizers of cmaes and arrays of numpy alone.

    Args:
        trials: the trials in the storage.
        place: the storage, in words.

    Raises:
        StudyError: a state could do more, or is damaged.
    """
    for trial in trials:
        for state in _states_of(trial.system_attrs):
            try:
                _Reader(io.BytesIO(bytes.fromhex(state))).load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a module that it asks for may end the program
                raise StudyError(
                    f"The storage {place} is not used: trial {trial.number} has a state of CmaEsSampler that the "
                    f"sampler did not write ({type(error).__name__}: {error}). Loading it could run a program. If you "
                    "trust its trials, delete the storage's file: the next search rebuilds it without such states."
                ) from error


def _states_of(attributes: dict[str, object]) -> list[str]:
    pieces: dict[str, dict[int, str]] = defaultdict(dict)
    for key, value in attributes.items():
        found = _PIECE.fullmatch(key)
        if found is not None:
            pieces[found[1]][int(found[2])] = str(value)
    return ["".join(each[place] for place in sorted(each)) for each in pieces.values()]


class _Reader(pickle.Unpickler):
    """Loads what consists of optimizers and arrays."""

    def find_class(self, module: str, name: str) -> object:
        """Return a class or function; see above which are allowed."""
        package, is_plain = module.partition(".")[0], "." not in name
        if is_plain and _MODULES_OF_NUMPY.fullmatch(module) and name in _OF_NUMPY:
            return super().find_class(module, name)
        if is_plain and package == "cmaes":
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__.partition(".")[0] == "cmaes":
                return found
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
