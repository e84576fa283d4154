#!/usr/bin/env bash
# datatrove's Trafilatura extractor deletes paragraphs that the worker has seen in three other pages
# Versions: datatrove 0.10.1, trafilatura 2.3.1.
# Guess: the text of a page depends on the page. deduplicate=True, the default of datatrove, drops what a page repeats.
# True: trafilatura counts paragraphs of more than 100 characters in a cache of the process, over all pages. From its fourth
#   appearance on a paragraph is left out, in the middle of a page, and a page that comes a fourth time is empty. The text
#   so depends on the pages that the same worker has read, on their order, and on the number of workers.
#   trafilatura itself has deduplicate=False; trafilatura.meta.reset_caches() empties the cache.
# Hurt: web corpora: licences, famous passages, exercises and definitions have holes where the text cites them, and another
#   number of tasks makes another corpus. Who tries options on one page gets nothing from the fourth try on.
# Output seen:
#   one page again and again, characters: [621, 621, 621, 0, 0]
#   24 pages that cite one passage, pages that have it: 1 worker 3, 4 workers 12, 8 workers 24, deduplicate=False 24
#   in order 0 to 23 the pages [0, 1, 2], in order 23 to 0 the pages [21, 22, 23]
. "$(dirname "$0")/common.sh"
venv datatrove==0.10.1 trafilatura==2.3.1 lxml_html_clean==0.4.6

"$python" - <<'PY'
import multiprocessing
from datatrove.pipeline.extractors import Trafilatura
cited = ("We hold these truths to be self-evident, that all men are created equal, that they are endowed by their Creator "
         "with certain unalienable Rights, that among these are Life, Liberty and the pursuit of Happiness.")
def page(number):
    own = [f"Page {number} has its own paragraph {i} with more than enough words to be taken for text, about {word} and more."
           for i, word in enumerate(("history", "law", "music", "chess"))]
    return "<html><body><article>" + "".join(f"<p>{text}</p>" for text in [*own[:2], cited, *own[2:]]) + "</article></body></html>"
def worker(options, numbers):
    extractor = Trafilatura(**options)
    return [extractor.extract(page(number)) or "" for number in numbers]
def texts(numbers, workers=1, **options):
    numbers, size = list(numbers), len(numbers) // workers
    parts = []
    for start in range(0, len(numbers), size):
        with multiprocessing.get_context("fork").Pool(1) as fresh:
            parts += fresh.apply(worker, (options, numbers[start : start + size]))
    return dict(zip(numbers, parts)) if len(set(numbers)) > 1 else parts
def having(pages):
    assert all("has its own paragraph 3" in text for text in pages.values())
    return sorted(number for number, text in pages.items() if "Liberty" in text)
again = [len(text) for text in texts([0] * 5)]
print("one page again and again, characters:", again)
assert again[0] == again[2] > 0 == again[3] == again[4]
counts = {workers: len(having(texts(range(24), workers))) for workers in (1, 4, 8)}
all_of_them = len(having(texts(range(24), deduplicate=False)))
print("24 pages that cite one passage, pages that have it:", ", ".join(f"{workers} worker{'s' * (workers > 1)} {count}"
      for workers, count in counts.items()) + f", deduplicate=False {all_of_them}")
assert counts == {1: 3, 4: 12, 8: 24} and all_of_them == 24
forward, backward = having(texts(range(24))), having(texts(range(23, -1, -1)))
print("in order 0 to 23 the pages", f"{forward}, in order 23 to 0 the pages {backward}")
assert forward == [0, 1, 2] and backward == [21, 22, 23]
PY
