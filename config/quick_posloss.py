# Loss by position for the quick run (config/quick.py), on the long test documents of its corpus.
data_dir = "data/almanac"
split = "test"
seq_len = 2048
n_seqs = 60
