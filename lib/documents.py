"""
The documents of a corpus: text files, JSON lines, parquet files, or a dataset on the hub.

`datasets` reads the hub. We read files ourselves, because its readers take 2 to 15 times as long
(91.6 M characters: .jsonl.zst 2.2 s against 32, .parquet 3.7 s against 9.5 to 17, .txt 4.8 s
against 12 to 20), and are too kind: half of a .zst is read without an error, a number becomes a
text, a line without the field becomes None, and a syntax error comes without the name of its file.
"""
import io
import itertools
import json
import re
import reprlib
import sys

from tqdm import tqdm

from lib.errors import UserError, describe, explain
from lib.text import find_files, pieces, text_parts

PRESETS = {  # name@revision on the hub, which no longer has the paper's cerebras/SlimPajama-627B
    "slimpajama": "gmongaras/SlimPajama-627B_Reupload@c34c22dbb10ae6b264a2f357a909d1a537141b36",
    "slimpajama-6b": "DKYoon/SlimPajama-6B@b5f90f419b7489cdba26fdbc8c022fcb5562f968"}
INPUT = re.compile(r"\.(txt|md|jsonl?)(\.gz|\.zst)?$|\.parquet$", re.IGNORECASE)


def documents(cfg, skip=0):
    """
    Yield (text, whether a document ends with it) for each row of the files or of the dataset that a
    PrepareConfig names, up to its limit of documents. A row is a document, or a piece of a .txt.
    The text is "" if the row has none, or if it is bad and cfg.skip_bad leaves it out. Any other
    bad row is a UserError.

    skip: the number of rows at the beginning that an earlier run has read.
    """
    n_documents = n_bad = 0
    for i, (name, number, row, ends) in enumerate(input_rows(cfg)):
        n_documents += ends
        if i >= skip:
            try:
                text = row if type(row) is str else text_of(row, cfg.field)
            except ValueError as e:
                problem = f"{name}:{number}: {e}"
                if not cfg.skip_bad:
                    raise UserError(f"{problem}; --skip_bad leaves bad lines out") from e
                text = ""
                n_bad += 1
                if n_bad <= 10:
                    tqdm.write(f"left out: {problem}", file=sys.stderr)
            yield text, ends
        if ends and n_documents == cfg.limit:
            return  # what comes after the limit is not read, so it cannot be an error


def input_rows(cfg):
    """
    Yield (file or dataset, number of the row in it, row, whether a document ends with it). A row is
    a str (a piece of a .txt), bytes (a line of JSON) or a dict with its text in cfg.field.
    """
    if cfg.hf:
        # the hub, the network and the file readers each raise exceptions of their own
        with explain(f"{cfg.hf} cannot be read; check its name, --hf_config, --split={cfg.split} "
                     "and the network, then run the same command again"):
            for number, row in enumerate(hub_rows(cfg), start=1):
                yield cfg.hf, number, row, True
        return
    for path in input_files(cfg):
        with explain(f"{path} is incomplete or damaged, or not compressed as its name says: get a "
                     "whole copy of it, or unpack it first (gzip -d, zstd -d --long=31)"):
            for number, (row, ends) in enumerate(file_rows(path, cfg), start=1):
                yield path, number, row, ends


def input_files(cfg):
    """Return the files that the patterns in cfg.files match. UserError for an unusable one."""
    paths = [path for pattern in cfg.files for path in find_files(pattern)]
    for path in paths:
        if not INPUT.search(path):
            raise UserError(f"{path}: the name must end in .txt, .md, .jsonl, .json (each also "
                            ".gz or .zst) or .parquet; rename it to .txt if it is UTF-8 text")
    return list(dict.fromkeys(paths))  # a file that two patterns match is read once


def hub_rows(cfg):
    import datasets  # late: it takes seconds
    name, _, revision = PRESETS.get(cfg.hf, cfg.hf).partition("@")
    return datasets.load_dataset(name, cfg.hf_config or None, revision=revision or None,
                                 split=cfg.split, streaming=True)


def file_rows(path, cfg):
    """Yield (row, whether a document ends with it) of a file."""
    ending, packing = INPUT.search(path.lower()).groups()
    if not ending:
        yield from parquet_rows(path, cfg.field)
        return
    # pyarrow's stream raises an error if a .zst is cut off; that of `zstandard` just ends
    import pyarrow
    compression = {".gz": "gzip", ".zst": "zstd", None: None}[packing]
    with pyarrow.input_stream(path, compression=compression) as plain:
        file = io.BufferedReader(plain, 1 << 20)
        if ending in ("txt", "md"):
            yield from text_rows(file, path, cfg)
        else:
            for line in file:
                yield line, True


def text_rows(file, path, cfg):
    """Yield (piece, whether it is the last) of a text file, which is one document."""
    parts = text_parts(file, path)
    # another tokenizer than GPT-2's may split a text anywhere, so it gets the file in one piece
    rows = ["".join(parts)] if cfg.tokenizer else pieces(parts)
    with_next = itertools.pairwise(itertools.chain(rows, [None]))
    for number, (row, following) in enumerate(with_next):
        if "<|endoftext|>" in row:
            tqdm.write(f"{path}: <|endoftext|> is ordinary text and ends no document; make the "
                       "file a .jsonl if it holds several documents", file=sys.stderr)
        is_blank = number == 0 and following is None and not row.strip()
        yield "" if is_blank else row, following is None


def parquet_rows(path, field):
    from pyarrow.parquet import ParquetFile  # late: most inputs do not need it
    with ParquetFile(path) as table:
        names = table.schema_arrow.names
        # without that column all are read, and text_of names them in its message
        columns = [field] if field in names else None
        for batch in table.iter_batches(batch_size=1000, columns=columns):
            for row in batch.to_pylist():
                yield row, True


# -----------------------------------------------------------------------------
# row -> text


def text_of(row, field):
    """Return the text of a row, "" if it is empty. The ValueError for a bad row says why."""
    if type(row) is bytes:
        row = parse_line(row) if row.strip() else {field: ""}
    if field not in row:
        raise ValueError(f"there is no field {field!r}, only {', '.join(row) or 'none'}; choose "
                         "one with --field")
    text = "" if row[field] is None else row[field]
    if type(text) is not str:
        raise ValueError(f"the field {field!r} holds {reprlib.repr(text)}, which is not text; "
                         "choose the field with the text with --field")
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON may hold half a surrogate pair, which tokenizers refuse: it becomes U+FFFD
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text if text.strip() else ""


def parse_line(line):
    """Return the dict in a line of JSON. The ValueError for any other line says what it is."""
    try:
        row = json.loads(line)
        problem = f"it is a {type(row).__name__}"
    except (ValueError, RecursionError) as e:
        row, problem = None, describe(e)
    if type(row) is not dict:
        raise ValueError(f"{problem}; each line must be one JSON object, such as "
                         """{"text": "..."}; from an array: jq -c '.[]' FILE > NEW.jsonl""")
    return row
