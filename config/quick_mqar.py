# Evaluate MQAR (config/mqar.py) at 1 to 16 times the training length.
data_dir = "data/mqar"
split = "val"
task = "mqar"  # 8 pairs at the training length, and in proportion to the size
begin = True
context_sizes = (128, 256, 512, 1024, 2048)
depths = (50,)  # not used by this task; one depth, so that each size is asked once
n_samples = 200
