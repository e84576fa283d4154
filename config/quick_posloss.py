# Loss by position of the quick run, on long documents of its corpus.
data_dir = "data/almanac"
split = "test"
seq_len = 2048
n_seqs = 60
