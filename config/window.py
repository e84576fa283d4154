# For small models: layers with a window have RoPE, and layers that see all keys have no position
# (NoPE).
# python train.py config/quick.py config/window.py --attention_type=ssmax
# RoPE's distances never exceed the window, so longer contexts contain only angles that occurred in
# training. The factor s f(n) + b is used in the L layers only.
window_pattern = "SL"  # letters of the layers, repeated: S sees `window` tokens, L sees all
window = 32
