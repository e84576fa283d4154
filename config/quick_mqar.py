# Recall of the pairs of mqar at 1 to 16 times the training length.
data_dir = "data/mqar"
split = "val"
task = "mqar"  # or mqar_fixed
begin = True
context_sizes = (128, 256, 512, 1024, 2048)
depths = (50,)  # of no meaning here
n_samples = 200
