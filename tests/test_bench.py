"""The benchmark, without its measurements: nothing here depends on the speed of the machine."""
import pytest
from conftest import ROOT, call, refused

from experiments import bench
from lib.config import configure
from train import TrainConfig

ALL = bench.ROWS | bench.GPU_ROWS


def test_a_tiny_row_is_measured_and_an_unknown_one_refused(monkeypatch, capsys):
    tiny = "--block_size=16 --n_layer=2 --n_head=2 --n_embd=8 --n_inner=16"
    monkeypatch.setitem(bench.ROWS, "tiny", {bench.OURS: (bench.next_token, tiny, 40)})
    call(bench, "tiny", f"--side={bench.OURS}")
    assert 0 < float(capsys.readouterr().out) < 60
    assert refused("there is no row x; the rows are update_quick, ", call, bench, "x") == 2


@pytest.mark.parametrize("row", ALL)
def test_a_row_has_a_side_of_this_checkout_and_settings_that_exist(row):
    assert bench.OURS in ALL[row]
    for function, *arguments in ALL[row].values():
        if function in (bench.update, bench.products, bench.next_token, bench.from_cpu):
            configure(TrainConfig, arguments[0].split())


def test_the_sides_of_a_row_take_turns(monkeypatch, capsys):
    order = []

    def take_turn(checkout, row, side):
        order.append((checkout.name, side))
        return 300.0 if side == bench.OURS else 100.0 * len(order)

    monkeypatch.setattr(bench, "take_turn", take_turn)
    sides = {bench.OURS: None, "peer": None}
    bench.compare(bench.BenchConfig(against="other", rounds=2), "row", sides)
    assert order[:3] == order[:2:-1] and {name for name, _ in order} == {ROOT.name, "other"}
    line, = (line for line in capsys.readouterr().out.splitlines() if " peer " in line)
    # the peer's turns are the second and the fifth of all, so the ratios are 300 / 200, 300 / 500
    assert line.endswith("350      1.05 (0.825 to 1.27)")
