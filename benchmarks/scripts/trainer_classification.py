"""A text-classification script as tutorials write it, with transformers' Trainer; it knows nothing of nearpeak."""

import argparse
import json
import random
import time

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--padding", choices=("max_length", "longest"), default="max_length")
parser.add_argument("--group-by-length", action="store_true")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--samples", type=int, default=12_000)
options = parser.parse_args()


def text(draw: random.Random) -> dict:
    length = max(4, min(512, round(draw.lognormvariate(3.664, 0.905))))
    width = 512 if options.padding == "max_length" else length
    tokens = [101, *(draw.randrange(1000, 30_522) for _ in range(length - 2)), 102]
    return {
        "input_ids": tokens + [0] * (width - length),
        "attention_mask": [1] * length + [0] * (width - length),
        "labels": draw.randrange(4),
    }


def collate(samples: list) -> dict:
    width = max(len(sample["input_ids"]) for sample in samples)
    batch = {}
    for key in ("input_ids", "attention_mask"):
        batch[key] = torch.tensor([s[key] + [0] * (width - len(s[key])) for s in samples])
    batch["labels"] = torch.tensor([s["labels"] for s in samples])
    return batch


class Clock(TrainerCallback):
    started = time.perf_counter()

    def __init__(self):
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())


draw = random.Random(0)
data = [text(draw) for _ in range(options.samples)]
torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        num_labels=4,
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.dropout,
    )
)
arguments = TrainingArguments(
    output_dir="unused",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    max_steps=options.steps,
    learning_rate=5e-5,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    bf16=options.bf16,
    train_sampling_strategy="group_by_length" if options.group_by_length else "random",
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
)
clock = Clock()
trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=collate, callbacks=[clock])
trainer.train()
ends = clock.ends
print(json.dumps({"step_s": (ends[-1] - ends[1]) / (len(ends) - 2), "start_s": ends[1] - clock.started}))
