# The arrangement of window.py at the size of the paper's model. Every fourth layer sees all keys,
# as in Llama 4, OLMo 3.5 and SWAN-GPT (arXiv 2504.08719). The others see the last 256 tokens.
window_pattern = "SSSL"
window = 256
