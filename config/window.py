# Windows with RoPE, and no position where a layer sees all keys (NoPE), for small models:
# train.py config/quick.py config/window.py --attention_type=ssmax
# The distances that RoPE turns by never exceed the window, so that longer contexts hold no angle
# that training did not. The factor s f(n)^g + b acts in the L layers.
window_pattern = "SL"  # by layer, repeated: S sees `window` tokens, L sees all
window = 32
