# (b) SSMax: the query is multiplied by s log n. s is learned for each layer and head.
attention_type = "ssmax"
out_dir = "out/b_ssmax"
