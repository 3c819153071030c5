"""Choose an optimizer together with the hyperparameters that only it has.

For comparing optimizers fairly: each is tuned on its own (Choi et al., 2019, show that rankings depend on it), so plan
many trials, at least ten for each. All of them come with torch and transformers. The adaptive ones share one
`learning_rate`; those with much larger rates, SGD and AdaGrad, have `optim.lr` in its place, which is an argument of
the optimizer like all `optim.*`. Adafactor's rate is absolute here: transformers switches its relative one off.

To add it to another space, leave out what that one says of the learning rate and of weight decay:
``SearchSpace({**without, **SPACE})``.

`model_init` reads nothing: all of it are training arguments, and arguments of the optimizers.

Sources:
    Brown et al.: GPT-3 (NeurIPS 2020), appendix B; Liu et al.: RoBERTa (2019), tables 9 and 10.
    Choi et al.: On Empirical Comparisons of Optimizers for Deep Learning (2019).
    Devlin, Chang, Lee, Toutanova: BERT (NAACL 2019), appendices A.2 and A.3.
    DeepOBS (Schneider, Balles, Hennig, ICLR 2019): the example of a random search, over SGD.
    Dosovitskiy et al.: ViT (ICLR 2021), table 4.
    Shazeer, Stern: Adafactor (ICML 2018), algorithm 6; the documentation of `transformers.Adafactor`.
    Tan, Le: EfficientNetV2 (ICML 2021), the settings of training on ImageNet.
    PyTorch: the documentation of `torch.optim`.
"""

from hpsearch import Categorical, Float, SearchSpace

# 1e-5 to 3e-5 for AdamW (RoBERTa, table 10), 5e-5 the default of TrainingArguments, 1e-3 for Adafactor (documentation
# of transformers). From 5e-6 on is our choice. Prior: 5e-5, which is in the grid of BERT (A.3) as well.
_ADAPTIVE_RATE = Float(5e-6, 1e-3, log=True, default=5e-5, prior=5e-5)
# 0.001 to 0.06 for SGD (ViT, table 4), 0.01 the default of PyTorch's Adagrad. Up to 0.1 is our choice. No prior, as
# the best rate of SGD depends on the model.
_LARGE_RATE = Float(1e-3, 1e-1, log=True, default=1e-2)
# 0.5 to 1 (DeepOBS); only up to 0.99 is our choice. 0.9 for SGD (ViT, table 4) and for RMSprop (EfficientNetV2).
_MOMENTUM = Float(0.5, 0.99, default=0.9, prior=0.9)

SPACE = SearchSpace(
    {
        # Those of `TrainingArguments.optim` that need no further package; AdamW is its default.
        "optim": Categorical(
            {
                "adamw_torch": {
                    "learning_rate": _ADAPTIVE_RATE,
                    # 0.95 (GPT-3, appendix B), 0.98 (RoBERTa, table 9), 0.999 (default of PyTorch).
                    "adam_beta2": Float(0.95, 0.999, default=0.999),
                    # 1e-8 (default of PyTorch), 1e-6 (RoBERTa, table 9); Choi et al. find that it is worth tuning.
                    "adam_epsilon": Float(1e-8, 1e-6, log=True, default=1e-8),
                    # 0.01 (default of PyTorch; BERT, A.2), 0.1 (RoBERTa, table 10); down to none is our choice.
                    "weight_decay": Float(0.0, 0.1, default=0.01, prior=0.01),
                },
                "adafactor": {
                    "learning_rate": _ADAPTIVE_RATE,
                    # -0.8 (algorithm 6); around it, up to -1, where all past gradients count alike, is our choice.
                    "optim.decay_rate": Float(-1.0, -0.5, default=-0.8, prior=-0.8),
                    # 1 (algorithm 6, and the documentation of transformers); half and twice of it is our choice.
                    "optim.clip_threshold": Float(0.5, 2.0, log=True, default=1.0, prior=1.0),
                },
                "rmsprop": {
                    "learning_rate": _ADAPTIVE_RATE,
                    # 0.9 (EfficientNetV2), 0.99 (default of PyTorch).
                    "optim.alpha": Float(0.9, 0.99, default=0.99),
                    "optim.momentum": _MOMENTUM,
                },
                "sgd": {
                    "optim.lr": _LARGE_RATE,
                    "optim.momentum": _MOMENTUM,
                    # Both (DeepOBS).
                    "optim.nesterov": Categorical((False, True), default=False),
                },
                "adagrad": {
                    "optim.lr": _LARGE_RATE,
                    # 0 (default of PyTorch), 0.1 (default of TensorFlow's Adagrad).
                    "optim.initial_accumulator_value": Float(0.0, 0.1, default=0.0),
                },
            },
            default="adamw_torch",
        ),
        # As a share of all updates: 0.06 (RoBERTa, table 10). For Adafactor the documentation of transformers advises
        # against none. From 0 to 0.1 is our choice.
        "warmup_steps": Float(0.0, 0.1, default=0.06, prior=0.06),
    }
)
