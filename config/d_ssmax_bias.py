# (d) SSMax with a bias: the query is multiplied by s log n + b. Both s and b are learned.
attention_type = "ssmax_bias"
out_dir = "out/d_ssmax_bias"
