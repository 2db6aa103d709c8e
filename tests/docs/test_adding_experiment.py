"""The page on adding an experiment is the experiment: its file is run as it stands there, and broken."""

import re
import sys
from pathlib import Path

from regard import lab
from regard.attention.softmax import attend
from regard.lab import catalogue
from regard.lab.spec import perform

PAGE = (Path(__file__).parents[2] / "docs" / "adding" / "experiment.md").read_text(encoding="utf-8")


def replace_function(patch, function, broken):
    """Put `broken` in the place of `function` in every module of the library that has imported it."""
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == "regard":
            for name in [name for name, value in vars(module).items() if value is function]:
                patch.setattr(module, name, broken)


def test_the_experiment_of_the_page_is_confirmed_and_a_fault_refutes_it(tmp_path, monkeypatch):
    """Its file, its row and its fault, each as it stands there."""
    file, row, fault = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "averages.py").write_text(file, encoding="utf-8")
    monkeypatch.setattr(lab, "__path__", [*lab.__path__, str(tmp_path)])
    experiments = dict(catalogue.EXPERIMENTS)
    exec(row, {"EXPERIMENTS": experiments})
    monkeypatch.setattr(catalogue, "EXPERIMENTS", experiments)
    found = catalogue.find("averages")
    assert perform(found, quick=True).verdict == "confirmed"
    names = {"replace_function": replace_function, "attend": attend}
    exec(fault, names)
    names["values_doubled"](monkeypatch)
    assert perform(found, quick=True).verdict == "refuted"
    monkeypatch.delitem(sys.modules, "regard.lab.averages")
