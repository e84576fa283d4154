# (b) SSMax: the query times s log n, s learned for each layer and head.
attention_type = "ssmax"
out_dir = "out/b_ssmax"
