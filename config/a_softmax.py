# (a) softmax, the baseline. All settings are defaults, which are the paper's (Appendix A and B).
out_dir = "out/a_softmax"
