# A small model on the embedded corpus, trained in three minutes on two cores. Its corpus:
# python prepare.py --embedded=almanac --compact_vocab --name=almanac
# (For a trial of some updates --n_train=2001 is enough, and takes seconds.)
data_dir = "data/almanac"
# Its order is a curriculum: copying becomes rarer. The first documents are random words, so early
# training losses are above the validation loss.
data_order = "sequence"
out_dir = "out/quick/run"
block_size = 128
n_layer = 2
n_head = 2
n_embd = 64
n_inner = 168
init_std = 0.05
batch_size = 16
max_iters = 4000
learning_rate = 3e-3
warmup_iters = 100
decay = "linear"
decay_iters = 1000
min_lr = 1.5e-4
eval_interval = 1000
save_interval = 500
log_interval = 100
dtype = "float32"  # bf16 and compile gain nothing at a width of 64
compile = False
