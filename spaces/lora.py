"""Fine-tune low-rank adapters (LoRA) with PEFT, on a language model or an encoder.

For models that are too large to fine-tune all weights, or of which many variants are to be kept. Batch size and number
of epochs are yours to set in the arguments: QLoRA trains with 16 samples per update. What an adapter adds is multiplied
by `lora.alpha` / `lora.r`.

`model_init(trial)` reads all four `lora.*` parameters, for instance so::

    def model_init(trial):
        base = AutoModelForCausalLM.from_pretrained("...")
        adapter = LoraConfig(
            task_type="CAUSAL_LM",
            r=trial.params["lora.r"],
            lora_alpha=trial.params["lora.alpha"],
            lora_dropout=trial.params["lora.dropout"],
            target_modules=trial.params["lora.target_modules"],
        )
        return get_peft_model(base, adapter)

Sources:
    Hu et al.: LoRA (ICLR 2022), section 4.1, tables 6, 9 and 11.
    Dettmers, Pagnoni, Holtzman, Zettlemoyer: QLoRA (NeurIPS 2023), section 4, appendix A, and `scripts/` of its code.
    PEFT: the documentation of `LoraConfig`.
    Schulman, Thinking Machines Lab: LoRA Without Regret (2025).
"""

from hpsearch import Categorical, Float, Int, SearchSpace

SPACE = SearchSpace(
    {
        # 1e-4 (QLoRA, 33B and 65B) and 2e-4 (QLoRA, 7B and 13B; LoRA on GPT-2, table 11), up to 5e-4 (LoRA on RoBERTa,
        # table 9); twice as far on both sides is our choice. Prior: 2e-4, ten times that of `spaces.language_model`, as
        # the best rate of LoRA is about ten times that of full fine-tuning, whatever the rank (Schulman et al.).
        "learning_rate": Float(5e-5, 1e-3, log=True, default=2e-4, prior=2e-4),
        # 1 to 64 in LoRA (table 6), 64 in QLoRA; 8 is the default of LoraConfig, and that of LoRA on RoBERTa (table 9).
        # From 4 on is our choice.
        "lora.r": Int(4, 64, log=True, default=8, prior=8),
        # 8 and 16 (LoRA on RoBERTa base and large, table 9), 16 (QLoRA), 32 (LoRA on GPT-2, table 11). In section 4.1
        # LoRA does not tune it, as it acts much like the learning rate: take it out if trials are few.
        "lora.alpha": Int(8, 32, log=True, default=16, prior=16),
        # 0, 0.05 and 0.1, the grid of QLoRA (appendix A); 0.05 is in its scripts for 33B and 65B, 0.1 for 7B and 13B.
        "lora.dropout": Float(0.0, 0.1, default=0.05, prior=0.05),
        # "all-linear": every linear layer but the output, which QLoRA (section 4) found it takes to match full
        # fine-tuning. None: PEFT's own choice for the architecture, mostly the queries and values that LoRA adapts.
        "lora.target_modules": Categorical(("all-linear", None), default="all-linear", prior="all-linear"),
    }
)
