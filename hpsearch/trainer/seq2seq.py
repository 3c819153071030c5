"""The Seq2SeqTrainer: a Trainer whose evaluations and predictions generate. Training is the Trainer's own."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.trainer_utils import PredictionOutput

from ..arguments import Seq2SeqTrainingArguments
from ..errors import ArgumentError, InvalidInputError
from ..training import evaluation
from ..training.hooks import Batch
from .trainer import Trainer

if torch.distributed.is_available():
    from torch.distributed import fsdp

logger = logging.getLogger(__name__)

_LENGTHS = ("max_length", "max_new_tokens")
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_DEFAULT_MAX_LENGTH = 20  # what transformers generates if neither call, arguments nor generation config say


class Seq2SeqTrainer(Trainer):
    """A `Trainer` whose predictions are generated token ids, with `args.predict_with_generate`.

    Generation uses, in order of precedence: the arguments of the `evaluate` or `predict` call;
    `args.generation_max_length` and `args.generation_num_beams`; the generation config of the model, which
    `args.generation_config` replaces when a run builds its model. Evaluations during training use only the last two.

    Predictions and labels are padded with the pad token to the maximum length of a generated sequence (or to the
    model's own limit, if that is longer), so all batches have the same width. The loss is that of `compute_loss`.

    Raises:
        ArgumentError: `args` is not a `Seq2SeqTrainingArguments`, or its generation config cannot be loaded or used.

    Examples:
        ``Seq2SeqTrainer(model, Seq2SeqTrainingArguments("out", predict_with_generate=True), collator, train, test)``
    """

    args: Seq2SeqTrainingArguments
    _gen_kwargs: Mapping[str, object] = {}

    def _check(self) -> None:
        if not isinstance(self.args, Seq2SeqTrainingArguments):
            raise ArgumentError(
                f"Seq2SeqTrainer needs Seq2SeqTrainingArguments, but args is a {type(self.args).__qualname__}. Make it "
                "with hpsearch.Seq2SeqTrainingArguments(...); it takes the same arguments and predict_with_generate."
            )
        super()._check()
        if self.args.generation_config is not None:
            self.load_generation_config(self.args.generation_config)
        if self._given_model is not None:
            self._check_generates(self._given_model)

    def _check_generates(self, model: torch.nn.Module) -> None:
        if self.args.predict_with_generate and not hasattr(model, "generate"):
            raise InvalidInputError(
                f"predict_with_generate=True, but {type(model).__name__} has no generate(). Use a model with a "
                "language modelling head, such as an AutoModelForSeq2SeqLM, or set predict_with_generate=False."
            )

    @staticmethod
    def load_generation_config(gen_config_arg: str | Path | GenerationConfig) -> GenerationConfig:
        """Return a copy of a generation config, or load it from a folder, a file or a model id.

        Raises:
            ArgumentError: it cannot be loaded, or its values contradict each other.
        """
        try:
            if isinstance(gen_config_arg, GenerationConfig):
                config = copy.deepcopy(gen_config_arg)
            elif Path(gen_config_arg).is_file():
                config = GenerationConfig.from_pretrained(Path(gen_config_arg).parent, Path(gen_config_arg).name)
            else:
                config = GenerationConfig.from_pretrained(gen_config_arg)
            config.validate(strict=True)
        except (OSError, ValueError) as error:
            shown = (
                f"a {type(gen_config_arg).__name__}"
                if isinstance(gen_config_arg, GenerationConfig)
                else repr(str(gen_config_arg))
            )
            raise ArgumentError(
                f"generation_config is {shown}, which cannot be used: {error} It must be a valid GenerationConfig, or "
                "the folder, file or model id of one.\n\nFix these issues to train your model."
            ) from error
        return config

    def call_model_init(self, trial: object = None) -> torch.nn.Module:
        """Return the model of a new run, with `args.generation_config` as its generation config if that is set.

        Special tokens that this generation config does not set remain those of the model.

        Raises:
            InvalidInputError: the model cannot generate, but `predict_with_generate` is set.
        """
        model: Any = super().call_model_init(trial)
        self._check_generates(model)
        if self.args.generation_config is not None:
            config = self.load_generation_config(self.args.generation_config)
            for name in _SPECIAL_TOKENS:
                if getattr(config, name) is None:
                    setattr(config, name, getattr(model.generation_config, name))
            model.generation_config = config
        return model

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Hook: return the loss as `Trainer` does, and give the decoder the shifted labels.

        With label smoothing or `compute_loss_func` the model does not receive the labels, from which it would otherwise
        make the decoder inputs.
        """
        replaces_loss = self.label_smoother is not None or self.compute_loss_func is not None
        shift = getattr(self.run.model, "prepare_decoder_input_ids_from_labels", None)
        if replaces_loss and shift is not None and "labels" in inputs and "decoder_input_ids" not in inputs:
            inputs = {**inputs, "decoder_input_ids": shift(labels=inputs["labels"])}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: object,
    ) -> dict[str, float]:
        """Evaluate the model of the latest run; return and log the metrics, and notify the callbacks.

        Args:
            eval_dataset: as in `Trainer.evaluate`; a dict of datasets generates with the same arguments for each.
            ignore_keys: as in `Trainer.evaluate`.
            metric_key_prefix: as in `Trainer.evaluate`.
            gen_kwargs: arguments of `generate()`, such as `max_length` and `num_beams`, for this call only.
        """
        if self.compute_metrics is None:
            _warn_of_unused(gen_kwargs, "without compute_metrics an evaluation gives the loss only")
        with self._generating_with(gen_kwargs):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: object,
    ) -> PredictionOutput:
        """Predict on a dataset; if it has labels, also compute its metrics.

        Args:
            test_dataset: as in `Trainer.predict`.
            ignore_keys: as in `Trainer.predict`.
            metric_key_prefix: as in `Trainer.predict`.
            gen_kwargs: arguments of `generate()`, such as `max_length` and `num_beams`, for this call only.
        """
        with self._generating_with(gen_kwargs):
            return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    @contextlib.contextmanager
    def _generating_with(self, gen_kwargs: Mapping[str, object]) -> Iterator[None]:
        """Generate with `gen_kwargs` inside; an evaluation inside another one generates as that one does."""
        if not self.args.predict_with_generate:
            _warn_of_unused(gen_kwargs, "predict_with_generate is False")
        outer = self._gen_kwargs
        self._gen_kwargs = {**outer, **gen_kwargs}
        try:
            yield
        finally:
            self._gen_kwargs = outer

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        """Hook: return (loss, generated token ids, labels) of one batch, or logits instead without generation."""
        if prediction_loss_only or not self.args.predict_with_generate:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        labels = inputs.get("labels")
        given = self._resolved({**self._gen_kwargs, **gen_kwargs})
        generated = self._generate(_generation_inputs(inputs), given)
        width = self._width(given)
        loss = None
        if labels is not None:
            loss = self._mean_loss(model, inputs)
            labels = self._padded(labels, width)
        return loss, self._padded(generated, width), labels

    def _mean_loss(self, model: torch.nn.Module, inputs: Batch) -> torch.Tensor:
        """Return the loss of one batch, a mean over its own labels: those of other processes do not count."""
        with torch.no_grad(), self.compute_loss_context_manager():
            return evaluation.compute_loss_through_hook(self, model, inputs, num_items_in_batch=None).detach().mean()

    def _resolved(self, gen_kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Return what `generate()` is called with: `gen_kwargs`, where they are silent the arguments of the run."""
        unset = (*_LENGTHS, "num_beams")
        resolved = {name: value for name, value in gen_kwargs.items() if not (name in unset and value is None)}
        if resolved.get("generation_config") is not None:  # of this call: it comes before the arguments of the run
            return resolved
        if not resolved.keys() & set(_LENGTHS) and self.args.generation_max_length is not None:
            resolved["max_length"] = self.args.generation_max_length
        if self.args.generation_num_beams is not None:
            resolved.setdefault("num_beams", self.args.generation_num_beams)
        model = self.run.model
        own = {name for name in _LENGTHS if getattr(model.generation_config, name) is not None}
        if not resolved.keys() & set(_LENGTHS) and not own and getattr(model.config, "is_encoder_decoder", False):
            resolved["max_length"] = _DEFAULT_MAX_LENGTH
        if "max_length" in resolved and "max_new_tokens" in own:
            resolved.setdefault("max_new_tokens", None)  # of the two, generate() would follow the model's own
        return resolved

    def _generate(self, inputs: Batch, gen_kwargs: dict[str, Any]) -> torch.Tensor:
        wrapped = self.run.model_wrapped
        # A process that is done with its batch continues as long as the others, which need its part of the weights.
        gen_kwargs.setdefault("synced_gpus", _is_sharded(wrapped) or is_deepspeed_zero3_enabled())
        with _gathered_root(wrapped):
            generated = self.run.model.generate(**inputs, **gen_kwargs)
        return generated if isinstance(generated, torch.Tensor) else generated.sequences

    def _width(self, gen_kwargs: Mapping[str, Any]) -> int:
        """Return the length that every generated sequence of an encoder-decoder model fits in."""
        config = gen_kwargs.get("generation_config") or self.run.model.generation_config
        limits = [gen_kwargs.get("max_length"), config.max_length or _DEFAULT_MAX_LENGTH]
        limits += [each + 1 for each in (gen_kwargs.get("max_new_tokens"), config.max_new_tokens) if each is not None]
        return max(each for each in limits if each is not None)

    def _padded(self, tokens: torch.Tensor, width: int) -> torch.Tensor:
        missing = width - tokens.shape[-1]
        return torch.nn.functional.pad(tokens, (0, missing), value=self._pad_token_id()) if missing > 0 else tokens

    def _pad_token_id(self) -> int:
        for source in (self.processing_class, self.run.model.config):
            for name in ("pad_token_id", "eos_token_id"):
                if getattr(source, name, None) is not None:
                    return getattr(source, name)
        raise InvalidInputError(
            "Generated sequences are padded to one length, but there is no pad token: pass a tokenizer with a "
            "pad_token as processing_class, or set pad_token_id in the configuration of the model."
        )


def _is_sharded(model: object) -> bool:
    return torch.distributed.is_available() and isinstance(model, (fsdp.FullyShardedDataParallel, fsdp.FSDPModule))


def _gathered_root(model: object) -> contextlib.AbstractContextManager[object]:
    """Return a context in which a sharded model has its outermost weights, which only its own `forward` gathers."""
    if _is_sharded(model) and isinstance(model, fsdp.FullyShardedDataParallel):
        return fsdp.FullyShardedDataParallel.summon_full_params(model, writeback=False, recurse=False)
    return contextlib.nullcontext()


def _warn_of_unused(gen_kwargs: Mapping[str, object], reason: str) -> None:
    given = [name for name, value in gen_kwargs.items() if value is not None]
    if given:
        logger.warning("Nothing is generated, so %s will have no effect: %s.", ", ".join(given), reason)


def _generation_inputs(inputs: Batch) -> Batch:
    """Return the batch without its labels, and without decoder inputs that were made from them.

    Decoder inputs of another shape are a beginning to continue from, and stay.
    """
    labels, beginning = inputs.get("labels"), inputs.get("decoder_input_ids")
    made_of_labels = labels is not None and beginning is not None and labels.shape == beginning.shape
    dropped = {"labels", "decoder_input_ids", "decoder_attention_mask"} if made_of_labels else {"labels"}
    return {name: value for name, value in inputs.items() if name not in dropped}
