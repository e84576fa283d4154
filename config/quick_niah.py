# Needles for the quick run (config/quick.py). The sentence is that of its corpus: the city comes
# right before the colon, because a model this small does not find the paper's needle.
data_dir = "data/almanac"
split = "haystack"
needle = "The special magic number of {city} : {number} ."
prompt = "completion"
number_format = (2, 2, 2, 1)
begin = True
context_sizes = (128, 256, 512, 1024, 1280, 2048)
n_samples = 20
