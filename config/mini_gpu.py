# The mini-reproduction on one GPU (experiments/mini_gpu): 49 M parameters, trained on 98 M tokens
# of real text with a training length of 512.
data_dir = "data/mini_text"
out_dir = "out/mini_gpu"
block_size = 512
n_layer = 6
n_head = 6
n_embd = 384
n_inner = 1024
batch_size = 128
max_iters = 1500
learning_rate = 1.5e-3
warmup_iters = 100
decay = "linear"
decay_iters = 300
min_lr = 1e-4
eval_interval = 250
eval_seqs = 256
save_interval = 250
log_interval = 50
