"""Real training runs of some seconds, to search: digits, sentiment of sentences, the next character of a text.

Each trains a small model without pretrained weights and evaluates it after every epoch, of which the latter two have
18 short ones. Their data are in folders `sst2` and `tinyshakespeare`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import torch
import transformers
from torch.utils.data import Dataset

from hpsearch import Categorical, FixedTrial, Float, Int, SearchSpace

from .. import digits

_LONGEST_SENTENCE, _BLOCK = 32, 64
_PADDING, _UNKNOWN, _BEGIN, _FIRST_WORD = range(4)


class MissingData(Exception):
    """The data of a task are not there."""


@dataclass(frozen=True)
class Task:
    """What is trained, and what is searched in it.

    Attributes:
        metric: the objective: accuracy, to be maximised, or loss, to be minimised.
        space: what is searched.
        model_init: builds a model for a trial, or one with default parameters.
        train, dev: the data of a search.
        test: data that no search sees.
        epochs: of a training of full length.
    """

    metric: str
    space: SearchSpace
    model_init: Callable[..., Any]
    train: Any
    dev: Any
    test: Any
    epochs: int

    def make_trainer(self, library: Any, folder: Path, callbacks: Sequence[Any] = (), **arguments: Any) -> Any:
        """Return a trainer of `hpsearch` or `transformers`, which prints nothing; `arguments` replace the task's."""
        of_the_task: dict[str, Any] = {
            "num_train_epochs": self.epochs,
            "per_device_eval_batch_size": 128,
            "warmup_steps": 0.0,  # not 0: transformers' search casts what it suggests to the type that was there
            "eval_strategy": "epoch",
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
        }
        args = library.TrainingArguments(str(folder), **{**of_the_task, **arguments})
        trainer = library.Trainer(
            model_init=self.model_init,
            args=args,
            train_dataset=self.train,
            eval_dataset=self.dev,
            compute_metrics=digits.compute_metrics if self.metric == "accuracy" else None,
            callbacks=list(callbacks),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer

    def make_trainer_with(
        self, params: dict[str, Any], folder: Path, callbacks: Sequence[Any] = (), **arguments: Any
    ) -> Any:
        """Return a trainer of transformers for one training run with these parameters of the space."""
        task = replace(self, model_init=partial(self.model_init, FixedTrial(params)))
        return task.make_trainer(transformers, folder, callbacks, **_arguments_of(params), **arguments)

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """Ask a trial of Optuna for the parameters of the space and return those that are training arguments."""
        return _arguments_of(self.suggest_all(trial))

    def suggest_all(self, trial: optuna.Trial) -> dict[str, Any]:
        """Ask a trial of Optuna for the parameters of the space and return them."""
        return self.space.suggest(_Asks(trial))


def _arguments_of(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if "." not in name}


class _Asks:
    """A trial of Optuna, as a space asks it."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial

    def suggest(self, name: str, parameter: Categorical | Float | Int) -> Any:
        if isinstance(parameter, Categorical):
            return self._trial.suggest_categorical(name, parameter.choices)
        if isinstance(parameter, Int):
            return self._trial.suggest_int(name, parameter.low, parameter.high, log=parameter.log)
        return self._trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)


class Rows(Dataset):
    """Rows of columns; an epoch sees a number of them, spread over all: each time another one of some neighbours."""

    def __init__(self, columns: dict[str, torch.Tensor], epoch: int | None = None) -> None:
        self.columns = columns
        rows = len(columns["labels"])
        self.length = rows if epoch is None else epoch
        self.neighbours = rows // self.length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = index * self.neighbours + int(torch.randint(self.neighbours, ()))
        return {name: column[row] for name, column in self.columns.items()}


def sentence_classifier(words: int, trial: Any = None) -> Any:
    """A BERT of one layer, of the modern kind that looks at the mean of all words."""
    params = {"model.hidden_size": 64, "model.dropout": 0.1} if trial is None else trial.params
    hidden_size, dropout = params["model.hidden_size"], params["model.dropout"]
    config = transformers.ModernBertConfig(
        vocab_size=words,
        hidden_size=hidden_size,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * hidden_size,
        max_position_embeddings=_LONGEST_SENTENCE,
        embedding_dropout=dropout,
        mlp_dropout=dropout,
        classifier_dropout=dropout,
        classifier_pooling="mean",
        pad_token_id=_PADDING,
        **dict.fromkeys(("cls_token_id", "bos_token_id", "sep_token_id", "eos_token_id"), _BEGIN),
    )
    return transformers.ModernBertForSequenceClassification(config)


def character_model(characters: int, trial: Any = None) -> Any:
    """A GPT-2 of two layers."""
    params = {"model.n_embd": 64, "model.dropout": 0.1} if trial is None else trial.params
    config = transformers.GPT2Config(
        vocab_size=characters,
        n_positions=_BLOCK,
        n_embd=params["model.n_embd"],
        n_layer=2,
        n_head=4,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own, in one piece
        initializer_range=0.1,
        **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), params["model.dropout"]),
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config)


def make_digits(data: Path, epoch: int = 1197) -> Task:
    """Return the quickstart; it needs no folder."""
    splits = digits.load_data()
    train = splits["train"].select(range(epoch))
    return Task("accuracy", digits.SPACE, digits.model_init, train, splits["dev"], splits["test"], 12)


def make_sst2(data: Path, epoch: int = 768) -> Task:
    """Return the sentiment of sentences, by the words that come up twice at least; two passes over the data."""
    train, dev, test = (read_data(data / "sst2" / f"{split}.tsv").splitlines() for split in ("train", "dev", "test"))
    counts = Counter(word for line in train for word in _words(line))
    kept = [word for word, count in counts.items() if count > 1]
    vocabulary = {word: place for place, word in enumerate(kept, start=_FIRST_WORD)}
    space = _space((16, 32, 64), {"model.hidden_size": Categorical((32, 64)), "model.dropout": Float(0.0, 0.5)})
    model_init = partial(sentence_classifier, len(vocabulary) + _FIRST_WORD)
    train_rows = Rows(_sentences(train, vocabulary), epoch)
    dev_rows, test_rows = (Rows(_sentences(lines, vocabulary)) for lines in (dev, test))
    return Task("accuracy", space, model_init, train_rows, dev_rows, test_rows, 18)


def make_text(data: Path, epoch: int = 192) -> Task:
    """Return the next character of Shakespeare's plays; a fifth of a pass over the first nine tenths of them."""
    text = read_data(data / "tinyshakespeare" / "input.txt")
    alphabet = {character: place for place, character in enumerate(sorted(set(text)))}
    characters = torch.tensor([alphabet[character] for character in text])
    blocks = characters[: len(text) // _BLOCK * _BLOCK].view(-1, _BLOCK)
    train, rest = blocks[: len(blocks) * 9 // 10], blocks[len(blocks) * 9 // 10 :]
    dev, test = rest[::27], rest[1::3]
    space = _space((8, 16, 32), {"model.n_embd": Categorical((32, 48, 64)), "model.dropout": Float(0.0, 0.3)})
    model_init = partial(character_model, len(alphabet))
    train_rows, dev_rows, test_rows = causal_rows(train, epoch), causal_rows(dev), causal_rows(test)
    return Task("loss", space, model_init, train_rows, dev_rows, test_rows, 18)


def causal_rows(blocks: torch.Tensor, epoch: int | None = None) -> Rows:
    """Return blocks of tokens as rows of a causal language model, which shifts the labels by itself."""
    return Rows({"input_ids": blocks, "labels": blocks}, epoch)


TASKS: dict[str, Callable[..., Task]] = {"digits": make_digits, "sst2": make_sst2, "text": make_text}


def _space(batch_sizes: tuple[int, ...], of_the_model: dict[str, Categorical | Float]) -> SearchSpace:
    of_the_training = {
        "learning_rate": Float(1e-4, 3e-2, log=True),
        "per_device_train_batch_size": Categorical(batch_sizes),
        "weight_decay": Float(0.0, 0.3),
        "warmup_steps": Float(0.0, 0.2),
    }
    return SearchSpace({**of_the_training, **of_the_model})


def _sentences(lines: Sequence[str], vocabulary: dict[str, int]) -> dict[str, torch.Tensor]:
    tokens = torch.full((len(lines), _LONGEST_SENTENCE), _PADDING)
    for row, line in zip(tokens, lines, strict=True):
        words = [_BEGIN, *(vocabulary.get(word, _UNKNOWN) for word in _words(line))][:_LONGEST_SENTENCE]
        row[: len(words)] = torch.tensor(words)
    labels = torch.tensor([int(line.split("\t")[1]) for line in lines])
    return {"input_ids": tokens, "attention_mask": (tokens != _PADDING).long(), "labels": labels}


def _words(line: str) -> list[str]:
    return line.split("\t")[0].split()


def read_data(file: Path) -> str:
    if not file.is_file():
        raise MissingData(f"{file.name} is not in {file.parent}")
    return file.read_text(encoding="utf-8")
