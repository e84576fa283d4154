# Real text on a laptop, in half an hour on two cores. The model has 13.7 M parameters, most of them
# in the embedding and in lm_head.
data_dir = "data/books"
out_dir = "out/laptop"
block_size = 256
n_layer = 4
n_head = 4
n_embd = 128
n_inner = 344
batch_size = 16
max_iters = 700
learning_rate = 2e-3
warmup_iters = 50
decay = "linear"
decay_iters = 200
min_lr = 1e-4
eval_interval = 100
eval_seqs = 64
sample_interval = 100
save_interval = 100
log_interval = 10
compile = False  # gains nothing: at this width most of the time goes into the logits
