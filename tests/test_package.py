"""The package as a whole: its public names, the direction of its imports, its wheel."""

import ast
import doctest
import email
import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import jaxtyping
import pytest
import torch

import regard
from regard.drawing.figures import heat_map
from regard.files.families import TABLE
from regard.models.families import differences

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "regard"

# The layout of docs/ARCHITECTURE.md: packages lowest first, and the files of each lowest first. A package
# inside another is one entry of it, and has a row for its own files.
LAYOUT = {
    package.replace("/", "."): re.findall(r"`(\w+)`", files)
    for package, files in re.findall(
        r"^\| `([\w/]+?)(?:/|\.py)` \| ([^|]*)\|",
        (ROOT / "docs" / "ARCHITECTURE.md").read_text(),
        flags=re.MULTILINE,
    )
}
ORDER = list(LAYOUT)
# Content: any file of such a package stands beside the others, after those that are named.
BESIDE = {"lab", "exercises"}

# Answers as students write them, and what is lent to them: they run where regard cannot be imported.
BESIDE_ANSWERS = re.compile(r"exercises\.(lent\.|\w+\.(right\.|starter$|drive$))")

MODULES = sorted(
    module
    for path in SOURCE.rglob("*.py")
    if path != SOURCE / "__init__.py"
    and not BESIDE_ANSWERS.match(module := ".".join(path.relative_to(SOURCE).with_suffix("").parts))
)
CHILD = "checking.child."  # loaded under another name too, so its files import one another relatively


def run(*command, **options):
    """The finished process, which must have succeeded."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done


def imported_by_name(call):
    """The module that `import_module("regard....")` names; of an f-string, as far as its first field.

    Content is looked up by a name that was computed: an exercise or an experiment, which no code knows.
    """
    if ast.unparse(call.func) not in ("import_module", "importlib.import_module", "__import__"):
        return []
    (name, *_) = call.args
    computed = isinstance(name, ast.JoinedStr)
    if computed:
        name = name.values[0]
    if not isinstance(name, ast.Constant) or not str(name.value).startswith("regard."):
        return []
    named = name.value.rstrip(".")
    return [] if computed and named.removeprefix("regard.") in BESIDE else [named]


def imported_modules(source, inside):
    """The modules of ours, as `package.file`, that a file imports at run time."""
    tree = ast.parse(source)
    for_types_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test).endswith("TYPE_CHECKING")
        for statement in branch.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call):
            names = imported_by_name(node)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == inside.startswith(CHILD) or not node.level, (
                f"line {node.lineno} of {inside}: write imports in full, from regard"
            )
            module = f"regard.{CHILD}{node.module or ''}".rstrip(".") if node.level else node.module
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            # A public name imported from the package itself counts for the module it lives in.
            rest = regard._HOME.get(rest, rest)
            if top == "regard" and rest not in ("", "__version__"):
                yield rest


def place(module):
    """Where a module stands in the layout: the number of its package, its own there, and below that."""
    package, *names = module.split(".")
    if package not in ORDER:
        return None
    numbers, parts = [ORDER.index(package)], [package]
    for name in names:
        files = LAYOUT.get(".".join(parts), [])
        numbers.append(files.index(name) if name in files else len(files))
        parts.append(name)
    return numbers[: 1 + sum(".".join(parts[:depth]) in LAYOUT for depth in range(1, len(parts)))]


def wrong_way(source, inside):
    """The imports that go up the layout, or out of it."""
    here = place(inside)
    return [
        module
        for module in imported_modules(source, inside)
        if (there := place(module)) is None or there > here
    ]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_those_below_it(module):
    """No file imports from one that the layout puts above it, nor stands outside the layout."""
    path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
    assert wrong_way(path.read_text(), module) == []


def test_no_two_public_classes_share_a_name():
    """One name is one thing, so that a reader who searches for a class finds it."""
    homes = {}
    for module in MODULES:
        path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith(CHILD)])
def test_what_runs_beside_an_answer_needs_torch_and_the_standard_library_alone(module):
    """No file of the child's folder names regard or any other package, not even inside a function."""
    path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        assert {name.partition(".")[0] for name in names} <= {"torch", *sys.stdlib_module_names}


def test_the_architecture_page_lists_every_file_once():
    """The table of docs/ARCHITECTURE.md is the layout as it is: each file once, none that is gone."""
    there = {module for module in MODULES if not module.endswith(".__init__")}
    listed = {f"{package}.{file.replace('/', '.')}" for package, files in LAYOUT.items() for file in files}
    alone = {package for package, files in LAYOUT.items() if not files}
    assert listed | alone <= there | BESIDE | set(LAYOUT)
    assert {module for module in there - listed - alone if module.partition(".")[0] not in BESIDE} == set()
    assert all(len(files) == len(set(files)) for files in LAYOUT.values())


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from regard.layers.block import Block", ["layers.block.Block"]),
        ("import regard.cli", ["cli"]),
        ('import_module("regard.view.page")', ["view.page"]),
        ('importlib.import_module(f"regard.commands.{file}")', ["commands"]),
        ('import_module("torch")\nimport_module(f"regard.lab.{file}")', []),
        ("def late():\n    from regard import MultiHeadAttention", ["layers.attention"]),
        ("from regard import nowhere", ["nowhere"]),
        ("from regard.attention import linear", ["attention.linear"]),
        ("from regard.attention.scores import ScoreRule", []),
        ("from regard.errors import ShapeError\nfrom regard import __version__\nimport torch", []),
        ("if TYPE_CHECKING:\n    from regard.layers.block import Block", []),
    ],
)
def test_the_import_check_finds_each_way_of_importing(source, found):
    """The check above fails on every form a wrong import can take, and on no right one."""
    assert wrong_way(source, "attention.softmax") == found


def test_the_order_inside_a_package_of_a_package_is_checked():
    """A family imports what all families share, and neither another family nor the list of them."""
    wrong = ["models.families.t5.T5", "models.families.FAMILIES"]
    source = "from regard.models.families import FAMILIES\nfrom regard.models.families.t5 import T5"
    assert sorted(wrong_way(source, "models.families.gpt2")) == sorted(wrong)
    assert wrong_way("from regard.models.families.family import Family", "models.families.gpt2") == []


def test_the_public_names_are_pinned():
    """A public name appears or goes only when this list is changed with it."""
    assert regard.__all__ == [
        "AdditiveAttention",
        "Attended",
        "Block",
        "BlockConfig",
        "Evict",
        "FeatureMap",
        "KVCache",
        "Loaded",
        "MultiHeadAttention",
        "RegardError",
        "ScoreRule",
        "Trace",
        "Transformer",
        "TransformerConfig",
        "Visibility",
        "attend",
        "attend_hard",
        "attend_linear",
        "check",
        "effects",
        "feature_map",
        "fill_mask",
        "generate",
        "intervene",
        "keep_freed_memory",
        "load",
        "masked_softmax",
        "save",
        "show",
        "to_html",
        "trace",
        "watch",
        "weights",
        "why",
    ]


@pytest.mark.parametrize("name", regard.__all__)
def test_a_public_name_is_its_modules_own(name):
    """Every public name resolves, and to the thing its module defines."""
    value = getattr(regard, name)
    assert value.__module__ == f"regard.{regard._HOME[name]}"
    assert name in dir(regard)


def test_a_name_that_is_not_public_is_an_attribute_error():
    """The lazy lookup refuses unknown names as any module does."""
    with pytest.raises(AttributeError, match="no attribute 'attned'"):
        _ = regard.attned


def test_no_public_name_is_a_modules_name():
    """`regard.x` is never both a function and a module, so it cannot depend on what was imported first."""
    assert set(regard.__all__).isdisjoint(ORDER)
    assert set(regard.__all__).isdisjoint(found.name for found in pkgutil.iter_modules([str(SOURCE)]))


PACKAGES = {
    "attention": """Attended Bias DeltaAttended DenseBias DistanceBias EluPlusOne FeatureMap LinearAttended
        LinearState Quadratic RandomFeatures Relu ScoreRule SlopeBias Visibility alibi_slopes attend
        attend_delta attend_hard attend_linear column_sums delta_step delta_weights feature_map linear_step
        linear_weights masked_softmax weights""",
    "costs": """Cost Counted Formula Latent Machine Placed Row cost leading measure_machine parameters placed
        roofline_figure symbols what_if""",
    "drawing": "curves effect_maps head_grid head_pictures heat_map heat_maps lines shaded_text timeline_map",
    "experiments": """TASKS Change CircuitCurve Curve Effect Effects Finding HeadGate HeadPair KnockOut
        LogitReading ModelPart PatchEffects PatchModule PatchOutputs PatchWeights PathEffect PathEffects
        PredictionTarget RowEngine RowScores ScoredCircuit TaskPrompts Why ablated ablation circuit
        effects head_means importance losses_without mean_loss patch_effects path_effects prune
        pruning_curve ranked_heads save_pruned task_prompts why""",
    "heads": """LABELS RULES AgainstChance Attribution Circuit ComparedScore Composition HeadLabel
        LabelRule Measures RandomNull RelationScore ScoreSplit Sentence Survey Word columns_of
        composition label largest_share logit_attribution logit_lens lost_attention measure ov_circuit
        planted_needle qk_circuit random_null read_conllu repeated_tokens rollout score_pairs
        score_relations score_split stands_out survey to_dataframe value_weighted""",
    "layers": """AdditiveAttention Block BlockConfig DeltaAttention Evict FeedForward KVCache LatentAttention
        LayerCache LearnedPositions MultiHeadAttention Record RelativeBias Rotary RotaryCosSin
        RotaryScaling SinusoidalPositions merge_heads sinusoidal split_heads""",
    "models": "Output Seq2Seq Seq2SeqConfig Transformer TransformerConfig",
    "recurrent": """GRUWeights LSTMWeights RNNWeights gru_forward gru_step last_state lstm_forward lstm_step
        rnn_forward rnn_step""",
    "tracing": """AnyLayer DenseLayerTrace GrowingTrace InterventionRun LayerCheck LayerGradient
        LayerTrace LinearLayerTrace Recorder ScoreGradients ScoreParts Trace TraceChecks
        intervene score_gradients trace trace_generation""",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_names_of_a_package_are_pinned(package):
    """What a package gives by its own name is this list, and no name of it is also one of its modules."""
    module = importlib.import_module(f"regard.{package}")
    assert module.__all__ == PACKAGES[package].split()
    assert all(hasattr(module, name) for name in module.__all__)
    assert set(module.__all__).isdisjoint(LAYOUT[package])


def test_type_checkers_see_the_public_names():
    """What `__init__` imports for type checkers is exactly what it serves at run time."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"regard.{home}" for name, home in regard._HOME.items()}


@pytest.mark.parametrize(
    "line",
    ["--help", "--version", "look --help", "exercises", "hint beam", "start beam", "quiz --list", "models",
     "families", "lab"],
)  # fmt: skip
def test_what_only_lists_imports_nothing_heavy(line, tmp_path):
    """The answers a person waits for come without torch, and run nothing of an exercise."""
    code = (
        "import sys; from regard.cli import main; main(sys.argv[1:], standalone_mode=False);"
        "print(*{'torch', 'numpy', 'matplotlib', 'rich', 'jaxtyping'} & set(sys.modules), file=sys.stderr)"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = run(sys.executable, "-c", code, *line.split(), env=environment, cwd=tmp_path)
    assert done.stderr.strip() == ""


def derived_table():
    """The table of families as JSON."""
    return json.dumps(dict(differences()), indent=1, ensure_ascii=False) + "\n"


def test_the_table_of_families_is_what_the_families_are():
    """The file is there because deriving it needs torch: `python tests/test_package.py` writes it anew."""
    assert TABLE.read_text(encoding="utf-8") == derived_table()


def test_a_model_is_loaded_and_continues_a_text_without_the_compiler():
    """PyTorch's compiler takes as long to import as half of PyTorch; drawing first weights would do that."""
    code = (
        "import sys, regard; regard.generate(regard.load('pocket-gpt'), 'hacker', max_new=2);"
        "regard.load('pocket-dates');"
        "print(*{'torch._dynamo', 'sympy'} & set(sys.modules), file=sys.stderr)"
    )
    assert run(sys.executable, "-c", code).stderr.strip() == ""


def test_shapes_are_checked_in_this_process():
    """The import hook is on: a wrong number of dimensions is caught at the signature."""
    with pytest.raises(jaxtyping.TypeCheckError):
        heat_map(torch.zeros(2), ["a", "b"], ["a"])


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__")])
def test_the_examples_in_docstrings_run(module):
    """What a docstring shows is what happens."""
    result = doctest.testmod(
        importlib.import_module(f"regard.{module}"), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0


RIGHT = """import torch

def masked_softmax(X, valid_lens=None):
    if valid_lens is None:
        return torch.softmax(X, -1)
    lengths = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
    hidden = torch.arange(X.shape[-1], device=X.device) >= lengths[..., None]
    return torch.softmax(X.masked_fill(hidden, float("-inf")), -1).masked_fill(hidden, 0.0)
"""
WRONG = RIGHT.replace('float("-inf")', "0.0")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built as `make dist` does from what the source archive holds."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", folder, "-t"]
    run(*build, "sdist", cwd=ROOT)
    (archive,) = folder.glob("regard-*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    run(*build, "wheel", cwd=folder / archive.name.removesuffix(".tar.gz"))
    (built,) = folder.glob("regard-*.whl")
    return built


def test_the_wheel_holds_every_file_and_says_what_it_is(wheel):
    """All of src/ and nothing of tests, below 10 MB; licence, types and metadata, no made-up address."""
    held = zipfile.ZipFile(wheel)
    ours = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    (information,) = {name.partition("/")[0] for name in held.namelist()} - {"regard"}
    assert {name for name in held.namelist() if name.startswith("regard/")} == ours
    assert {"regard/py.typed", f"{information}/licenses/LICENSE"} <= set(held.namelist())
    assert wheel.stat().st_size < 10e6
    said = email.message_from_bytes(held.read(f"{information}/METADATA"))
    assert (said["Name"], said["Version"]) == ("regard", regard.__version__)
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"] == ">=3.11"
    assert {"notebook", "hf", "train"} <= set(said.get_all("Provides-Extra"))
    assert "Typing :: Typed" in said.get_all("Classifier")
    assert said["Keywords"]
    assert said["Summary"]
    assert said.get_payload().startswith("# Regard")
    assert "example.com" not in str(said)


def test_the_oldest_torch_allowed_is_one_that_was_run():
    """The lower bound is the version that constraints.txt names, which every run of the tests has."""
    (bound,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (exact,) = re.findall(r"^torch==([\d.]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert exact.startswith(f"{bound}.")


def test_what_is_imported_is_declared():
    """Every package that src/ imports is a dependency, or belongs to an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        name for key, names in project["optional-dependencies"].items() if key != "dev" for name in names
    ]
    declared = {re.match(r"[\w-]+", name)[0] for name in project["dependencies"] + extras}
    imported = {
        name.partition(".")[0]
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else []
        )
    }
    imported = {"pillow" if name == "PIL" else name for name in imported}
    assert imported - set(sys.stdlib_module_names) - {"regard"} <= declared


def test_an_installed_regard_works_in_an_empty_folder(wheel, tmp_path):
    """In a new environment, far from the repository: look, check, generate, an experiment, training."""
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    empty.mkdir()
    venv.create(environment, with_pip=False, symlinks=True)
    bin = environment / "bin"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        bin / "python",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    )
    # What Regard needs is borrowed from here; a line of a .pth file comes after what is installed there.
    (packages,) = (environment / "lib").glob("python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(here), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= {"HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}

    def call(*arguments):
        return run(bin / "regard", *arguments, cwd=empty, env=clean).stdout

    where = run(bin / "python", "-c", "import regard; print(regard.__file__)", cwd=empty, env=clean)
    assert Path(where.stdout.strip()).is_relative_to(environment)
    assert call("--version") == f"regard, version {regard.__version__}\n"
    call("look", "what runs here", "--model", "pocket-gpt", "--out", "look.png")
    assert (empty / "look.png").read_bytes().startswith(b"\x89PNG")
    assert (empty / "look.html").is_file()
    assert call("generate", "A hacker is", "--model", "pocket-gpt", "--max-new", "5").startswith(
        "A hacker is"
    )
    assert "Confirmed" in call("lab", "variance", "--quick")
    call("train", "dates", "--steps", "5", "--quiet", "--out", "run")
    assert (empty / "run" / "best" / "config.json").is_file()
    (empty / "right.py").write_text(RIGHT, encoding="utf-8")
    (empty / "wrong.py").write_text(WRONG, encoding="utf-8")
    checked = subprocess.run(
        [bin / "regard", "check", "right.py", "wrong.py", "--json"], cwd=empty, env=clean, capture_output=True
    )
    assert [result["passed"] for result in json.loads(checked.stdout)] == [True, False]
    assert {path.name for path in empty.iterdir()} == {"look.png", "look.html", "run", "right.py", "wrong.py"}


if __name__ == "__main__":
    TABLE.write_text(derived_table(), encoding="utf-8")
