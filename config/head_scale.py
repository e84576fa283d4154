# Control that the paper lacks: s learned for each layer and head as in (b), but with mean(log n)
# in the place of log n.
attention_type = "head_scale"
out_dir = "out/head_scale"
