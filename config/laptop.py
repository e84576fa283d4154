# Real text on a laptop. A model takes five to eleven minutes on two cores of a server, and up to
# half an hour on old ones. It has 13.7 M parameters, most of them in the embedding and in lm_head.
data_dir = "data/books"
out_dir = "out/laptop/run"
block_size = 256
n_layer = 4
n_head = 4
n_embd = 128
n_inner = 344
batch_size = 8  # with as many training tokens in all, 4 and 16 ended with a higher loss
max_iters = 1400
learning_rate = 2e-3
warmup_iters = 50
decay = "linear"
decay_iters = 400
min_lr = 1e-4
eval_interval = 200
eval_seqs = 64
save_interval = 200
log_interval = 20
compile = False  # gains nothing: at this width most of the time goes into the logits
