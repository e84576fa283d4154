# (d) SSMax with bias: s log n + b, both learned.
attention_type = "ssmax_bias"
out_dir = "out/d_ssmax_bias"
