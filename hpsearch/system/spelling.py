"""Which of some names a misspelt one was meant to be: by edits, by words, or none of them.

A suggestion that is far-fetched costs its reader more than none, so short names need to be nearly right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

_MOST_EDITS = 3
_LETTERS_PER_EDIT = 4
_SHORTEST_ABBREVIATION = 3
# Words that a longer name may have without being another thing: batch_size is per_device_train_batch_size.
_FILLERS = {"device", "num", "per", "train"}
# Short names that people give arguments, with those that are meant.
_SHORT_NAMES = {
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "bs": "per_device_train_batch_size",
    "grad_clip": "max_grad_norm",
    "gradient_clipping": "max_grad_norm",
    "lr": "learning_rate",
    "n_epochs": "num_train_epochs",
    "scheduler": "lr_scheduler_type",
    "wd": "weight_decay",
}


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that `name` is a misspelling, an abbreviation or a part of; None if there is none.

    A misspelling differs by few edits: one for every four letters, three at most, where two letters that changed
    places are one edit, which also a name of three letters may have. Otherwise all words of the one must be in the
    other, perhaps abbreviated or misspelt. A single word may abbreviate a name of two, unless several names have it.

    >>> nearest("lerning_rate", ["seed", "learning_rate"]), nearest("epochs", ["save_steps", "num_train_epochs"])
    ('learning_rate', 'num_train_epochs')
    >>> nearest("lr", ["seed", "learning_rate"])
    'learning_rate'
    >>> nearest("steps", ["eval_steps", "save_steps"]), nearest("train_loss", ["eval_loss"])
    (None, None)
    """
    candidates = sorted(allowed) if isinstance(allowed, Set) else list(allowed)
    if name not in candidates and _SHORT_NAMES.get(name.lower()) in candidates:
        return _SHORT_NAMES[name.lower()]
    misspelt = misspelling_of(name, candidates)
    if misspelt is not None:
        return misspelt
    words = _words(name)
    further = {each: _further_words(words, _words(each)) for each in candidates if _shares_words(words, _words(each))}
    closest = [each for each in further if further[each] == min(further.values())]
    if len(words) == 1 and (len(closest) > 1 or any(further[each] > 1 for each in closest)):
        return None
    return closest[0] if closest else None


def nearest_name(name: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the allowed name that is meant, or an empty string if none is near.

    >>> nearest_name("lerning_rate", ["learning_rate", "seed"])
    " Did you mean 'learning_rate'?"
    >>> nearest_name("zzz", ["learning_rate"])
    ''
    """
    found = nearest(name, allowed)
    return "" if found is None else f" Did you mean {found!r}?"


def misspelling_of(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that `name` differs from by few edits; None if there is none.

    >>> misspelling_of("lerning_rate", ["learning_rate"]), misspelling_of("rank", ["local_rank"])
    ('learning_rate', None)
    """
    found = [each for each in allowed if _is_misspelt(name.lower(), each.lower(), _MOST_EDITS)]
    return min(found, key=lambda each: edit_distance(name.lower(), each.lower()), default=None)


def _shares_words(given: list[str], known: list[str]) -> bool:
    """Return whether all words of `given` are in `known`, or all but one of them are all of `known`."""
    is_part = len(given) <= len(known) and _are_in(given, known)
    return is_part or (len(given) == len(known) + 1 and _are_in(known, given))


def _further_words(given: list[str], known: list[str]) -> int:
    return abs(len([each for each in known if each not in _FILLERS or each in given]) - len(given))


def _are_in(few: list[str], many: list[str]) -> bool:
    """Return whether every word of `few` is like another one of `many`."""
    is_one_of_several = len(few) == 1 < len(many)
    left = list(many)
    for word in few:
        like = next((each for each in left if _is_like(word, each, is_one_of_several)), None)
        if like is None:
            return False
        left.remove(like)
    return bool(few)


def _is_like(one: str, other: str, strictly: bool) -> bool:
    """Return whether two words are the same but for an edit or an abbreviation; `strictly`: but for one edit."""
    short, long = sorted((one, other), key=len)
    is_abbreviation = len(short) >= _SHORTEST_ABBREVIATION and long.startswith(short)
    return (is_abbreviation and not strictly) or _is_misspelt(one, other, 1 if strictly else _MOST_EDITS)


def _is_misspelt(one: str, other: str, most: int) -> bool:
    are_swapped = len(one) >= _SHORTEST_ABBREVIATION and sorted(one) == sorted(other)
    allowed = max(min(most, max(len(one), len(other)) // _LETTERS_PER_EDIT), 1 if are_swapped else 0)
    return abs(len(one) - len(other)) <= allowed and edit_distance(one, other) <= allowed


def _words(name: str) -> list[str]:
    return [each for each in re.split(r"[\W_]+", name.lower()) if each]


def edit_distance(one: str, other: str) -> int:
    """Count the insertions, deletions, substitutions and swaps of neighbours that turn one text into the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, above, row = row, before, [i]
        for j, wanted in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]
