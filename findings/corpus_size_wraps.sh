#!/usr/bin/env bash
# In polars the summed length of a corpus of 5 GB is 0.7 GB, and that of token lists wraps as well
# Versions: polars 2.1.0, numpy 2.4.6.
# Guess: the sum of the lengths of texts is the size of the corpus, as the mean times the number of texts.
# True: str.len_bytes, str.len_chars and list.len give 32-bit numbers without sign, and sum widens 8 and 16 bits alone.
#   From 4,294,967,296 on the sum starts again at 0, without a warning; in groups too. The mean is right.
# Hurt: sizes of corpora in bytes, characters and tokens, shares of a mixture. A cast to Int64 before the sum cures it.
# Output seen:
#   bytes of 5,000 texts of 1,000,000: sum 705,032,704, mean times texts 5,000,000,000, cast first 5,000,000,000
#   tokens of two shards with 3,000,000,000 and 2,000,000,000: sum 705,032,704, mean times shards 5,000,000,000
#   shares of English and German in bytes: as summed 0.85 0.15 cast first 0.444 0.556
. "$(dirname "$0")/common.sh"
venv polars==2.1.0 numpy==2.4.6

"$python" - <<'PY'
import polars as pl
texts = pl.DataFrame({"text": pl.repeat("x" * 1_000_000, 5000, eager=True)})  # the rows share one text in memory
size = pl.col("text").str.len_bytes()
total, mean, wide = texts.select(size.sum(), mean=size.mean(), wide=size.cast(pl.Int64).sum()).row(0)
print(f"bytes of 5,000 texts of 1,000,000: sum {total:,}, mean times texts {int(mean * 5000):,}, cast first {wide:,}")
assert total == 5_000_000_000 - 2**32 and wide == mean * 5000 == 5_000_000_000
shards = pl.Series([3_000_000_000, 2_000_000_000], dtype=pl.DataFrame({"a": [[1]]})["a"].list.len().dtype)
print(f"tokens of two shards with 3,000,000,000 and 2,000,000,000: sum {shards.sum():,}, "
      f"mean times shards {int(shards.mean() * 2):,}")
assert shards.sum() == 5_000_000_000 - 2**32
languages = texts.with_row_index().with_columns(language=pl.when(pl.col("index") < 4000).then(pl.lit("English"))
                                                .otherwise(pl.lit("German")))
languages = pl.concat([languages] + [languages.filter(language="German")] * 4)
shares = []
for length in (size, size.cast(pl.Int64)):
    sums = languages.group_by("language").agg(length.sum()).sort("language")["text"].cast(pl.Int64)
    shares.append([round(value / sums.sum(), 3) for value in sums])
print("shares of English and German in bytes: as summed", *shares[0], "cast first", *shares[1])
assert shares[0] != shares[1]
PY
