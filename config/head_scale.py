# Control, which the paper does not have: s is learned for each layer and head as in (b), but it is
# multiplied by mean(log n) instead of log n. The factor does not depend on n.
attention_type = "head_scale"
out_dir = "out/head_scale"
