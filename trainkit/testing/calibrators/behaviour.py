"""Properties of calibrators: what they do once they are fitted, and before."""

import copy
import inspect
import io
import pickle
from functools import partial

import torch
from torch import nn

from trainkit.testing.calibrators.common import CalibratorCase, data_for, fit, is_single
from trainkit.testing.configs import check_config
from trainkit.testing.faults import Fault, compare, refusal, require, same_shape_and_dtype
from trainkit.testing.properties import prop

ROWS = 200


@prop("C2", "not fitted")
def not_fitted(case: CalibratorCase) -> None:
    """Without a fit, also where the state of one without was loaded, a call raises, naming the class and fit."""
    data = data_for(case, ROWS)
    undone = fit(case, data)
    undone.load_state_dict(case.make().state_dict())
    for when, calibrator in {"before fit": case.make(), "with the state of an unfitted one": undone}.items():
        for what, call in {"forward": calibrator, "predict_proba": calibrator.predict_proba}.items():
            text = refusal(case.spec.cls, partial(call, data["logits"]), Exception, f"{what} {when}")
            require("fit" in text, f"error of {what} {when}", "a text with 'fit'", text)


@prop("C3", "probabilities")
def probabilities(case: CalibratorCase) -> None:
    """Forward keeps the shape; predict_proba gives its softmax or sigmoid: numbers in [0, 1], rows that sum to 1."""
    calibrator = fit(case, data_for(case, ROWS))
    for n in (1, 7):
        logits = data_for(case, n, seed=1)["logits"].requires_grad_()
        output = calibrator(logits)
        same_shape_and_dtype("output of forward", output, logits)
        probs = calibrator.predict_proba(logits)
        same_shape_and_dtype("output of predict_proba", probs, logits)
        require(bool(((probs >= 0) & (probs <= 1)).all()), "probabilities", "in [0, 1]", probs)
        if not is_single(case):
            sums = probs.sum(1)
            compare("sums of the probabilities of a row", sums, torch.ones_like(sums), rtol=0, atol=1e-6)
        compare("probabilities", probs, output.sigmoid() if is_single(case) else output.softmax(1))
        (gradient,) = torch.autograd.grad(output.sum(), logits)
        require(bool(gradient.isfinite().all()), "gradient of the output", "finite", gradient)


@prop("C4", "declarations")
def declarations(case: CalibratorCase) -> None:
    """What the class declares is so: the top class, the order, constants added to a row, targets that are soft."""
    calibrator = fit(case, data_for(case, ROWS))
    logits = data_for(case, ROWS, seed=1)["logits"]
    output = calibrator(logits)
    cls, dim = case.spec.cls, 0 if is_single(case) else 1
    if getattr(cls, "argmax_preserving", False):
        compare("top class of each row", output.argmax(dim), logits.argmax(dim))
    if getattr(cls, "order_preserving", False):
        compare("order of the scores", output.argsort(dim), logits.argsort(dim))
    takes_logits = not case.has("input_kind") or case.setting("input_kind") == "logits"
    if getattr(cls, "translation_invariant", False) and takes_logits and not is_single(case):
        shifted = calibrator.predict_proba(logits + 3)
        compare("probabilities of shifted logits", shifted, calibrator.predict_proba(logits), rtol=1e-9)
    data = data_for(case, ROWS)
    if takes_logits and not is_single(case) and not data["target"].is_floating_point():
        soft = torch.zeros_like(data["logits"]).scatter(1, data["target"].unsqueeze(1), 1.0)
        if getattr(cls, "supports_soft_targets", False):
            certain = case.make().fit(data["logits"], soft)
            compare("state for soft targets that are certain", certain.state_dict(), calibrator.state_dict(), rtol=1e-9)
        else:
            refusal(case.spec.cls, lambda: case.make().fit(data["logits"], soft), Exception, "a fit to soft targets")


@prop("C7", "state and copies")
def copies(case: CalibratorCase) -> None:
    """A reloaded state, deep copies and pickles give equal outputs without a fit; configuration and repr say all."""
    data = data_for(case, ROWS)
    calibrator = fit(case, data)
    file = io.BytesIO()
    torch.save(calibrator.state_dict(), file)
    file.seek(0)
    reloaded = case.make()
    reloaded.load_state_dict(torch.load(file, weights_only=True), strict=True)
    built = check_config(case.spec.cls, case.config, nn.Module)
    require(repr(built) == repr(case.make()), "repr of the part from its configuration", case.make(), built)
    built.load_state_dict(calibrator.state_dict())
    others = {
        "a deep copy": copy.deepcopy(calibrator),
        "a pickle": pickle.loads(pickle.dumps(calibrator)),  # noqa: S301 - our own bytes
        "a reloaded state": reloaded,
        "the part from its configuration": built,
    }
    expected = calibrator(data["logits"])
    for what, other in others.items():
        compare(f"output of {what}", other(data["logits"]), expected, rtol=0, atol=0)
        require(repr(other) == repr(calibrator), f"repr of {what}", repr(calibrator), repr(other))
    if type(calibrator).extra_repr is not nn.Module.extra_repr:
        for name in inspect.signature(case.spec.cls).parameters:
            require(f"{name}=" in repr(calibrator), "repr", f"a text with {name}=", repr(calibrator))


@prop("C12", "errors")
def errors(case: CalibratorCase) -> None:
    """Wrong calls raise one sentence with class, argument and value; a target with a row less raises."""
    data = data_for(case, ROWS)
    shorter = {**data, "target": data["target"][:-1]}
    refusal(case.spec.cls, lambda: fit(case, case.seen(shorter)), Exception, "a target with a row less")
    four = data_for(case, 4)
    for bad in case.spec.errors if case.index == 0 else ():
        what = f"fit with {', '.join([*bad.config, *bad.inputs])}"
        try:
            case.make(**bad.config).fit(**{**four, **bad.inputs})
        except bad.error as error:
            text = str(error)
            fits = case.spec.cls.__name__ in text and bad.match in text
            require(fits, what, f"{case.spec.cls.__name__}: {bad.match}", text)
            continue
        raise Fault(what, f"{bad.error.__name__} with {bad.match!r}", "no exception")


@prop("C13", "compiles to one graph", dear=True)
def compiles(case: CalibratorCase) -> None:
    """torch.compile(fullgraph=True) of a fitted calibrator gives the eager output, also when the batch changes size."""
    torch._dynamo.reset()
    calibrator = fit(case, data_for(case, ROWS))
    compiled = torch.compile(calibrator, fullgraph=True, backend="aot_eager")
    for n in (2, 7, 16):
        logits = data_for(case, n, seed=1)["logits"].float()
        compare("output when compiled", compiled(logits), calibrator(logits), rtol=1e-6, atol=1e-7)
