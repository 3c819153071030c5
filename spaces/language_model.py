"""Fine-tune all weights of a causal language model on instructions, dialogue or a domain.

For decoders whose weights, gradients and optimizer fit into memory; otherwise see `spaces.lora`. The batch size is what
the memory allows, so it is yours to set: per device and, with `gradient_accumulation_steps`, per update (64 samples in
Llama 2, 128 in Alpaca). Compare by the evaluation loss, or better by what the model is for.

`model_init` reads nothing: all of it are training arguments.

Sources:
    Radford, Narasimhan, Salimans, Sutskever: Improving Language Understanding by Generative Pre-Training (GPT, 2018),
    section 4.1.
    Brown et al.: Language Models are Few-Shot Learners (GPT-3, NeurIPS 2020), appendix B.
    Ouyang et al.: Training language models to follow instructions (InstructGPT, NeurIPS 2022), appendix C.1.
    Taori et al.: Stanford Alpaca (2023), the section on fine-tuning of its README.
    Touvron et al.: Llama 2 (2023), section 3.1.
"""

from hpsearch import Categorical, Float, Int, SearchSpace

SPACE = SearchSpace(
    {
        # 5.03e-6 and 9.65e-6 (InstructGPT, C.1, 175B and smaller), 1e-5 and 2e-5 (Alpaca, 13B and 7B), 2e-5 (Llama 2,
        # 3.1), 6.25e-5 (GPT, 4.1). Up to 1e-4, for smaller models, is our choice.
        "learning_rate": Float(5e-6, 1e-4, log=True, default=2e-5, prior=2e-5),
        # 2 (Llama 2, 3.1), 3 (GPT, 4.1; Alpaca 7B), 5 (Alpaca 13B); from 1 on is our choice. InstructGPT trains for 16.
        "num_train_epochs": Int(1, 5, default=3),
        # Cosine: Llama 2 (3.1), Alpaca, InstructGPT (C.1). Linear: GPT (4.1).
        "lr_scheduler_type": Categorical(("cosine", "linear"), default="cosine", prior="cosine"),
        # As a share of all updates: none (InstructGPT, C.1), 0.002 (GPT, 4.1), 0.03 (Alpaca). Up to 0.1 is our choice.
        "warmup_steps": Float(0.0, 0.1, default=0.03, prior=0.03),
        # 0 (Alpaca), 0.1 (Llama 2, 3.1).
        "weight_decay": Float(0.0, 0.1, default=0.1),
        # 0.95 (GPT-3, appendix B; InstructGPT, appendix C), 0.999 (the default of TrainingArguments, as in Alpaca).
        "adam_beta2": Float(0.95, 0.999, default=0.999),
    }
)
