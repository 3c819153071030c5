"""Fine-tune an encoder such as BERT, RoBERTa or DeBERTa for classification or tagging.

For pretrained encoders of up to some 400 million weights and thousands to hundreds of thousands of samples. With a few
thousand samples results vary much with the seed; longer training steadies them (Mosbach et al., 2021), so give
`num_train_epochs` a range up to 20 there. The schedule is the linear one of `TrainingArguments`. A batch is that of one
device: with several, they add up.

`model_init` reads nothing: all of it are training arguments.

Sources:
    Devlin, Chang, Lee, Toutanova: BERT (NAACL 2019), appendices A.2 and A.3.
    Liu et al.: RoBERTa (2019), table 10.
    Clark, Luong, Le, Manning: ELECTRA (ICLR 2020), and `configure_finetuning.py` of its code.
    He, Liu, Gao, Chen: DeBERTa (ICLR 2021), and `experiments/glue/mnli.sh` of its code.
    Mosbach, Andriushchenko, Klakow: On the Stability of Fine-tuning BERT (ICLR 2021).
"""

from hpsearch import Categorical, Float, Int, SearchSpace

SPACE = SearchSpace(
    {
        # 2e-5, 3e-5, 5e-5 (BERT, A.3); 1e-5, 2e-5, 3e-5 (RoBERTa, table 10); 5e-6 for DeBERTa-xlarge, 1e-4 for
        # ELECTRA-base (their code). Prior: 2e-5, in the grids of BERT and RoBERTa, and what Mosbach et al. advise.
        "learning_rate": Float(5e-6, 1e-4, log=True, default=2e-5, prior=2e-5),
        # 16 and 32, in BERT (A.3) and in RoBERTa (table 10).
        "per_device_train_batch_size": Categorical((16, 32), default=16),
        # 2 to 4 (BERT, A.3), at most 10 (RoBERTa, table 10; ELECTRA for the smallest tasks of GLUE).
        "num_train_epochs": Int(2, 10, log=True, default=3),
        # 0.01 (BERT, A.2; ELECTRA's code) and 0.1 (RoBERTa, table 10); down to none is our choice.
        "weight_decay": Float(0.0, 0.1, default=0.01, prior=0.01),
        # As a share of all updates: 0.06 (RoBERTa, table 10), 0.1 (Mosbach et al.; ELECTRA's code); down to none is our
        # choice. A value of 1 or more would be a number of updates.
        "warmup_steps": Float(0.0, 0.1, default=0.06, prior=0.06),
    }
)
