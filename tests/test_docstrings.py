"""Every public name says what it does, what it takes and what it returns.

`python tests/test_docstrings.py` prints how many public names have a full docstring, package by package.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import typing

import pytest

import regard

# Packages whose public names are not all described yet. A package is taken off as soon as it is complete,
# and none is ever added.
INCOMPLETE = {
    "layers",
}

# What a function does, in the imperative. A new verb is added here on purpose, so that a noun is not.
VERBS = set(
    """Accept Accumulate Add Advance Allow Answer Append Apply Approximate Arrange Ask Assemble Assert
    Assign Attach Attend Average Begin Break Bring Build Cache Calculate Call Cast Center Change
    Check Choose Clear Close Collapse Collect Combine Compare Complete Compute Connect Construct
    Continue Convert Copy Correct Count Create Crop Cut Decide Decode Decorate Default Define Delete
    Describe Detach Detect Determine Disable Discard Display Divide Download Draw Drop Duplicate
    Embed Empty Enable Encode End Ensure Enter Estimate Evaluate Evict Examine Exchange Execute Exit
    Expand Explain Export Express Extend Extract Feed Fetch Fill Filter Find Finish Fit Flatten Fold
    Follow Forget Format Freeze Gather Generate Get Give Group Guess Handle Hide Hold Identify
    Ignore Implement Import Include Index Infer Initialise Initialize Insert Inspect Install
    Interleave Intervene Invert Iterate Join Judge Keep Label Learn Leave Lend Let Limit Link List
    Load Locate Log Look Make Map Mark Mask Match Measure Merge Mix Move Multiply Name Normalise
    Normalize Number Observe Offer Open Order Pack Pad Paint Parse Pass Patch Permute Pick Place
    Plan Plot Pool Predict Prepare Print Process Project Prune Put Raise Rank Read Rebuild Receive
    Recompute Reconstruct Record Recover Reduce Refuse Register Remember Remove Rename Render
    Reorder Repeat Replace Report Represent Require Rescale Reset Reshape Resolve Restore Restrict
    Resume Return Reverse Roll Rotate Round Run Sample Save Say Scale Score Search Select Send
    Separate Serve Set Share Shift Show Shrink Simulate Sketch Skip Slice Sort Split Stack Start
    State Stop Store Stream Strip Subtract Sum Suppress Survey Swap Switch Take Tell Test Tokenise
    Tokenize Trace Train Transform Translate Transpose Try Turn Undo Unpack Update Use Validate
    Verify View Visit Wait Walk Warn Watch Weigh Weight Widen Work Wrap Write Yield""".split()
)

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Example|Examples|Note|Notes):$", re.M)


def sections(text):
    """Return the sections of a Google-style docstring by name, and what stands before them as ''."""
    parts = SECTION.split(text)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def described(text, *names_of_sections):
    """Return the names that these sections describe: `name: ...` or `name (type): ...`, one or several."""
    held = sections(text)
    body = inspect.cleandoc("\n".join(["", *(held.get(name, "") for name in names_of_sections)]))
    lines = re.findall(r"^([*`\w][*`\w, ]*?)(?: \([^)]*\))?:(?: |$)", body, flags=re.M)
    return {name.strip("*` ") for line in lines for name in line.split(",")}


def parameters(function):
    """Return the names of a function's parameters, without `self`, `cls` and private ones."""
    found = list(inspect.signature(function).parameters)
    return [name for name in found if name not in ("self", "cls") and not name.startswith("_")]


def returns_something(function):
    """Return whether a function's annotation says that it returns more than None."""
    annotation = inspect.signature(function).return_annotation
    return annotation not in (None, "None", inspect.Signature.empty, typing.NoReturn, "NoReturn", "Never")


def own_doc(thing):
    """Return a docstring that somebody wrote: a dataclass without one is given its signature by Python."""
    text = inspect.getdoc(thing) or ""
    generated = inspect.isclass(thing) and text.startswith(f"{thing.__name__}(")
    return "" if generated else text


def faults_of_function(function, with_sections=True):
    """Return what the docstring of a function or method lacks."""
    text = own_doc(function)
    if not text:
        return ["has no docstring"]
    faults = []
    first = re.split(r"[\s,:.;]", text, maxsplit=1)[0]
    if first not in VERBS:
        faults.append(f"starts with {first!r}, not with a verb")
    if with_sections:
        missing = [name for name in parameters(function) if name not in described(text, "Args")]
        faults += [f"Args: lacks {name}" for name in missing]
        if returns_something(function) and not {"Returns", "Yields"} & set(sections(text)):
            faults.append("lacks Returns:")
    return faults


def faults_of_class(cls):
    """Return what the docstring of a class lacks; its name is a noun, so that its first line may be one."""
    text = own_doc(cls)
    if not text:
        return ["has no docstring"]
    if issubclass(cls, BaseException) or getattr(cls, "_is_protocol", False):
        return []
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")]
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        names = list(cls._fields)
    elif "__init__" in vars(cls):
        names = parameters(cls.__init__)
        text += "\n\n" + (inspect.getdoc(cls.__init__) or "")
    else:
        names = []
    held = described(text, "Args", "Attributes")
    return [f"Args: or Attributes: lacks {name}" for name in names if name not in held]


def public_names():
    """Return every public name as (package, name) -> thing; a name of the top counts for its package."""
    found = {}
    packages = [module.name for module in pkgutil.iter_modules(regard.__path__) if module.ispkg]
    for place in ["", *packages]:
        module = importlib.import_module(f"regard.{place}".rstrip("."))
        for name in getattr(module, "__all__", []):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isroutine(thing):
                found[thing.__module__.split(".")[1], name] = thing
    return found


def public_methods(cls):
    """Return the methods that a class defines itself, by name: no properties, no private ones."""
    return {
        name: getattr(cls, name)
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod)))
    }


def faults(name, thing):
    """Return what a public name and its methods lack, one sentence for each.

    A method starts with a verb; `forward`, which is how a layer is called, has the sections too.
    """
    if not inspect.isclass(thing):
        return [f"{name}: {fault}" for fault in faults_of_function(thing)]
    return [f"{name}: {fault}" for fault in faults_of_class(thing)] + [
        f"{name}.{method}: {fault}"
        for method, function in public_methods(thing).items()
        for fault in faults_of_function(function, with_sections=method == "forward")
    ]


PUBLIC = public_names()
PACKAGES = sorted({package for package, _ in PUBLIC})


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_of_a_package_are_described(package):
    """First a verb, then every parameter, what is returned, and every field of a dataclass."""
    mine = {name: thing for (home, name), thing in PUBLIC.items() if home == package}
    found = [fault for name, thing in mine.items() for fault in faults(name, thing)]
    if package in INCOMPLETE:
        assert found, f"{package} is complete: take it off INCOMPLETE"
    else:
        assert found == []


def test_only_packages_that_are_there_are_incomplete():
    """The list holds nothing that is gone."""
    assert set(PACKAGES) >= INCOMPLETE


def attend_well(q, k, *, scale=1.0) -> float:
    """Compute attention.

    Args:
        q, k: Queries and keys, ``(batch, head, position, dim)``.
        scale (float): What scores are multiplied by.

    Returns:
        A number.
    """


def attend_badly(q, k, *, scale=1.0) -> float:
    """The attention of q and k.

    Args:
        q: Queries. The `scale` is not described here: nor is k.
    """


@dataclasses.dataclass
class Pair:
    """Two numbers.

    Attributes:
        left: The first.
    """

    left: int
    right: int

    def total(self) -> int:
        """The sum."""
        return self.left + self.right


def test_the_rule_accepts_a_full_docstring_and_names_each_fault():
    """The checks above see a missing verb, parameter, result and field, and nothing else."""
    assert faults("attend_well", attend_well) == []
    assert faults("attend_badly", attend_badly) == [
        "attend_badly: starts with 'The', not with a verb",
        "attend_badly: Args: lacks k",
        "attend_badly: Args: lacks scale",
        "attend_badly: lacks Returns:",
    ]
    assert faults("Pair", Pair) == [
        "Pair: Args: or Attributes: lacks right",
        "Pair.total: starts with 'The', not with a verb",
    ]


def main():
    """Print a table of public names with full docstrings, and with `-v` what the others lack."""
    import sys

    print("| package | public names | with full docstrings |\n| --- | --- | --- |")
    whole = {key: not faults(key[1], thing) for key, thing in PUBLIC.items()}
    for package in PACKAGES:
        mine = [full for (home, _), full in whole.items() if home == package]
        print(f"| {package} | {len(mine)} | {sum(mine)} |")
    print(f"| all | {len(whole)} | {sum(whole.values())} |")
    if "-v" in sys.argv:
        print(*(fault for (_, name), thing in PUBLIC.items() for fault in faults(name, thing)), sep="\n")


if __name__ == "__main__":
    main()
