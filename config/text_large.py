# On top of config/text.py (experiments/text): 6.3 M parameters outside the embeddings and 2.1 M in
# them, 2,800 updates of 4,096 tokens: 11.5 M. It takes an hour and a half on one core that
# multiplies bfloat16 fast, and more than two hours in float32 on one that does not.
n_layer = 8
n_head = 4
n_embd = 256
n_inner = 688
max_iters = 2800
learning_rate = 1e-3  # the best of three for softmax (experiments/text/large/choice.txt)
warmup_iters = 100
decay_iters = 700
eval_interval = 700
eval_seqs = 256
save_interval = 200
dtype = "bfloat16"
