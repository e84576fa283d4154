# Multi-query associative recall, the corpus of lib/mqar.py, with the model of config/quick.py:
# prepare.py --embedded=mqar --compact_vocab --name=mqar
# train.py config/quick.py config/mqar.py --attention_type=ssmax
data_dir = "data/mqar"
loss_on = "repeats"  # the rest of its words is random
out_dir = "out/mqar"
batch_size = 64  # of 8 answers each; at 32 and with 8,192 words the plateau outlasted 2,000 updates
max_iters = 600
decay_iters = 150
eval_interval = 100
eval_seqs = 128
