# Learned p_n (Eq. 3, section 2.1, Fig. 2): q times s p_n + b, p_n shared by all layers and heads;
# 25,000 updates.
attention_type = "pn"
max_iters = 25_000
out_dir = "out/pn"
