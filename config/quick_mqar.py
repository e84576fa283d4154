# Evaluate MQAR (config/mqar.py) at 1 to 16 times the training length.
data_dir = "data/mqar"
split = "val"
task = "mqar"  # one pair for each 16 tokens
begin = True
context_sizes = (128, 256, 512, 1024, 2048)
n_samples = 200
