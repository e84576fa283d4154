#!/usr/bin/env bash
# matplotlib: imshow fades columns and cells of a long attention map: a sink of .5 looks like .07, a needle of 1 like 0
# Versions: matplotlib 3.11.2, numpy 2.4.6 (half of each row's attention goes to token 0, one row looks at one needle).
# Guess: the picture has fewer pixels than the map has cells, but its largest values stay visible: a column of .5 is a
#   grey line of at least one pixel, and a cell of 1 a white point.
# True: the cells under a pixel are averaged (interpolation "auto"). A column of one token is drawn with its weight
#   divided by the tokens per pixel, and a cell by the square of them. In the usual figure, 370 pixels high, the sink of
#   .5 is drawn as .50 at 256 tokens and as .07 at 4,096; the needle as .90 and as .004. The colour bar goes on up to 1.
#   interpolation="nearest" leaves out most tokens instead, with their columns and needles. A maximum over blocks, taken
#   before imshow, keeps both.
# Hurt: pictures of attention at long context: sinks, needles and retrieval heads fade with the length of the text, and
#   spread attention does not.
# Output seen:
#   256 tokens, imshow: sink of .5 drawn as 0.502, needle of 1 as 0.902
#   256 tokens, nearest: sink of .5 drawn as 0.502, needle of 1 as 1.000
#   256 tokens, maximum over blocks, imshow: sink of .5 drawn as 0.502, needle of 1 as 0.902
#   1,024 tokens, imshow: sink of .5 drawn as 0.267, needle of 1 as 0.078
#   1,024 tokens, nearest: sink of .5 drawn as 0.502, needle of 1 as 0.000
#   1,024 tokens, maximum over blocks, imshow: sink of .5 drawn as 0.502, needle of 1 as 0.902
#   4,096 tokens, imshow: sink of .5 drawn as 0.071, needle of 1 as 0.004
#   4,096 tokens, nearest: sink of .5 drawn as 0.000, needle of 1 as 0.000
#   4,096 tokens, maximum over blocks, imshow: sink of .5 drawn as 0.502, needle of 1 as 0.902
. "$(dirname "$0")/common.sh"
venv matplotlib==3.11.2 numpy==2.4.6

MPLBACKEND=agg "$python" - <<'PY'
import matplotlib.pyplot as plt
import numpy as np

def attention(tokens):
    places = np.arange(1, tokens + 1, dtype=np.float32)
    weights = np.tril(np.broadcast_to(0.5 / places[:, None], (tokens, tokens)))
    weights[:, 0] += 0.5                                       # the sink
    row, column = int(tokens * 0.7), int(tokens * 0.3)
    weights[row] = 0
    weights[row, column] = 1                                   # the needle
    return weights

def drawn(weights, **options):                                 # brightness of the sink and of the needle, 0 to 1
    figure, axes = plt.subplots()
    axes.imshow(weights, cmap="gray", vmin=0, vmax=1, **options)
    axes.axis("off")
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[::-1, :, 0] / 255
    box = axes.get_window_extent()
    left, right, low, high = (round(edge) for edge in (box.x0, box.x1, box.y0, box.y1))
    picture = pixels[low:high, left:right][::-1]               # row 0 at the top, as in the map
    plt.close(figure)
    size = len(picture)
    row, column = int(size * 0.7), int(size * 0.3)
    sink = np.median(picture[size // 2:int(size * 0.65), :4].max(1))
    return sink, picture[row - 3:row + 4, column - 3:column + 4].max()

seen = {}
for tokens in (256, 1024, 4096):
    weights = attention(tokens)
    block = max(1, tokens // 256)
    blocks = weights.reshape(tokens // block, block, tokens // block, block).max((1, 3))
    for name, values, options in (("imshow", weights, {}), ("nearest", weights, {"interpolation": "nearest"}),
                                  ("maximum over blocks, imshow", blocks, {})):
        seen[tokens, name] = drawn(values, **options)
        print(f"{tokens:,} tokens, {name}: sink of .5 drawn as {seen[tokens, name][0]:.3f}, "
              f"needle of 1 as {seen[tokens, name][1]:.3f}")
assert seen[256, "imshow"][0] > 0.25 and seen[256, "imshow"][1] > 0.8
assert seen[4096, "imshow"][0] < 0.1 and seen[4096, "imshow"][1] < 0.02 and max(seen[4096, "nearest"]) < 0.02
assert seen[4096, "maximum over blocks, imshow"] == seen[256, "imshow"]
PY
