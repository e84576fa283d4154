# (f) Softmax replaced by SSMax during pretraining: 175,000 updates with softmax, then 25,000 with
# SSMax, which begin with a second warm-up.
variant = "softmax>>ssmax"
attention_type = "softmax"
switch_iter = 175_000
switch_attention_type = "ssmax"
switch_warmup_iters = 1000
out_dir = "out/f_swap_during"
