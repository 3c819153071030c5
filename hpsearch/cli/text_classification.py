"""A study without code: the settings of a TOML file as the plan of a search that fine-tunes a text classifier."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..any_trainer.search_plan import SearchPlan
from ..errors import MissingPackageError, SpaceError, StudyError, one_of
from ..search.space.search_space import SearchSpace
from ..search.study import check_name
from ..system.spelling import nearest_name

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, PreTrainedTokenizerBase

    from ..trainer.trainer import Trainer

_READERS = {".csv": ("csv", {}), ".tsv": ("csv", {"delimiter": "\t"}), ".json": ("json", {}), ".jsonl": ("json", {})}
_READERS |= {".parquet": ("parquet", {})}
_METRICS = ("accuracy", "f1", "precision", "recall", "mcc")
_DEFAULTS: dict[str, Any] = {
    "output_dir": "runs",
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "disable_tqdm": True,
}


@dataclass(frozen=True)
class TextClassification:
    """The settings of a study file in TOML.

    Attributes:
        model: a folder, or a name on the Hub, of a pretrained encoder with its tokenizer.
        data: a file (CSV, TSV, JSON lines, Parquet), or the name of a dataset on the Hub, after which a colon and the
            name of its configuration may follow.
        text: the column of texts, or two columns of pairs.
        label: the column of labels: texts or numbers.
        validation: a file of its own, the name of a split, or the share of the data that is held out.
        metric: ``accuracy``, or of all classes alike ``f1``, ``precision``, ``recall``, ``mcc`` (these need
            scikit-learn).
        space: the name of a ready-made space, or a table of parameters, each with a ``kind``.
        max_length: of a text, in tokens; what is longer is cut off.
        seed: of the split.
        arguments: of training, in place of the defaults; what is set here is not searched.
        search: arguments of `Trainer.hyperparameter_search`.
    """

    model: str
    data: str
    text: str | Sequence[str] = "text"
    label: str = "label"
    validation: str | float = 0.1
    metric: str = "accuracy"
    space: str | Mapping[str, object] = "encoder"
    max_length: int = 128
    seed: int = 42
    arguments: Mapping[str, object] = field(default_factory=dict)
    search: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.metric not in _METRICS:
            raise StudyError(f"metric = {self.metric!r}: allowed are {one_of(_METRICS)}.{_near(self.metric, _METRICS)}")
        if self.metric != "accuracy" and importlib.util.find_spec("sklearn") is None:
            raise MissingPackageError(f"metric = {self.metric!r} needs scikit-learn: pip install scikit-learn")
        for name in ("model", "data", "label"):
            _check_type(name, getattr(self, name), str, "a text")
        for name in ("max_length", "seed"):
            _check_type(name, getattr(self, name), int, "a whole number")
        for name in ("arguments", "search"):
            _check_type(name, getattr(self, name), Mapping, f"a table, [{name}]")
        _check_type("space", self.space, (str, Mapping), "the name of a space, or a table [space]")
        _check_type("text", self.text, (str, list, tuple), "a column, or a list of two")
        if not all(isinstance(each, str) for each in self._columns()) or len(self._columns()) not in (1, 2):
            raise StudyError(f"text = {self.text!r} must be a column, or a list of two.")
        if "hp_space" in self.search:
            raise StudyError("[search] has hp_space; use the setting space, or the table [space], instead.")
        is_share = isinstance(self.validation, float) and 0 < self.validation < 1
        if not is_share and not isinstance(self.validation, str):
            raise StudyError(
                f"validation = {self.validation!r}: allowed are a file, a split, or a fraction such as 0.1."
            )

    def plan(self) -> SearchPlan:
        """Return the search: nothing is loaded before it begins.

        Raises:
            SpaceError: the space is none, or nothing is left of it.
        """
        search = {"compute_objective": self.metric, "study_name": _named_after(self.data), **self.search}
        settings, _ = SearchPlan(self.make_trainer, self._space(), **search).settings(self.arguments)
        return SearchPlan(self.make_trainer, **settings)

    def make_trainer(self) -> Trainer:
        """Return the trainer, with its data."""
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from ..arguments import TrainingArguments
        from ..trainer.trainer import Trainer
        from ..training.pretrained import FromPretrained

        train, validation = self._splits()
        names = sorted(set(train[self.label]), key=lambda each: (str(type(each)), each))
        if len(names) < 2:
            raise StudyError(
                f"The column {self.label!r} of {self.data!r} has only {names}; a classifier needs two labels."
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.model)
        except (OSError, ValueError) as error:
            here = "" if Path(self.model).is_dir() else " (no such folder exists, so it is taken as a name on the Hub)"
            raise StudyError(f"model = {self.model!r} cannot be loaded{here}: {_in_words(error)}") from error
        encode = partial(_encoded, tokenizer, self._columns(), self.label, names, self.max_length)
        told = {place: str(name) for place, name in enumerate(self._names(train, names))}
        model_init = FromPretrained(
            AutoModelForSequenceClassification,
            self.model,
            num_labels=len(names),
            id2label=told,
            label2id={name: place for place, name in told.items()},
        )
        trainer = Trainer(
            model_init=model_init,
            args=TrainingArguments(**_DEFAULTS),
            train_dataset=train.map(encode, batched=True, remove_columns=train.column_names),
            eval_dataset=validation.map(encode, batched=True, remove_columns=validation.column_names),
            processing_class=tokenizer,
            compute_metrics=partial(_metrics, self.metric),
        )
        return trainer.with_arguments(**self.arguments)

    def _columns(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else list(self.text)

    def _names(self, train: Dataset, labels: Sequence[object]) -> Sequence[str]:
        """Return the labels by name, if the data know names for their numbers."""
        feature = train.features[self.label]
        return (
            [feature.int2str(each) for each in labels]
            if hasattr(feature, "int2str")
            else [str(each) for each in labels]
        )

    def _space(self) -> SearchSpace:
        if isinstance(self.space, Mapping):
            return SearchSpace.from_description(self.space)
        found = importlib.util.find_spec("hpsearch.spaces")
        folder = Path(str(found.origin)).parent if found is not None else Path("spaces")
        ready = sorted(file.stem for file in folder.glob("[!_]*.py"))
        if self.space not in ready:
            raise SpaceError(
                f"space = {self.space!r} is not a ready-made space; allowed: {one_of(ready)}.{_near(self.space, ready)}"
            )
        space: SearchSpace = importlib.import_module(f"hpsearch.spaces.{self.space}").SPACE
        return space

    def _splits(self) -> tuple[Dataset, Dataset]:
        """Return the data to train on and the data to evaluate on.

        Raises:
            StudyError: there are none, or a column is missing or has gaps.
        """
        data = _load(self.data)
        held_out: Dataset | None = None
        if isinstance(self.validation, str):
            held_out = data.get(self.validation)
            if held_out is None and Path(self.validation).suffix in _READERS:
                held_out = _one(_load(self.validation))
            if held_out is None:
                raise StudyError(
                    f"validation = {self.validation!r} is neither a file nor one of the splits {list(data)}."
                )
        train = _one(data)
        for each in (train, held_out):
            if each is not None:
                self._check(each)
        if held_out is not None:
            return train, held_out
        split = train.train_test_split(test_size=self.validation, seed=self.seed)
        return split["train"], split["test"]

    def _check(self, data: Dataset) -> None:
        for name in (*self._columns(), self.label):
            if name not in data.column_names:
                raise StudyError(
                    f"{self.data!r} has no column {name!r}, but {data.column_names}.{_near(name, data.column_names)} "
                    "text = and label = name the columns."
                )
            empty = sum(each is None for each in data[name])
            if empty:
                raise StudyError(f"The column {name!r} of {self.data!r} is empty in {empty} of {len(data)} rows.")


def read_toml(file: Path) -> SearchPlan:
    """Return the plan that a study file in TOML describes; paths in it are as seen from the current folder.

    Raises:
        StudyError: it is no TOML, or a setting is missing, unknown, or cannot be right.
        SpaceError: its space is none.
    """
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyError(f"{str(file)!r} cannot be read: {error}.") from error
    known = {each.name: each for each in fields(TextClassification)}
    unknown = next((name for name in settings if name not in known), None)
    if unknown is not None:
        raise StudyError(
            f"{str(file)!r}: unknown setting {unknown!r}; allowed: {one_of(known)}.{_near(unknown, known)}"
        )
    for name, each in known.items():
        if each.default is MISSING and each.default_factory is MISSING and name not in settings:
            raise StudyError(f"{str(file)!r} lacks {name} = ..., which every study of a text classifier needs.")
    return TextClassification(**settings).plan()


def _check_type(name: str, value: object, kind: type | tuple[type, ...], told: str) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise StudyError(f"{name} = {value!r} must be {told}.")


def _named_after(data: str) -> str:
    """Return a name for a study on these data.

    >>> _named_after("data/reviews (v2).csv"), _named_after("nyu-mll/glue:sst2"), _named_after("a/imdb-1.5")
    ('reviews-v2', 'glue-sst2', 'imdb-1.5')
    """
    path = Path(data)
    name = path.stem if path.suffix in _READERS else path.name
    try:
        return check_name(name, "the name of the data")
    except StudyError:
        return re.sub(r"^[\W_]+|[\W_]+$", "", re.sub(r"[^\w.=,+@]+", "-", name))[:100] or "study"


def _load(source: str) -> DatasetDict:
    """Return the splits of a file, or of a dataset on the Hub.

    Raises:
        StudyError: there are none.
    """
    import datasets

    suffix = Path(source).suffix
    if suffix in _READERS:
        if not Path(source).is_file():
            raise StudyError(f"There is no file {source!r}.")
        kind, options = _READERS[suffix]
        try:
            return datasets.load_dataset(kind, data_files=source, **options)
        except Exception as error:
            raise StudyError(f"{source!r} cannot be read: {_in_words(error)}") from error
    name, _, configuration = source.partition(":")
    try:
        return datasets.load_dataset(name, configuration or None)
    except Exception as error:
        raise StudyError(
            f"data = {source!r} is neither a file ({', '.join(_READERS)}) nor a dataset on the Hub: {_in_words(error)}"
        ) from error


def _in_words(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0]


def _one(data: DatasetDict) -> Dataset:
    return data["train"] if "train" in data else next(iter(data.values()))


def _encoded(
    tokenizer: PreTrainedTokenizerBase,
    columns: list[str],
    label: str,
    names: list[object],
    length: int,
    rows: Mapping[str, list[object]],
) -> dict[str, object]:
    strange = next((each for each in rows[label] if each not in names), None)
    if strange is not None:
        raise StudyError(f"The validation data have the label {strange!r}, which the training data lack: {names}.")
    encoded = tokenizer(*(rows[each] for each in columns), truncation=True, max_length=length)
    return {**encoded, "labels": [names.index(each) for each in rows[label]]}


def _metrics(metric: str, prediction: EvalPrediction) -> dict[str, float]:
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    found, truth = logits.argmax(-1), prediction.label_ids
    values = {"accuracy": float((found == truth).mean())}
    if metric != "accuracy":
        values[metric] = _score(metric)(truth, found)
    return values


def _score(metric: str) -> Callable[[object, object], float]:
    from sklearn import metrics

    if metric == "mcc":
        return lambda truth, found: float(metrics.matthews_corrcoef(truth, found))
    score = getattr(metrics, f"{metric}_score")
    return lambda truth, found: float(score(truth, found, average="macro", zero_division=0))


def _near(name: object, allowed: Iterable[object]) -> str:
    return nearest_name(str(name), [str(each) for each in allowed])
