"""Result files -> records -> curves, tables, verdicts. (Being written.)"""


def print_tables(inputs):
    """Print the tables of what was measured. inputs: result files, or folders of them."""
