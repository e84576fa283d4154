#!/usr/bin/env bash
# On several processes Trainer.evaluate() before train() leaves the gradients unshared: each process trains alone
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (CPU, torchrun with 2 processes; Llama of 1 layer).
# Guess: an evaluation before the training gives the loss to start from and changes nothing: its result is only printed.
# True: evaluate() and predict() prepare the model for evaluation, without DistributedDataParallel (DDP), and accelerate
#   marks it as prepared. train() asks accelerate to prepare it, gets the marked model back, and trains it without DDP:
#   each process has gradients of its own rows alone, and the models drift apart. The one that is saved, that of the
#   first process, has seen half of the rows (an eighth on 8 processes). There is no warning, and the logged loss, a
#   mean over the processes, falls. eval_on_start=True does not do this.
# Hurt: fine-tuning on several GPUs that measures the base model first, to report before and after.
# Output seen:
#   train()              DistributedDataParallel  test loss of the two processes' models 1.3356 1.3356
#   evaluate(), train()  LlamaForCausalLM         test loss of the two processes' models 1.5295 1.5321
#   eval_on_start        DistributedDataParallel  test loss of the two processes' models 1.3356 1.3356
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

cat > "$work/train.py" <<'PY'
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
torch.manual_seed(0)
follows = torch.randint(64, (64, 3))                           # each token is followed by one of three
def texts(count):
    tokens = [torch.randint(64, (count,))]
    for _ in range(15):
        tokens.append(follows[tokens[-1], torch.randint(3, (count,))])
    return torch.stack(tokens, 1)
train, test = ([{"input_ids": row, "labels": row} for row in texts(count)] for count in (256, 256))
test_rows = torch.stack([row["input_ids"] for row in test])
results = []
for way in ("train()", "evaluate(), train()", "eval_on_start"):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
                                         num_attention_heads=2))
    arguments = TrainingArguments(
        f"{sys.argv[1]}/run", per_device_train_batch_size=8, num_train_epochs=2, learning_rate=0.01, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, log_level="error", eval_on_start=way == "eval_on_start")
    trainer = Trainer(model, arguments, train_dataset=train, eval_dataset=test)
    if way.startswith("evaluate"):
        trainer.evaluate()
    trainer.train()
    with torch.no_grad():
        loss = model.eval()(input_ids=test_rows, labels=test_rows).loss
    losses = [torch.zeros(()) for _ in range(2)]
    torch.distributed.all_gather(losses, loss)
    results.append((way, type(trainer.model_wrapped).__name__, *(value.item() for value in losses)))
if trainer.is_world_process_zero():
    with open(f"{sys.argv[1]}/results", "w") as file:
        for way, kind, first, second in results:
            print(f"{way:<20} {kind:<24} test loss of the two processes' models {first:.4f} {second:.4f}", file=file)
    assert all((first == second) == (kind == "DistributedDataParallel") for _, kind, first, second in results)
    assert [kind for _, kind, _, _ in results] == [results[0][1], "LlamaForCausalLM", "DistributedDataParallel"]
    assert results[0][2] == results[2][2] < min(results[1][2:])
PY
"$python" -m torch.distributed.run --standalone --nproc_per_node 2 "$work/train.py" "$work" > "$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
cat "$work/results"
