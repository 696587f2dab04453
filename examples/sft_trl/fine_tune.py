"""Fine-tunes a model with TRL on a file of ``agl export sft``.

::

    agl export sft best.jsonl --path agl.db --best 4 --min-reward 1 --form tokens
    python fine_tune.py MODEL best.jsonl OUTPUT --epochs 3 --learning-rate 1e-5

Both forms of the dataset train only on the model's own output. ``tokens`` holds the ids that were
sampled. ``messages`` becomes one row per answer, with the messages before it as the prompt, because
few chat templates mark which tokens are the assistant's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agl_export import read_rows

__all__ = ["fine_tune", "to_dataset", "to_trl", "train"]


def fine_tune(model: str | Path, dataset: str | Path, output: str | Path, **options: Any) -> float:
    """Fine-tune a model on a file, and save it with its tokenizer; return the mean loss.

    Args:
        model: Folder or hub id of the model.
        dataset: A file of ``agl export sft``.
        output: Folder of the result.
        **options: See :func:`train`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = to_trl(list(read_rows(Path(dataset))))
    loaded = AutoModelForCausalLM.from_pretrained(model)
    return train(loaded, AutoTokenizer.from_pretrained(model), rows, Path(output), **options)


def to_trl(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of either form in the format of TRL's ``SFTTrainer``."""
    if rows and "input_ids" in rows[0]:
        return [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in rows]
    return [turn for row in rows for turn in _turns(row)]


def _turns(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    messages = row["messages"]
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and index:
            tools = {"tools": row["tools"]} if row.get("tools") else {}
            yield {"prompt": messages[:index], "completion": [message], **tools}


def to_dataset(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as a dataset whose messages and tools are unchanged.

    By default Arrow adds to every tool call the arguments of all other calls, as null, and a chat
    template would write them out.
    """
    from datasets import Dataset, Features, Json, List

    if "input_ids" in rows[0]:
        return Dataset.from_list(list(rows))
    columns = dict.fromkeys(name for row in rows for name in row)
    whole = [{name: row.get(name, []) for name in columns} for row in rows]
    return Dataset.from_list(whole, features=Features({name: List(Json()) for name in columns}))


def train(
    model: Any,
    tokenizer: Any,
    rows: Sequence[dict[str, Any]],
    output: Path,
    *,
    epochs: float = 3.0,
    learning_rate: float = 1e-5,
    batch_size: int = 64,
    verbose: bool = False,
) -> float:
    """Train a model in place and save it with its tokenizer; return the mean loss.

    Args:
        model: A causal language model of Transformers.
        tokenizer: The model's tokenizer.
        rows: Rows from :func:`to_trl`.
        output: Folder of the result.
        epochs: Passes over the rows.
        learning_rate: Learning rate of AdamW, falling linearly to 0.
        batch_size: Rows in a step.
        verbose: Show progress and losses.
    """
    import torch
    from transformers import PrinterCallback
    from transformers.utils.logging import disable_progress_bar
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        output_dir=str(output / "trainer"),
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        per_device_train_batch_size=batch_size,
        max_length=None,  # no truncation
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        save_strategy="no",
        report_to=[],
        logging_strategy="steps" if verbose else "no",
        disable_tqdm=not verbose,
        seed=0,
    )
    trainer = SFTTrainer(
        model=model, args=config, train_dataset=to_dataset(rows),
        processing_class=tokenizer,
    )  # fmt: skip
    if not verbose:
        disable_progress_bar()
        trainer.remove_callback(PrinterCallback)
    result = trainer.train()
    trainer.save_model(str(output))
    tokenizer.save_pretrained(str(output))
    return float(result.training_loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="folder or hub id of the model")
    parser.add_argument("dataset", help="a file of `agl export sft`")
    parser.add_argument("output", help="folder for the result")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = vars(parser.parse_args())
    print(f"mean loss {fine_tune(**arguments, verbose=True):.4f}")


if __name__ == "__main__":
    main()
