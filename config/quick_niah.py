# The needle of the quick run: the corpus' own sentence (the city right before the colon: a model
# this small finds *the* needle only so).
data_dir = "data/almanac"
split = "haystack"
needle = "The special magic number of {city} : {number} ."
prompt = "completion"
number_format = (2, 2, 2, 1)
begin = True
context_sizes = (128, 256, 512, 1024, 1280, 2048)
n_samples = 20
trial_size = 1024
