"""The benchmark, without its measurements: nothing here depends on the speed of the machine."""
from conftest import ROOT

from eval_niah import NiahConfig
from eval_posloss import PosLossConfig
from experiments import bench
from lib.config import configure
from prepare import PrepareConfig
from train import TrainConfig


def test_the_programs_know_the_settings_that_the_benchmark_types(monkeypatch):
    commands = {}

    def run(program, *settings):
        if settings == ("--help",):
            return 1.0
        commands[program] = settings
        return 3.0

    monkeypatch.setattr(bench, "run", run)
    for measurement in ("losses", "answers"):
        tokens_per_s = bench.SIDES[measurement][bench.OURS]()
        assert tokens_per_s % (bench.LENGTH / 2) == 0, "not without the second of the start"
    for program, settings in {"prepare.py": PrepareConfig, "train.py": TrainConfig,
                              "eval_posloss.py": PosLossConfig, "eval_niah.py": NiahConfig}.items():
        cfg = configure(settings, commands[program])
    assert cfg.context_sizes == (bench.LENGTH,)


def test_the_sides_of_a_benchmark_take_turns(monkeypatch, capsys):
    order = []

    def take_turn(checkout, *arguments):
        order.append((checkout.name, arguments[-1]))
        return 300.0 if arguments[-1].endswith(bench.OURS) else 100.0 * len(order)

    monkeypatch.setattr(bench, "take_turn", take_turn)
    monkeypatch.setitem(bench.SIDES, "update", {bench.OURS: None, "plain recipe": None})
    bench.compare(bench.BenchConfig(against="other", rounds=2), "update", [])
    first, second = order[:3], order[3:]
    assert first == second[::-1] and {checkout for checkout, _ in first} == {ROOT.name, "other"}
    lines = [line for line in capsys.readouterr().out.splitlines() if "plain recipe " in line]
    # its turns are the second and the fifth of all, so the ratios are 300 / 200 and 300 / 500
    assert "1.05x as fast (0.825 to 1.27)" in lines[-1]
