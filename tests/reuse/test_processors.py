"""Processors, feature extractors and image processors as the processing class of our trainer (rows 126 to 128)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import (
    BatchFeature,
    DataCollatorWithPadding,
    FeatureExtractionMixin,
    ProcessorMixin,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    Wav2Vec2Processor,
    default_data_collator,
)
from transformers.image_processing_base import ImageProcessingMixin

from hpsearch import Trainer
from tests.support.line_trainer import line_trainer, logged

pytest.importorskip("PIL")

from PIL import Image
from transformers.image_utils import ImageFeatureExtractionMixin

RATE = 16_000


# Sound.


def feature_extractor(**changes: Any) -> Wav2Vec2FeatureExtractor:
    return Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=True, **changes)


def speech_processor(folder: Path) -> Wav2Vec2Processor:
    words = ["<pad>", "<s>", "</s>", "<unk>", "|", "a", "b"]
    (folder / "words.json").write_text(json.dumps({word: index for index, word in enumerate(words)}), encoding="utf-8")
    return Wav2Vec2Processor(feature_extractor(), Wav2Vec2CTCTokenizer(str(folder / "words.json")))


def sounds(lengths: list[int] | None = None) -> list[dict[str, Any]]:
    """Waves of unequal length; the label tells the loud from the quiet."""
    random = np.random.default_rng(0)
    lengths = lengths or [400 + 40 * index for index in range(8)]
    return [
        {"input_values": (random.normal(size=length) * (1 + 9 * (index % 2))).astype("float32"), "labels": index % 2}
        for index, length in enumerate(lengths)
    ]


def sound_classifier() -> Wav2Vec2ForSequenceClassification:
    return Wav2Vec2ForSequenceClassification(
        Wav2Vec2Config(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            conv_dim=(8, 8),
            conv_stride=(8, 4),
            conv_kernel=(16, 8),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=8,
            mask_time_prob=0.0,
            num_labels=2,
        )
    )


def sound_trainer(folder: Path, processing_class: Any, **changes: Any) -> Trainer:
    trainer = {
        "model_init": sound_classifier,
        "train_dataset": sounds(),
        "eval_dataset": sounds([500, 300, 700]),
        "processing_class": processing_class,
    }
    return line_trainer(folder, trainer, per_device_train_batch_size=4, **changes)


@pytest.mark.feature(65)
def test_sounds_of_unequal_length_are_padded_by_their_feature_extractor_and_trained_on(tmp_path: Path) -> None:
    extractor = feature_extractor(padding_value=-7.0)
    trainer = sound_trainer(tmp_path, extractor, num_train_epochs=2)
    assert isinstance(trainer.data_collator, DataCollatorWithPadding)
    (batch,) = trainer.get_eval_dataloader()
    assert batch["input_values"].shape == (3, 700)
    assert batch["attention_mask"].sum(1).tolist() == [500, 300, 700]
    assert batch["input_values"][1, 300:].eq(-7.0).all()
    assert batch["labels"].tolist() == [0, 1, 0]
    assert trainer.train().global_step == 4
    assert all(np.isfinite(loss) for _, loss in logged(trainer, "loss"))


@pytest.mark.feature(127)
def test_padding_follows_its_options(tmp_path: Path) -> None:
    extractor = feature_extractor()
    samples = [{"input_values": each["input_values"]} for each in sounds([5, 3, 9])]
    to_longest = extractor.pad(samples, padding="longest", pad_to_multiple_of=4, return_tensors="np")
    assert isinstance(to_longest, BatchFeature)
    assert to_longest["input_values"].shape == (3, 12)
    assert to_longest["attention_mask"].sum(1).tolist() == [5, 3, 9]
    cut = extractor.pad(samples, padding="max_length", max_length=4, truncation=True, return_tensors="pt")
    assert cut["input_values"].shape == (3, 4)
    assert cut["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]
    as_it_is = extractor.pad(samples, padding=False)
    assert [len(each) for each in as_it_is["input_values"]] == [5, 3, 9]
    left = feature_extractor(padding_side="left").pad(samples, return_tensors="np")
    assert left["input_values"][1, :6].tolist() == [0.0] * 6


def test_a_collator_that_pads_as_it_is_told_reaches_the_model(tmp_path: Path) -> None:
    extractor = feature_extractor()
    collator = DataCollatorWithPadding(extractor, padding="max_length", max_length=1024)
    trainer = sound_trainer(tmp_path, extractor)
    made = line_trainer(
        tmp_path,
        {"model_init": sound_classifier, "eval_dataset": trainer.eval_dataset, "data_collator": collator},
    )
    (batch,) = made.get_eval_dataloader()
    assert batch["input_values"].shape == (3, 1024)


@pytest.mark.feature(127)
def test_a_batch_feature_becomes_tensors_and_moves(tmp_path: Path) -> None:
    batch = BatchFeature({"values": [[1.0, 2.0], [3.0, 4.0]], "count": [1, 2]})
    assert isinstance(batch["values"], list)
    batch.convert_to_tensors("pt")
    assert (batch["values"].dtype, batch["count"].dtype) == (torch.float32, torch.int64)
    moved = batch.to("cpu", torch.float64)
    assert moved["values"].dtype == torch.float64
    assert moved["count"].dtype == torch.int64
    assert batch.to("meta")["values"].device.type == "meta"
    with pytest.raises(ValueError, match="tensor"):
        BatchFeature({"values": [[1.0], [1.0, 2.0]]}).convert_to_tensors("pt")


@pytest.mark.feature(127)
def test_a_batch_feature_from_a_collator_trains(tmp_path: Path) -> None:
    def collate(samples: list[dict[str, Any]]) -> BatchFeature:
        return BatchFeature({name: [each[name] for each in samples] for name in samples[0]}, tensor_type="pt")

    data = [{"x": [float(index), 1.0], "labels": float(index)} for index in range(8)]
    trainer = line_trainer(tmp_path, {"train_dataset": data, "data_collator": collate})
    assert trainer.train().global_step == 1


@pytest.mark.feature(69, 126)
@pytest.mark.parametrize("kind", ["processor", "feature extractor", "image processor"])
def test_the_processing_class_is_saved_beside_every_model_and_comes_back_equal(tmp_path: Path, kind: str) -> None:
    if kind == "image processor":
        processing: Any = image_processor()
        trainer = image_trainer(tmp_path / "out", processing, save_strategy="epoch")
    else:
        processing = speech_processor(tmp_path) if kind == "processor" else feature_extractor(do_normalize=False)
        trainer = sound_trainer(tmp_path / "out", processing, save_strategy="epoch")
        if kind == "processor":
            trainer.data_collator = DataCollatorWithPadding(processing.feature_extractor)
    base = {"processor": ProcessorMixin, "feature extractor": FeatureExtractionMixin}.get(kind, ImageProcessingMixin)
    assert isinstance(processing, base)
    steps = trainer.train().global_step
    trainer.save_model()
    for folder in (tmp_path / "out", tmp_path / "out" / f"checkpoint-{steps}"):
        back = type(processing).from_pretrained(folder)
        assert type(back) is type(processing)
        assert back.to_dict() == processing.to_dict()
    if kind == "processor":
        assert back(text="ab a").input_ids == processing(text="ab a").input_ids
    resumed = trainer.with_arguments(num_train_epochs=2)
    assert resumed.train(resume_from_checkpoint=True).global_step == 2 * steps


def test_a_processor_does_not_choose_the_padding_collator(tmp_path: Path) -> None:
    assert sound_trainer(tmp_path, speech_processor(tmp_path)).data_collator is default_data_collator


# Images.


def image_processor() -> Any:
    from transformers import ViTImageProcessorPil

    return ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def pictures(count: int = 12) -> Dataset:
    """Pictures of unequal size, bright for label 1 and dark for label 0."""
    random = np.random.default_rng(0)
    images = [
        Image.fromarray(random.integers(128 * (index % 2), 128 * (index % 2) + 128, (9 + index, 12, 3), dtype="uint8"))
        for index in range(count)
    ]
    return Dataset.from_dict({"image": images, "label": [index % 2 for index in range(count)]})


def vision_transformer() -> ViTForImageClassification:
    return ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=4,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            initializer_range=0.2,
        )
    )


def processed(processor: Any, batch: dict[str, Any]) -> dict[str, Any]:
    return {"pixel_values": processor(batch["image"])["pixel_values"], "labels": batch["label"]}


def image_trainer(folder: Path, processor: Any, way: str = "transform", **changes: Any) -> Trainer:
    data = pictures()
    if way == "transform":
        data = data.with_transform(lambda batch: processed(processor, batch))
        changes["remove_unused_columns"] = False
    else:
        data = data.map(lambda batch: processed(processor, batch), batched=True, remove_columns=data.column_names)
    trainer = {
        "model_init": vision_transformer,
        "train_dataset": data,
        "eval_dataset": data,
        "processing_class": processor,
        "compute_metrics": lambda prediction: {
            "accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())
        },
    }
    return line_trainer(folder, trainer, per_device_train_batch_size=4, **changes)


@pytest.mark.feature(126)
def test_pictures_processed_on_the_fly_or_beforehand_train_alike_and_are_learned(tmp_path: Path) -> None:
    trainers = [
        image_trainer(tmp_path / way, image_processor(), way, num_train_epochs=8) for way in ("transform", "map")
    ]
    for each in trainers:
        each.train()
    on_the_fly, beforehand = (dict(logged(each, "loss")) for each in trainers)
    assert on_the_fly == pytest.approx(beforehand, rel=1e-5)
    assert trainers[0].evaluate()["eval_accuracy"] == 1.0


@pytest.mark.feature(128)
def test_the_functions_of_the_image_mixin_still_do_what_they_say() -> None:
    mixin = ImageFeatureExtractionMixin()
    pixels = np.arange(6 * 8 * 3, dtype="uint8").reshape(6, 8, 3)
    picture = Image.fromarray(pixels)
    channels_first = pixels.transpose(2, 0, 1)
    assert mixin.to_numpy_array(picture, rescale=False) == pytest.approx(channels_first)
    assert mixin.to_numpy_array(picture).max() <= 1.0
    assert np.array(mixin.to_pil_image(channels_first)) == pytest.approx(pixels)
    assert mixin.rescale(pixels, 1 / 255) == pytest.approx(pixels / 255)
    assert mixin.normalize(channels_first / 255, [0.5] * 3, [0.5] * 3) == pytest.approx(channels_first / 127.5 - 1)
    assert mixin.flip_channel_order(channels_first) == pytest.approx(channels_first[::-1])
    assert mixin.expand_dims(pixels).shape == (1, 6, 8, 3)
    assert mixin.convert_rgb(picture.convert("L")).mode == "RGB"
    assert mixin.resize(picture, (4, 2)).size == (4, 2)
    assert mixin.resize(picture, 3, default_to_square=False).size == (4, 3)
    assert mixin.resize(picture.resize((12, 6)), 4, default_to_square=False, max_size=6).size == (6, 3)
    assert mixin.center_crop(channels_first, (2, 4)) == pytest.approx(channels_first[:, 2:4, 2:6])
    padded = mixin.center_crop(channels_first, (10, 8))
    assert padded.shape == (3, 10, 8)
    assert padded[:, :2].max() == 0
    assert mixin.rotate(picture, 90, expand=1).size == (6, 8)
