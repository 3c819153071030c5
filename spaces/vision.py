"""Classify images: fine-tune a ViT, or train a small vision model from scratch.

For vision transformers and convolutional networks of up to some 100 million weights. The number of epochs is a budget,
yours to set in the arguments: a few to fine-tune, hundreds from scratch. With SGD the learning rate is another one, so
it has a name of its own there, `optim.lr`. A batch is that of one device: with several, they add up.

Compare by accuracy: the evaluation loss is smoothed as well, so it is not comparable between label smoothing factors.

`model_init` reads nothing: all of it are training arguments, and arguments of the optimizer.

Sources:
    Dosovitskiy et al.: An Image is Worth 16x16 Words (ViT, ICLR 2021), tables 3 and 4, and `vit_jax/configs/common.py`
    of its code.
    Touvron et al.: Training data-efficient image transformers (DeiT, ICML 2021), table 9, and `main.py` of its code.
    transformers: the guide to image classification of its documentation.
"""

from hpsearch import Categorical, Float, SearchSpace

SPACE = SearchSpace(
    {
        # AdamW: DeiT (table 9) and the guide of transformers. SGD: how ViT is fine-tuned (table 4).
        "optim": Categorical(
            {
                "adamw_torch": {
                    # 5e-5 to fine-tune (guide of transformers); from scratch 5e-4 for each 512 samples, so 1e-3 for
                    # 1024 (DeiT, table 9). From 1e-5 on is our choice.
                    "learning_rate": Float(1e-5, 1e-3, log=True, default=5e-5),
                    # 0.05 (DeiT, table 9), 0.03 to 0.3 (ViT, table 3); down to none is our choice.
                    "weight_decay": Float(0.0, 0.3, default=0.05),
                },
                "sgd": {
                    # 0.001 to 0.06 (ViT, table 4); 0.03 is the default of its code.
                    "optim.lr": Float(1e-3, 6e-2, log=True, default=3e-2),
                    # 0.9 (ViT, table 4); how far around it is our choice.
                    "optim.momentum": Float(0.8, 0.98, default=0.9, prior=0.9),
                },
            },
            default="adamw_torch",
        ),
        # 16 with 4 steps of accumulation (guide of transformers), 64 (DeiT's code); 32 between them is our choice.
        "per_device_train_batch_size": Categorical((16, 32, 64), default=64),
        # Cosine: ViT (table 4), DeiT (table 9). Linear: the default of TrainingArguments.
        "lr_scheduler_type": Categorical(("cosine", "linear"), default="cosine", prior="cosine"),
        # As a share of all updates: 5 of 300 epochs (DeiT, table 9), 500 of 10,000 updates (ViT's code), 0.1 (guide of
        # transformers); down to none is our choice.
        "warmup_steps": Float(0.0, 0.1, default=0.05),
        # 0.1 (DeiT, table 9); down to none, the default of TrainingArguments.
        "label_smoothing_factor": Float(0.0, 0.1, default=0.1),
    }
)
