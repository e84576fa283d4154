# Windows at the size of the paper's model; nobody has trained it. The pattern is SL, and not the
# SSSL of Llama 4, OLMo 3.5 and SWAN-GPT (arXiv 2504.08719), because in models of four layers SLSL
# learned to look numbers up, and SSSL did not (experiments/windows). S layers see the last 256
# tokens, L layers see all.
window_pattern = "SL"
window = 256
