# Convert a model that was trained with RoPE in all layers: every second layer (S) gets a window of
# 32 tokens, and the others (L) lose their position. A tenth of the first training follows, at the
# same length.
# python train.py config/quick.py config/convert.py --init_from=out/rope \
#     --attention_type=ssmax --variant=converted --out_dir=out/converted
window_pattern = "SL"  # letters of the layers, repeated: S sees `window` tokens, L sees all
window = 32
# Not in sequence: the beginning of the almanac is copy exercises (experiments/convert).
data_order = "random"
max_iters = 400
learning_rate = 1e-3  # a third of config/quick.py's
warmup_iters = 10
decay = "linear"
decay_iters = 0  # it begins after the warm-up
min_lr = 1e-5
eval_interval = 400
