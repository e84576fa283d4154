# (e) Softmax replaced by SSMax after pretraining: the weights of (a), with s = 1/mean(log n). There
# is no training; train.py only measures the validation loss and saves a checkpoint.
init_from = "out/a_softmax"
variant = "softmax>ssmax"
attention_type = "ssmax"
max_iters = 0
out_dir = "out/e_swap_after"
