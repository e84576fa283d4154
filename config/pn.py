# Learned p_n (Eq. 3, section 2.1, Fig. 2): the query is multiplied by s p_n + b. All layers and
# heads share p_n. The paper trains it for 25,000 updates.
attention_type = "pn"
max_iters = 25_000
out_dir = "out/pn"
