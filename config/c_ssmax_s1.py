# (c) SSMax without a scaling parameter: s = 1.
attention_type = "ssmax_s1"
out_dir = "out/c_ssmax_s1"
