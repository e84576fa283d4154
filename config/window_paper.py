# The same at the size of the paper's model: each fourth layer sees all keys, as in Llama 4,
# OLMo 3.5 and SWAN-GPT (arXiv 2504.08719), the others see the last 256.
window_pattern = "SSSL"
window = 256
