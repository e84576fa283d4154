# Real text, trained with several seeds (experiments/text): 1.8 M parameters outside the embeddings
# and 1.6 M in them, 800 updates of 4,096 tokens; 15 minutes on one core. The learning rate and the
# shape of its schedule are config/laptop.py's.
data_dir = "data/text"
out_dir = "out/text/run"
block_size = 256
n_layer = 4
n_head = 3
n_embd = 192
n_inner = 512
batch_size = 16
max_iters = 800
learning_rate = 2e-3
warmup_iters = 50
decay = "linear"
decay_iters = 200
min_lr = 1e-4
eval_interval = 200
eval_seqs = 64
save_interval = 100
log_interval = 10
dtype = "float32"  # on every machine, so that runs of several can be compared
compile = False  # it would take a good part of a run this short
