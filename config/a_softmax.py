# (a) Softmax, the baseline: all defaults, the paper's Appendix A and B.
out_dir = "out/a_softmax"
