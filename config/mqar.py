# Multi-query associative recall (MQAR, lib/corpora/mqar.py), with the model of quick.py:
# python prepare.py --embedded=mqar --compact_vocab --name=mqar
# python train.py config/quick.py config/mqar.py --attention_type=ssmax
data_dir = "data/mqar"
loss_on = "repeats"  # all other words are random
out_dir = "out/mqar"
# A row asks 8 questions. With 32 rows an update and Zoology's vocabulary of 8,192 words (ours has
# 512), 2,000 updates did not teach it.
batch_size = 64
max_iters = 600
decay_iters = 150
eval_interval = 100
eval_seqs = 128
