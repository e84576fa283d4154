# Multi-query associative recall, the corpus of lib/mqar.py:
# prepare.py --embedded=mqar --compact_vocab --name=mqar
data_dir = "data/mqar"
data_order = "sequence"
loss_on = "repeats"  # the rest of its words is random
out_dir = "out/mqar"
block_size = 128
n_layer = 2
n_head = 2
n_embd = 64
n_inner = 168
init_std = 0.05
batch_size = 64
max_iters = 600
learning_rate = 3e-3
warmup_iters = 100
decay = "linear"
decay_iters = 150
eval_interval = 100
eval_seqs = 128
save_interval = 500
log_interval = 100
dtype = "float32"
compile = False
